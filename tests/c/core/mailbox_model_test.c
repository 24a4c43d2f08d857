/* SPDX-License-Identifier: Apache-2.0
 * Random traffic among three members, each driven by a thread of its own, against what FIFO per
 * (source, tag) allows: the n-th message of a source and tag has the n-th content. */
#include <pthread.h>

#include "core/group_rig.h"

#define RANKS 3
#define TAGS 3
#define MESSAGES (1500 / TEST_TSAN_SHARE) /* of each pair */
#define WINDOW 64                         /* of each sender, to all: 21 for each */
#define AHEAD 8
#define LARGEST_BYTES (1 << 20)

struct member {
    struct rig *rig;
    uint32_t rank;
    uint64_t seed;
    uint64_t largest_bytes;
    bool uses_any;
};

static uint64_t
next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* Both sides know what the n-th message from one to the other is, without a word. */
static uint64_t
message_seed(uint32_t from, uint32_t to, uint32_t n)
{
    return ((uint64_t)from << 40 | (uint64_t)to << 32 | n) * UINT64_C(0x9e3779b97f4a7c15);
}

static uint64_t
message_bytes(uint64_t seed, uint64_t largest_bytes)
{
    uint64_t state = seed;
    const uint64_t kind = next_random(&state) % 100;

    if (kind < 50)
        return next_random(&state) % 64;
    if (kind < 80)
        return next_random(&state) % 2048;
    if (kind < 97)
        return next_random(&state) % 40000;
    return next_random(&state) % (largest_bytes + 1);
}

static uint64_t
message_tag(const struct member *me, uint64_t seed)
{
    return me->uses_any ? 0 : (seed >> 20 & 0xffff) % TAGS;
}

struct outgoing {
    rdt_transfer *t;
    uint8_t *buf;
};

static void
end_outgoing(struct outgoing *out)
{
    struct rdt_error err = {0};

    if (out->t == NULL)
        return;
    CHECK_OK(rig_end(out->t, &err), &err);
    free(out->buf);
    out->t = NULL;
}

static void *
run_sender(void *arg)
{
    struct member *me = arg;
    struct outgoing window[WINDOW] = {0};
    uint32_t at = 0;

    for (uint32_t n = 0; n < MESSAGES; n++) {
        for (uint32_t k = 0; k < RANKS; k++) {
            const uint32_t to = (me->rank + k) % RANKS;
            const uint64_t seed = message_seed(me->rank, to, n);
            const uint64_t len_bytes = message_bytes(seed, me->largest_bytes);
            struct outgoing *out = &window[at++ % WINDOW];
            end_outgoing(out);
            out->buf = malloc(len_bytes + 1);
            rig_fill(out->buf, len_bytes, seed);
            out->t = rig_send(me->rig, me->rank, to, message_tag(me, seed), out->buf, len_bytes);
        }
    }
    for (uint32_t i = 0; i < WINDOW; i++)
        end_outgoing(&window[i]);
    return NULL;
}

/* The next message of (source, tag) that has not been seen, or MESSAGES. */
static uint32_t
next_of(const struct member *me, const uint32_t *seen, uint32_t from, uint64_t tag)
{
    uint32_t n = seen[from * TAGS + tag];

    while (n < MESSAGES && message_tag(me, message_seed(from, me->rank, n)) != tag)
        n++;
    return n;
}

struct incoming {
    rdt_transfer *t;
    uint8_t *buf;
    uint64_t tag;
};

static void
check_message(struct member *me, const struct incoming *in, uint32_t *seen, uint8_t *want)
{
    const uint32_t from = (uint32_t)rdt_transfer_source(in->t);
    const uint32_t n = next_of(me, seen, from, in->tag);
    const uint64_t seed = message_seed(from, me->rank, n);

    CHECK_UINT_LE(n, MESSAGES - 1);
    CHECK_UINT_EQ(rdt_transfer_len_bytes(in->t), message_bytes(seed, me->largest_bytes));
    rig_fill(want, rdt_transfer_len_bytes(in->t), seed);
    CHECK_MEM_EQ(in->buf, want, rdt_transfer_len_bytes(in->t));
    seen[from * TAGS + in->tag] = n + 1;
}

