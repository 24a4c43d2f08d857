/* SPDX-License-Identifier: Apache-2.0
 * Every decoder against random and mutated buffers: whatever comes in, it is refused with a reason
 * and an untouched output, or it is a value whose encoding is what came in. */
#include "codecs.h"

/* A sanitizer's run is the slower one, and looks for other things. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ROUNDS_RANDOM 100000
#define ROUNDS_MUTATED 100000
#else
#define ROUNDS_RANDOM 500000
#define ROUNDS_MUTATED 500000
#endif

/* Lengths that are right, nearly right, or anything. */
static size_t
random_length(struct rng *rng, const struct codec *codec)
{
    switch (rng_below(rng, 4)) {
    case 0:
        return rng_below(rng, 64);
    case 1:
        return codec->least_bytes + rng_below(rng, 3);
    default:
        return codec->least_bytes +
               rng_below(rng, (uint32_t)(codec->most_bytes - codec->least_bytes) + 1);
    }
}

/* Heads that pass the first checks let random bytes reach the later ones. */
static void
plant_head(struct rng *rng, const struct codec *codec, uint8_t *wire, size_t len_bytes)
{
    uint8_t valid[WIRE_MAX_BYTES];
    union any_value value;
    const size_t valid_bytes = encode_random(codec, rng, &value, valid);
    size_t n = rng_below(rng, 65);

    if (n > valid_bytes)
        n = valid_bytes;
    memcpy(wire, valid, n < len_bytes ? n : len_bytes);
}

TEST_TIMEOUT(random_bytes_are_refused_or_mean_themselves, 60)
{
    struct rng rng = {.state = 0x5eed};
    uint8_t wire[WIRE_MAX_BYTES];
    union any_value out;
    unsigned refused = 0;

    for (int round = 0; round < ROUNDS_RANDOM; round++) {
        const struct codec *codec = &codecs[rng_below(&rng, CODEC_COUNT)];
        const size_t len_bytes = random_length(&rng, codec);
        rng_bytes(&rng, wire, len_bytes);
        if (rng_below(&rng, 4) == 0)
            plant_head(&rng, codec, wire, len_bytes);
        refused += decode_strictly(codec, wire, len_bytes, &out) != RDT_OK;
    }
    CHECK(refused > ROUNDS_RANDOM / 2);
    CHECK(refused < ROUNDS_RANDOM);
}

/* Change a few bytes, favouring the edges of integers. */
static void
mutate(struct rng *rng, uint8_t *wire, size_t len_bytes)
{
    static const uint8_t edges[] = {0x00, 0x01, 0x7f, 0x80, 0xfe, 0xff};

    for (uint32_t left = 1 + rng_below(rng, 4); left > 0 && len_bytes > 0; left--) {
        const size_t at = rng_below(rng, (uint32_t)len_bytes);
        const size_t run = 1 + rng_below(rng, 8);
        const uint8_t byte = rng_below(rng, 2) == 0 ? edges[rng_below(rng, sizeof(edges))]
                                                    : (uint8_t)rng_below(rng, 256);
        memset(wire + at, byte, run < len_bytes - at ? run : len_bytes - at);
    }
}

/* Mutations of each format's own values; both ends must be met by every one of them. */
TEST_TIMEOUT(mutated_values_are_refused_or_mean_themselves, 60)
{
    struct rng rng = {.state = 0xfeed};
    uint8_t wire[WIRE_MAX_BYTES];
    union any_value out;
    unsigned refused[CODEC_COUNT] = {0};
    unsigned taken[CODEC_COUNT] = {0};

    for (int round = 0; round < ROUNDS_MUTATED; round++) {
        const size_t which = rng_below(&rng, CODEC_COUNT);
        const struct codec *codec = &codecs[which];
        size_t len_bytes = encode_random(codec, &rng, &out, wire);
        if (rng_below(&rng, 16) != 0)
            mutate(&rng, wire, len_bytes);
        if (rng_below(&rng, 16) == 0)
            len_bytes = rng_below(&rng, (uint32_t)len_bytes + 1);
        if (decode_strictly(codec, wire, len_bytes, &out) == RDT_OK)
            taken[which]++;
        else
            refused[which]++;
    }
    for (size_t i = 0; i < CODEC_COUNT; i++) {
        CHECK_MSG(taken[i] > 100, "%s took %u", codecs[i].name, taken[i]);
        CHECK_MSG(refused[i] > 100, "%s refused %u", codecs[i].name, refused[i]);
    }
}

TEST_TIMEOUT(random_heads_never_promise_more_than_fits, 60)
{
    struct rng rng = {.state = 0xbeef};
    unsigned openings = 0;
    unsigned frames = 0;

    for (int round = 0; round < 1000000; round++) {
        uint8_t head[RDTI_OPENING_HEAD_BYTES];
        uint16_t a = 0;
        uint16_t b = 0;
        uint32_t len_bytes = 0;
        rng_bytes(&rng, head, sizeof(head));
        if (rng_below(&rng, 2) == 0)
            rdti_put_u32(head, rng_below(&rng, 2) == 0 ? RDTI_HELLO_MAGIC : RDTI_JOIN_MAGIC);
        if (rdti_opening_parse(head, &a, &b) != RDTI_OPENING_GARBAGE) {
            CHECK(b >= RDTI_OPENING_HEAD_BYTES && b <= RDTI_OPENING_MAX_BYTES);
            openings++;
        }
        if (rng_below(&rng, 2) == 0)
            rdti_frame_head_encode((uint16_t)rng_below(&rng, 20), rng_below(&rng, 2000), head);
        if (rdti_frame_head_decode(head, &a, &len_bytes, NULL) == RDT_OK) {
            CHECK(a >= RDTI_FRAME_PATH && a <= RDTI_FRAME_LAST);
            CHECK(len_bytes <= RDTI_FRAME_PAYLOAD_MAX);
            frames++;
        }
    }
    CHECK(openings > 100);
    CHECK(frames > 100);
}

TEST_MAIN()
