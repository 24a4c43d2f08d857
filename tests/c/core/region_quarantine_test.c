/* SPDX-License-Identifier: Apache-2.0
 * Quarantine: freed bytes are not used again while a peer may still write them, shown by a model
 * that knows every span and by threads that write as peers do. */
#include "memory/region.h"

#include <pthread.h>
#include <stdatomic.h>

#include "region_rig.h"

/* ---- Model ---------------------------------------------------------------------------------- */

/* A model that knows every span that is live or in quarantine: none may ever be given out. */
enum { MODEL_SLOTS = 200 };

struct held {
    rdt_region *region; /* NULL: none, or in quarantine */
    uint64_t from;
    uint64_t to;
    uint32_t index;
    uint32_t generation;
    uint32_t acks_left;
    uint32_t pins;
    struct rdti_target targets[3];
    uint32_t drained;
    bool is_used;
    bool is_freed;
};

struct model {
    struct rig rig;
    struct held held[MODEL_SLOTS];
    uint64_t rng;
};

static void
model_alloc(struct model *m, struct held *h)
{
    const uint64_t len_bytes =
        roll(&m->rng, 20) == 0 ? roll(&m->rng, 3 * MIB) : roll(&m->rng, 5000);

    memset(h, 0, sizeof(*h));
    h->region = new_region(&m->rig, len_bytes);
    h->from = (uintptr_t)rdt_region_addr(h->region);
    h->to = h->from + (len_bytes == 0 ? 1 : len_bytes);
    for (const struct held *o = m->held; o < m->held + MODEL_SLOTS; o++)
        CHECK_MSG(!o->is_used || h->to <= o->from || o->to <= h->from,
                  "bytes are reused that are %s", o->is_freed ? "in quarantine" : "live");
    h->is_used = true;
}

/* After each step: gone exactly when nothing holds it. */
static void
model_settle(struct held *h)
{
    const bool is_over = h->is_freed && h->acks_left == 0 && h->pins == 0;

    CHECK_UINT_EQ(h->drained, is_over ? 1 : 0);
    if (is_over)
        h->is_used = false;
}

/* over budget: the model's moves side by side. */
static void
model_step(struct model *m, struct held *h)
{
    struct rdti_regions *regions = m->rig.regions;
    const uint32_t what = roll(&m->rng, 6);

    if (!h->is_used) {
        model_alloc(m, h);
    } else if (h->is_freed) {
        if (h->pins > 0 && (what < 3 || h->acks_left == 0)) {
            rdti_regions_release(regions, &h->targets[--h->pins]);
        } else {
            CHECK(rdti_regions_acknowledge(regions, h->index, h->generation));
            h->acks_left--;
        }
        model_settle(h);
    } else if (what == 0 || (what < 3 && h->index != 0)) {
        h->is_freed = true;
        h->acks_left = h->index == 0 ? 0 : roll(&m->rng, 4);
        m->rig.expect_count = h->acks_left;
        rdt_region_free(h->region, count_call, &h->drained);
        model_settle(h);
    } else if (h->index == 0) {
        const struct rdt_remote_region r = export(h->region);

        h->index = r.index;
        h->generation = r.generation;
        for (const struct held *o = m->held; o < m->held + MODEL_SLOTS; o++)
            CHECK(o == h || !o->is_used || o->index != h->index);
    } else if (h->pins < 3) {
        CHECK_OK(rdti_regions_acquire(regions, h->index, h->generation, 0, 0, &h->targets[h->pins],
                                      &err),
                 &err);
        h->pins++;
    }
}

TEST_TIMEOUT(region_quarantine_never_reuses_bytes_too_early, 60)
{
    struct model *m = calloc(1, sizeof(*m));
    uint32_t most = 0;

    CHECK_NOT_NULL(m);
    rig_open(&m->rig);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        m->rng = seed;
        for (int step = 0; step < 20000; step++) {
            model_step(m, &m->held[roll(&m->rng, MODEL_SLOTS)]);
            const uint32_t count = (uint32_t)stats_of(&m->rig).quarantine_count;

            most = count > most ? count : most;
        }
    }
    CHECK_UINT_GE(most, 10); /* or quarantine was never full enough to mean anything */
    m->rig.expect_count = 0;
    for (struct held *h = m->held; h < m->held + MODEL_SLOTS; h++) {
        if (h->is_used && !h->is_freed)
            rdt_region_free(h->region, NULL, NULL);
    }
    rig_close(&m->rig);
    free(m);
}

