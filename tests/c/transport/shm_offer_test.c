/* SPDX-License-Identifier: Apache-2.0
 * What a peer may hand to the shm transport, and what it may store in shared memory: all that
 * cannot be is refused with RDT_EPROTO, nothing leaks, nothing crashes. */
#include "harness.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "fake_host.h"
#include "transport/shm/offer.h"
#include "transport/shm/ring.h"

static struct fake_host a; /* ours */
static struct fake_host b; /* the peer whose offer is tampered with */
static struct fake_link ours;
static struct fake_link theirs;
static struct rdti_offer honest;

static void
open_pair(void)
{
    const struct rdti_lane_args connector = fake_lane_args(true);
    const struct rdti_lane_args listener = fake_lane_args(false);
    struct rdti_offer offer;

    fake_host_open(&a, &rdti_transport_shm);
    fake_host_open(&b, &rdti_transport_shm);
    fake_link_offer(&a, &ours, -1, &connector, &offer);
    fake_link_offer(&b, &theirs, -1, &listener, &honest);
}

static void
close_pair(void)
{
    fake_disconnect(&ours, &theirs);
    fake_host_close(&a);
    fake_host_close(&b);
}

/* As it would come through a socket: with descriptors of its own. */
static struct rdti_offer
copy_of_honest(void)
{
    struct rdti_offer copy = honest;

    for (uint32_t i = 0; i < copy.fd_count; i++) {
        copy.fds[i] = fcntl(honest.fds[i], F_DUPFD_CLOEXEC, 0);
        CHECK_INT_GE(copy.fds[i], 0);
    }
    return copy;
}

static void
expect_refusal(struct rdti_offer *offer, rdt_status want, const char *what)
{
    struct rdt_error err = {0};
    const rdt_status got = a.transport->connect(ours.lane, offer, &err);

    CHECK_MSG(got == want, "%s: %d (%s)", what, got, err.message);
    CHECK_INT_EQ(err.status, want);
    CHECK(err.message[0] != '\0');
    CHECK_UINT_EQ(ours.ready_count, 0);
}

TEST(offer_bytes_of_another_shape_are_refused)
{
    open_pair();
    const uint32_t fds = fake_count_fds();
    const uint32_t mappings = fake_count_mappings();
    for (uint32_t len = 0; len <= RDTI_OFFER_MAX_BYTES; len++) {
        if (len == SHM_OFFER_BYTES)
            continue;
        struct rdti_offer offer = copy_of_honest();
        offer.len_bytes = len;
        expect_refusal(&offer, RDT_EPROTO, "length");
    }
    for (uint32_t count = 0; count < SHM_FD_COUNT; count++) {
        struct rdti_offer offer = copy_of_honest();
        for (uint32_t i = count; i < SHM_FD_COUNT; i++)
            CHECK_INT_EQ(close(offer.fds[i]), 0);
        offer.fd_count = count;
        expect_refusal(&offer, RDT_EPROTO, "descriptors");
    }
    /* Version, entries, ring bytes: each bit of them. */
    for (uint32_t bit = 0; bit < 64; bit++) {
        struct rdti_offer offer = copy_of_honest();
        offer.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        expect_refusal(&offer, bit < 16 ? RDT_EVERSION : RDT_EPROTO, "head");
    }
    CHECK_UINT_EQ(fake_count_fds(), fds);
    CHECK_UINT_EQ(fake_count_mappings(), mappings);
    close_pair();
}