/* One of the next few of a source: further ahead its sender may not have got. */
static uint64_t
choose_tag(const struct member *me, const uint32_t *seen, uint32_t from, uint64_t *state)
{
    uint32_t oldest = MESSAGES;

    for (uint64_t tag = 0; tag < TAGS; tag++) {
        const uint32_t n = next_of(me, seen, from, tag);
        oldest = n < oldest ? n : oldest;
    }
    for (;;) {
        const uint64_t tag = next_random(state) % TAGS;
        const uint32_t n = next_of(me, seen, from, tag);
        if (n < MESSAGES && n < oldest + AHEAD)
            return tag;
    }
}

/* One receive for each source at a time, or one for all. */
/* over budget: the model's moves side by side. */
static void *
run_receiver(void *arg)
{
    struct member *me = arg;
    struct rdt_error err = {0};
    uint32_t seen[RANKS * TAGS] = {0};
    uint32_t left[RANKS] = {MESSAGES, MESSAGES, MESSAGES};
    struct incoming in[RANKS] = {0};
    uint8_t *want = malloc(LARGEST_BYTES + 1);
    uint64_t state = me->seed;
    uint32_t total = RANKS * MESSAGES;

    for (uint32_t i = 0; i < RANKS; i++)
        in[i].buf = malloc(LARGEST_BYTES + 1);
    for (uint32_t i = 0; total > 0; i = (i + 1) % (me->uses_any ? 1 : RANKS)) {
        if (in[i].t == NULL && (me->uses_any || left[i] > 0)) {
            in[i].tag = me->uses_any ? 0 : choose_tag(me, seen, i, &state);
            if (next_random(&state) % 8 == 0) /* let some wait */
                test_sleep_ns(100000);
            in[i].t = rig_recv(me->rig, me->rank, me->uses_any ? RDT_SOURCE_ANY : i, in[i].tag,
                               in[i].buf, LARGEST_BYTES);
        }
        if (in[i].t == NULL)
            continue;
        const rdt_status status =
            rdt_transfer_wait(in[i].t, me->uses_any ? rig_patience_ns() : 20000, &err);
        if (status == RDT_ETIMEDOUT && !me->uses_any)
            continue;
        CHECK_OK(status, &err);
        check_message(me, &in[i], seen, want);
        left[i]--;
        total--;
        rdt_transfer_free(in[i].t);
        in[i].t = NULL;
    }
    for (uint32_t i = 0; i < RANKS; i++)
        free(in[i].buf);
    free(want);
    return NULL;
}

static void
run_model(uint32_t transport, uint64_t largest_bytes, bool uses_any)
{
    struct rig rig;
    pthread_t threads[2 * RANKS];
    struct member members[RANKS];

    rig_open(&rig, RANKS, transport);
    for (uint32_t i = 0; i < RANKS; i++) {
        members[i] = (struct member){.rig = &rig,
                                     .rank = i,
                                     .seed = i + 1,
                                     .largest_bytes = largest_bytes,
                                     .uses_any = uses_any};
        CHECK(pthread_create(&threads[2 * i], NULL, run_sender, &members[i]) == 0);
        CHECK(pthread_create(&threads[2 * i + 1], NULL, run_receiver, &members[i]) == 0);
    }
    for (uint32_t i = 0; i < 2 * RANKS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    rig_close(&rig);
}

TEST_TIMEOUT(random_traffic_over_shm, 60)
{
    run_model(RDT_TRANSPORT_SHM, LARGEST_BYTES, false);
}

TEST_TIMEOUT(random_traffic_over_shm_from_any_source, 60)
{
    run_model(RDT_TRANSPORT_SHM, 60000, true);
}

TEST_TIMEOUT(random_traffic_over_tcp, 60)
{
    run_model(RDT_TRANSPORT_TCP, LARGEST_BYTES, false);
}

TEST_TIMEOUT(random_traffic_over_tcp_from_any_source, 60)
{
    run_model(RDT_TRANSPORT_TCP, LARGEST_BYTES, true);
}

TEST_TIMEOUT(random_traffic_over_verbs, 60)
{
    run_model(RDT_TRANSPORT_VERBS, LARGEST_BYTES, false);
}

TEST_TIMEOUT(random_traffic_over_verbs_from_any_source, 60)
{
    run_model(RDT_TRANSPORT_VERBS, LARGEST_BYTES, true);
}

TEST_MAIN()