/* ---- Threads -------------------------------------------------------------------------------- */

/*
 * Peers as the shm transport has them: each looks at the generation table, then writes the bytes in
 * place, and acknowledges a revocation only between writes. The owner meanwhile fills private
 * regions and finds them unchanged: a write that lands in reused bytes would show (and be a race
 * that TSan reports).
 */
enum { PEERS = 3, PUBLISHED = 16, REVOKES_MAX = 4096 };

struct peer {
    struct board *board;
    pthread_t thread;
    uint32_t writes;
    pthread_mutex_t lock; /* guards what follows */
    struct {
        uint32_t index;
        uint32_t generation;
    } revokes[REVOKES_MAX];
    uint32_t revoke_count;
    bool is_over;
};

struct board {
    struct rig rig; /* first: on_revoke's argument points to it */
    struct peer peers[PEERS];
    pthread_mutex_t lock; /* guards `published` */
    struct rdt_remote_region published[PUBLISHED];
};

static void
tell_peers(void *arg, uint32_t index, uint32_t generation)
{
    struct board *board = arg;

    rdti_regions_expect(board->rig.regions, index, generation, PEERS);
    for (int p = 0; p < PEERS; p++) {
        struct peer *peer = &board->peers[p];

        (void)pthread_mutex_lock(&peer->lock);
        CHECK_INT_LT(peer->revoke_count, REVOKES_MAX);
        peer->revokes[peer->revoke_count].index = index;
        peer->revokes[peer->revoke_count++].generation = generation;
        (void)pthread_mutex_unlock(&peer->lock);
    }
}

/* False once the owner has said so and nothing is left to acknowledge. */
static bool
acknowledge_some(struct peer *peer)
{
    struct rdti_regions *regions = peer->board->rig.regions;

    for (;;) {
        (void)pthread_mutex_lock(&peer->lock);
        const bool is_over = peer->is_over;
        const bool has_one = peer->revoke_count > 0;
        uint32_t index = 0;
        uint32_t generation = 0;

        if (has_one) {
            index = peer->revokes[--peer->revoke_count].index;
            generation = peer->revokes[peer->revoke_count].generation;
        }
        (void)pthread_mutex_unlock(&peer->lock);
        if (!has_one)
            return !is_over;
        CHECK(rdti_regions_acknowledge(regions, index, generation));
    }
}

static void *
write_as_peer(void *arg)
{
    struct peer *peer = arg;
    struct board *board = peer->board;
    const uint32_t own = (uint32_t)(peer - board->peers);

    for (uint32_t round = 0; acknowledge_some(peer); round++) {
        (void)pthread_mutex_lock(&board->lock);
        const struct rdt_remote_region r = board->published[round % PUBLISHED];
        (void)pthread_mutex_unlock(&board->lock);
        if (r.index == 0 || generation_seen(&board->rig, r.index) != r.generation)
            continue;
        /* Each peer has a part of the bytes for itself. */
        uint8_t *part = (uint8_t *)(uintptr_t)r.addr + r.len_bytes / PEERS * own;

        for (uint64_t i = 0; i < r.len_bytes / PEERS; i++)
            part[i] = 0xee;
        peer->writes++;
    }
    return NULL;
}

static void
publish(struct board *board, uint32_t slot, const struct rdt_remote_region *remote)
{
    (void)pthread_mutex_lock(&board->lock);
    board->published[slot] = *remote;
    (void)pthread_mutex_unlock(&board->lock);
}

static void
own_regions(struct board *board, uint32_t rounds)
{
    rdt_region *exported[PUBLISHED] = {0};

    for (uint32_t round = 0; round < rounds; round++) {
        const uint32_t slot = round % PUBLISHED;
        const uint64_t len_bytes = 300 + round * 97 % 3000;
        rdt_region *region = new_region(&board->rig, len_bytes);
        uint8_t *addr = rdt_region_addr(region);

        /* Freed, but still published: peers must find out by themselves. */
        rdt_region_free(exported[slot], NULL, NULL);
        memset(addr, 0x11, len_bytes);
        rdt_region *second = new_region(&board->rig, len_bytes);

        memset(rdt_region_addr(second), 0x22, len_bytes);
        for (uint64_t i = 0; i < len_bytes; i++) {
            CHECK(addr[i] == 0x11);
            CHECK(((uint8_t *)rdt_region_addr(second))[i] == 0x22);
        }
        rdt_region_free(second, NULL, NULL);
        exported[slot] = region;
        const struct rdt_remote_region remote = export(region);

        publish(board, slot, &remote);
    }
    for (uint32_t slot = 0; slot < PUBLISHED; slot++)
        rdt_region_free(exported[slot], NULL, NULL);
}