static int
memfd(uint64_t len_bytes, int seals)
{
    const int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK_INT_GE(fd, 0);
    CHECK_INT_EQ(ftruncate(fd, (off_t)len_bytes), 0);
    CHECK_INT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

enum bad_fd {
    BAD_UNSEALED,
    BAD_GROW_ONLY,
    BAD_EMPTY,
    BAD_SHORT,
    BAD_LONG,
    BAD_WRITE_SEALED,
    BAD_NO_MEMFD,
    BAD_PIPE,
    BAD_BLOCKING_EVENT,
    BAD_EVENT,
    BAD_COUNT
};

static int
make_bad_fd(enum bad_fd kind)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    int pipe_fds[2];

    switch (kind) {
    case BAD_UNSEALED:
        return memfd(4096, 0);
    case BAD_GROW_ONLY:
        return memfd(4096, F_SEAL_GROW);
    case BAD_EMPTY:
        return memfd(0, seals);
    case BAD_SHORT:
        return memfd(3, seals);
    case BAD_LONG:
        return memfd(4097, seals);
    case BAD_WRITE_SEALED:
        return memfd(4096, seals | F_SEAL_WRITE);
    case BAD_NO_MEMFD:
        return open("/dev/zero", O_RDWR | O_CLOEXEC);
    case BAD_PIPE:
        CHECK_INT_EQ(pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK), 0);
        CHECK_INT_EQ(close(pipe_fds[0]), 0);
        return pipe_fds[1];
    case BAD_BLOCKING_EVENT:
        return eventfd(0, EFD_CLOEXEC);
    case BAD_EVENT:
        return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    case BAD_COUNT:
        break;
    }
    FAIL("kind %d", kind);
}

/* What is good enough at this place although it is bad elsewhere. */
static bool
is_legal(enum shm_offer_fd place, enum bad_fd kind)
{
    switch (place) {
    case SHM_FD_DOORBELL:
        return kind == BAD_LONG; /* a page may be larger than ours */
    case SHM_FD_GENERATIONS:
        return kind == BAD_LONG || kind == BAD_WRITE_SEALED; /* only read, of any length */
    case SHM_FD_EVENT:
        return kind == BAD_EVENT;
    case SHM_FD_RING:
    case SHM_FD_COUNT:
        break;
    }
    return false;
}

TEST(offer_descriptors_that_could_hurt_are_refused)
{
    uint32_t refused = 0;

    open_pair();
    const uint32_t fds = fake_count_fds();
    const uint32_t mappings = fake_count_mappings();
    for (uint32_t place = 0; place < SHM_FD_COUNT; place++) {
        for (uint32_t kind = 0; kind < BAD_COUNT; kind++) {
            if (is_legal(place, kind))
                continue;
            char what[64];
            struct rdti_offer offer = copy_of_honest();
            CHECK_INT_EQ(close(offer.fds[place]), 0);
            offer.fds[place] = make_bad_fd(kind);
            CHECK_INT_GE(offer.fds[place], 0);
            (void)snprintf(what, sizeof(what), "place %u, kind %u", place, kind);
            expect_refusal(&offer, RDT_EPROTO, what);
            refused++;
        }
    }
    CHECK_UINT_EQ(refused, 4 * BAD_COUNT - 4);
    CHECK_UINT_EQ(fake_count_fds(), fds);
    CHECK_UINT_EQ(fake_count_mappings(), mappings);
    struct rdt_error err;
    struct rdti_offer offer = copy_of_honest();
    CHECK_OK(a.transport->connect(ours.lane, &offer, &err), &err);
    CHECK_UINT_EQ(ours.ready_count, 1);
    close_pair();
}

TEST(second_offer_is_refused)
{
    struct rdt_error err;

    open_pair();
    struct rdti_offer offer = copy_of_honest();
    CHECK_OK(a.transport->connect(ours.lane, &offer, &err), &err);
    const uint32_t fds = fake_count_fds();
    offer = copy_of_honest();
    CHECK_STATUS(a.transport->connect(ours.lane, &offer, &err), RDT_EPROTO);
    CHECK_UINT_EQ(fake_count_fds(), fds);
    close_pair();
}

