/* SPDX-License-Identifier: Apache-2.0
 * Copies past the caches: every byte in its place, none next to it, wherever both begin and end. */
#include "base/memory/stream_copy.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum {
    GUARD_BYTES = 256,
    MOST_BYTES = 300 * 1000, /* several lanes, and a rest of every kind */
    ALIGNMENT = 64,
};

static uint8_t *source;
static uint8_t *targets[2];

static uint8_t
byte_at(uint64_t i)
{
    return (uint8_t)(i * 7 + i / 251 + 1);
}

static void
begin(void)
{
    const size_t all_bytes = (MOST_BYTES + 2 * GUARD_BYTES) / ALIGNMENT * ALIGNMENT + ALIGNMENT;

    source = aligned_alloc(ALIGNMENT, all_bytes);
    CHECK_NOT_NULL(source);
    for (size_t i = 0; i < all_bytes; i++)
        source[i] = byte_at(i);
    for (int i = 0; i < 2; i++) {
        targets[i] = aligned_alloc(ALIGNMENT, all_bytes);
        CHECK_NOT_NULL(targets[i]);
    }
}

static void
end(void)
{
    free(source);
    free(targets[0]);
    free(targets[1]);
}

/* What lies at `off` of a target is the source from `from` on, and nothing next to it changed. */
static void
check(const uint8_t *target, uint64_t off, uint64_t from, uint64_t len_bytes)
{
    CHECK_MSG(memcmp(target + off, source + from, len_bytes) == 0, "%llu bytes from %llu to %llu",
              (unsigned long long)len_bytes, (unsigned long long)from, (unsigned long long)off);
    for (uint64_t i = 0; i < GUARD_BYTES; i++) {
        CHECK_MSG(i >= off || target[i] == 0xee, "byte %llu before %llu", (unsigned long long)i,
                  (unsigned long long)off);
        CHECK_MSG(target[off + len_bytes + i] == 0xee, "byte %llu behind %llu",
                  (unsigned long long)i, (unsigned long long)len_bytes);
    }
}

static void
clear(uint8_t *target, uint64_t len_bytes)
{
    memset(target, 0xee, len_bytes + 2 * GUARD_BYTES);
}

static const uint64_t lengths[] = {0,           1,
                                   63,          64,
                                   65,          127,
                                   128,         4095,
                                   4096,        4097,
                                   65535,       65536,
                                   65537,       65536 + 4 * 128 + 64 + 3,
                                   262144 + 17, MOST_BYTES - 1000};
static const uint64_t offs[] = {0, 1, 16, 63, 64, 100};

enum { LENGTHS = sizeof(lengths) / sizeof(lengths[0]), OFFS = sizeof(offs) / sizeof(offs[0]) };

/* Of how much it is a part: that decides between the stores, by the processor. */
static const uint64_t wholes[] = {0, UINT64_MAX};

enum { WHOLES = sizeof(wholes) / sizeof(wholes[0]) };

TEST(a_copy_ends_where_it_should)
{
    begin();
    for (unsigned i = 0; i < LENGTHS * WHOLES; i++)
        for (unsigned to = 0; to < OFFS; to++)
            for (unsigned from = 0; from < OFFS; from++) {
                const uint64_t len = lengths[i / WHOLES];
                clear(targets[0], len);
                rdti_stream_copy(targets[0] + offs[to], source + offs[from], len,
                                 wholes[i % WHOLES]);
                check(targets[0], offs[to], offs[from], len);
                clear(targets[0], len);
                rdti_stream_write(targets[0] + offs[to], source + offs[from], len);
                check(targets[0], offs[to], offs[from], len);
            }
    rdti_stream_copy(NULL, NULL, 0, 0);
    end();
}

TEST(a_copy_to_two_places_is_in_both)
{
    begin();
    for (unsigned i = 0; i < LENGTHS * WHOLES; i++)
        for (unsigned to = 0; to < OFFS; to++)
            for (unsigned other = 0; other < OFFS; other++) {
                const uint64_t from = offs[(to + other) % OFFS];
                const uint64_t len = lengths[i / WHOLES];
                clear(targets[0], len);
                clear(targets[1], len);
                rdti_stream_copy_twice(targets[0] + offs[to], targets[1] + offs[other],
                                       source + from, len, wholes[i % WHOLES]);
                check(targets[0], offs[to], from, len);
                check(targets[1], offs[other], from, len);
            }
    end();
}

TEST_MAIN()