TEST_TIMEOUT(region_quarantine_holds_against_writing_threads, 60)
{
    struct board *board = calloc(1, sizeof(*board));
    uint64_t writes = 0;

    CHECK_NOT_NULL(board);
    rig_open_with(&board->rig, tell_peers);
    CHECK_INT_EQ(pthread_mutex_init(&board->lock, NULL), 0);
    for (int p = 0; p < PEERS; p++) {
        board->peers[p].board = board;
        CHECK_INT_EQ(pthread_mutex_init(&board->peers[p].lock, NULL), 0);
        CHECK_INT_EQ(pthread_create(&board->peers[p].thread, NULL, write_as_peer, &board->peers[p]),
                     0);
    }
    own_regions(board, 3000);
    for (int p = 0; p < PEERS; p++) {
        (void)pthread_mutex_lock(&board->peers[p].lock);
        board->peers[p].is_over = true;
        (void)pthread_mutex_unlock(&board->peers[p].lock);
        CHECK_INT_EQ(pthread_join(board->peers[p].thread, NULL), 0);
        CHECK_INT_EQ(pthread_mutex_destroy(&board->peers[p].lock), 0);
        writes += board->peers[p].writes;
    }
    printf("  %" PRIu64 " writes of peers\n", writes);
    CHECK_UINT_GE(writes, 100);                               /* or nobody was there to disturb */
    CHECK_UINT_EQ(stats_of(&board->rig).quarantine_count, 0); /* all have acknowledged */
    rig_close(&board->rig);
    free(board);
}

/* Targets pinned and released by some threads while others free and allocate. */
struct pinner {
    struct board *board;
    _Atomic bool *is_over;   /* relaxed: only ends the loop */
    _Atomic uint32_t pinned; /* relaxed: a number */
};

static void *
pin_targets(void *arg)
{
    struct pinner *p = arg;

    for (uint32_t round = 0; !atomic_load_explicit(p->is_over, memory_order_relaxed); round++) {
        struct rdti_target target;
        struct rdt_error e;

        (void)pthread_mutex_lock(&p->board->lock);
        const struct rdt_remote_region r = p->board->published[round % PUBLISHED];
        (void)pthread_mutex_unlock(&p->board->lock);
        const rdt_status status =
            rdti_regions_acquire(p->board->rig.regions, r.index, r.generation, 1, 8, &target, &e);

        if (status != RDT_OK) {
            CHECK(status == RDT_ESTALE || (status == RDT_EPROTO && r.index == 0));
            continue;
        }
        for (int i = 0; i < 8; i++) /* the owner's mark, not that of a later owner */
            CHECK_INT_EQ(((uint8_t *)target.addr)[i], 0x11);
        (void)atomic_fetch_add_explicit(&p->pinned, 1, memory_order_relaxed);
        rdti_regions_release(p->board->rig.regions, &target);
    }
    return NULL;
}

TEST_TIMEOUT(region_pins_hold_against_frees, 60)
{
    struct board *board = calloc(1, sizeof(*board));
    _Atomic bool is_over = false;
    struct pinner pinners[2];
    pthread_t threads[2];

    CHECK_NOT_NULL(board);
    rig_open(&board->rig);
    CHECK_INT_EQ(pthread_mutex_init(&board->lock, NULL), 0);
    for (int i = 0; i < 2; i++) {
        pinners[i] = (struct pinner){board, &is_over, 0};
        CHECK_INT_EQ(pthread_create(&threads[i], NULL, pin_targets, &pinners[i]), 0);
    }
    own_regions(board, 5000);
    for (int i = 0; i < 2; i++) /* on a busy machine one may not have had its turn */
        while (atomic_load_explicit(&pinners[i].pinned, memory_order_relaxed) == 0)
            own_regions(board, 500);
    atomic_store_explicit(&is_over, true, memory_order_relaxed);
    for (int i = 0; i < 2; i++)
        CHECK_INT_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_UINT_EQ(stats_of(&board->rig).quarantine_count, 0);
    rig_close(&board->rig);
    free(board);
}

TEST_MAIN()