/* A table of one page: an index beyond it is stale, not a fault. */
TEST(short_generation_table_bounds_the_index)
{
    const struct rdt_remote_region remote = {.len_bytes = 8, .index = 1024, .generation = 0};
    struct rdt_error err;
    struct fake_op op;

    open_pair();
    struct rdti_offer offer = copy_of_honest();
    CHECK_INT_EQ(close(offer.fds[SHM_FD_GENERATIONS]), 0);
    offer.fds[SHM_FD_GENERATIONS] = memfd(4096, F_SEAL_SHRINK);
    CHECK_OK(a.transport->connect(ours.lane, &offer, &err), &err);
    fake_write(&op, "x", 1, &remote, 0, 1);
    CHECK_STATUS(fake_start(&ours, &op, &err), RDT_ESTALE);
    close_pair();
}

/* ---- Segments ---------------------------------------------------------------------------- */

static void
expect_bad_segment(int fd, uint64_t len_bytes)
{
    struct rdt_error err;
    struct fake_op op;

    open_pair();
    struct rdti_offer offer = copy_of_honest();
    CHECK_OK(a.transport->connect(ours.lane, &offer, &err), &err);
    struct fake_region *region = fake_region(&b, 64);
    fake_write(&op, "x", 1, &region->remote, 0, 1);
    fake_must_start(&ours, &op);
    const uint32_t fds = fake_count_fds();
    const uint32_t mappings = fake_count_mappings();
    a.transport->segment_arrived(ours.lane, region->remote.segment, fd, len_bytes);
    FAKE_PUMP_UNTIL(&a, NULL, ours.error_count == 1, 5);
    CHECK_INT_EQ(ours.error.status, RDT_EPROTO);
    CHECK(fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_EPROTO);
    CHECK_STATUS(fake_start(&ours, &op, &err), RDT_EPROTO);
    CHECK_UINT_EQ(fake_count_fds(), fds - 1);
    CHECK_UINT_EQ(fake_count_mappings(), mappings);
    close_pair();
}

TEST(segments_that_could_hurt_break_the_lane)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

    expect_bad_segment(memfd(4096, 0), 4096);
    expect_bad_segment(memfd(4096, F_SEAL_GROW), 4096);
    expect_bad_segment(memfd(4096, seals), 4097);
    expect_bad_segment(memfd(4096, seals), UINT64_MAX);
    expect_bad_segment(memfd(4096, seals), 0);
    expect_bad_segment(memfd(0, seals), 4096);
    expect_bad_segment(memfd(4096, seals | F_SEAL_WRITE), 4096);
    expect_bad_segment(memfd(4 << 20, seals | F_SEAL_WRITE), 4 << 20);
    expect_bad_segment(open("/dev/zero", O_RDWR | O_CLOEXEC), 4096);
}

TEST(segment_that_nobody_asked_for_breaks_the_lane)
{
    struct rdt_error err;

    open_pair();
    struct rdti_offer offer = copy_of_honest();
    CHECK_OK(a.transport->connect(ours.lane, &offer, &err), &err);
    const uint32_t fds = fake_count_fds();
    a.transport->segment_arrived(ours.lane, 3, memfd(4096, F_SEAL_SHRINK), 4096);
    FAKE_PUMP_UNTIL(&a, NULL, ours.error_count == 1, 5);
    CHECK_INT_EQ(ours.error.status, RDT_EPROTO);
    CHECK_UINT_EQ(fake_count_fds(), fds);
    close_pair();
}

/* ---- Rings ------------------------------------------------------------------------------- */

static struct shm_ring *
map_ring(int fd)
{
    void *ring = mmap(NULL, SHM_RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    CHECK(ring != MAP_FAILED);
    return ring;
}

/* A receiver's own ring, spoilt by its sender. Every sequence but the next and the old one is
 * refused. */
TEST(entry_with_an_impossible_sequence_breaks_the_lane)
{
    static const uint32_t sequences[] = {2, 63, 0x80000000u, UINT32_MAX};

    for (size_t i = 0; i < sizeof(sequences) / sizeof(sequences[0]); i++) {
        const struct rdti_lane_args args = fake_lane_args(true);
        struct rdti_offer own;
        struct rdt_error err;

        fake_host_open(&a, &rdti_transport_shm);
        fake_host_open(&b, &rdti_transport_shm);
        fake_link_offer(&a, &ours, -1, &args, &own);
        fake_link_offer(&b, &theirs, -1, &args, &honest);
        struct rdti_offer offer = copy_of_honest();
        CHECK_OK(a.transport->connect(ours.lane, &offer, &err), &err);
        struct shm_ring *ring = map_ring(own.fds[SHM_FD_RING]);
        atomic_store_explicit(&ring->entries[0].word, (uint64_t)sequences[i] << 32,
                              memory_order_seq_cst);
        FAKE_PUMP_UNTIL(&a, NULL, ours.error_count == 1, 5);
        CHECK_INT_EQ(ours.error.status, RDT_EPROTO);
        CHECK_UINT_EQ(ours.notify_count, 0);
        CHECK_INT_EQ(munmap(ring, SHM_RING_BYTES), 0);
        close_pair();
    }
}

TEST(head_beyond_what_was_sent_breaks_the_lane)
{
    static const uint32_t heads[] = {SHM_RING_ENTRIES + 1, UINT32_MAX, 0x80000000u};
    const struct rdt_remote_region none = {0};
    static struct fake_op ops[SHM_RING_ENTRIES];

    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        struct rdt_error err;
        struct fake_op op;

        open_pair();
        struct rdti_offer offer = copy_of_honest();
        CHECK_OK(a.transport->connect(ours.lane, &offer, &err), &err);
        for (uint32_t k = 0; k < SHM_RING_ENTRIES; k++) {
            fake_write(&ops[k], NULL, 0, &none, 0, k);
            fake_must_start(&ours, &ops[k]);
        }
        struct shm_ring *ring = map_ring(honest.fds[SHM_FD_RING]);
        atomic_store_explicit(&ring->head, heads[i], memory_order_seq_cst);
        fake_write(&op, NULL, 0, &none, 0, 1);
        CHECK_STATUS(fake_start(&ours, &op, &err), RDT_EPROTO);
        CHECK(!fake_op_is_done(&op));
        FAKE_PUMP_UNTIL(&a, NULL, ours.error_count == 1, 5);
        CHECK_INT_EQ(munmap(ring, SHM_RING_BYTES), 0);
        close_pair();
    }
}

/* ---- Leaks ------------------------------------------------------------------------------- */

TEST_TIMEOUT(opening_and_closing_leaves_nothing, 60)
{
    static struct fake_link ab;
    static struct fake_link ba;
    uint32_t fds = 0;
    uint32_t mappings = 0;
    uint64_t space_bytes = 0;

    fake_host_open(&a, &rdti_transport_shm);
    fake_host_open(&b, &rdti_transport_shm);
    struct fake_region *small = fake_region(&b, 100);
    struct fake_region *large = fake_region(&b, (4 << 20) + 100);
    for (int round = 0; round < 1000; round++) {
        struct fake_op first;
        struct fake_op second;

        fake_connect(&a, &ab, &b, &ba, NULL);
        fake_write(&first, "x", 1, &small->remote, 99, 1);
        fake_write(&second, "y", 1, &large->remote, 4 << 20, 2);
        fake_must_start(&ab, &first);
        fake_must_start(&ab, &second);
        if (round % 2 == 0)
            FAKE_PUMP_UNTIL(&a, &b, ba.notify_count == 2, 5);
        fake_disconnect(&ab, &ba);
        CHECK(fake_op_is_done(&first) && fake_op_is_done(&second));
        if (round == 9) { /* allocators have settled */
            fds = fake_count_fds();
            mappings = fake_count_mappings();
            space_bytes = fake_address_space_bytes();
        }
    }
    CHECK_UINT_EQ(fake_count_fds(), fds);
    CHECK_UINT_EQ(fake_count_mappings(), mappings);
    CHECK_UINT_LE(fake_address_space_bytes(), space_bytes + (UINT64_C(64) << 20));
    fake_host_close(&a);
    fake_host_close(&b);
}

TEST_MAIN()
