/* SPDX-License-Identifier: Apache-2.0
 * Set-up and end of a lane: the inbound ring, the offer, the peer's half. */
#include "transport/shm/lane.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/system/cpu.h"
#include "base/crypto.h"
#include "base/error.h"
#include "base/memory/memfd.h"
#include "transport/shm/offer.h"

static_assert(sizeof(struct rdti_doorbell) <= SHM_DOORBELL_BYTES, "the doorbell's page");

void
rdti_shm_lock(pthread_mutex_t *lock)
{
    for (int i = 0; i < SHM_LOCK_TRIES; i++) {
        if (pthread_mutex_trylock(lock) == 0)
            return;
        rdti_cpu_relax();
    }
    (void)pthread_mutex_lock(lock); /* cannot fail: a plain mutex that this thread does not hold */
}

void
rdti_shm_unlock(pthread_mutex_t *lock)
{
    (void)pthread_mutex_unlock(lock);
}

rdt_status
rdti_shm_viable(struct rdt_error *err)
{
    struct rdt_error why;
    void *addr = NULL;
    int fd = -1;

    rdt_status status = rdti_memfd_create_sealed("rdmatensor-probe", SHM_RING_BYTES, 0, &fd, &why);
    if (status == RDT_OK) {
        status = rdti_memfd_map(fd, "probe", SHM_RING_BYTES, PROT_READ | PROT_WRITE, &addr, &why);
        if (status == RDT_OK)
            (void)munmap(addr, SHM_RING_BYTES);
        (void)close(fd);
    }
    if (status == RDT_OK)
        return RDT_OK;
    return rdti_error_set(err, RDT_ENOTVIABLE, 0, "shm needs sealed memfds: %s", why.message);
}

static rdt_status
shm_lane_make_ring(struct shm_lane *l, struct rdt_error *err)
{
    void *addr;

    rdt_status status =
        rdti_memfd_create_sealed("rdmatensor-ring", SHM_RING_BYTES, 0, &l->ring_fd, err);
    if (status != RDT_OK)
        return status;
    status = rdti_memfd_map(l->ring_fd, "ring", SHM_RING_BYTES, PROT_READ | PROT_WRITE, &addr, err);
    if (status != RDT_OK) {
        (void)close(l->ring_fd);
        return status;
    }
    l->ring = addr; /* zero bytes are an empty ring */
    return RDT_OK;
}

rdt_status
rdti_shm_make_offer(void *state, const struct rdti_lane_args *args, struct rdti_lane **out,
                    struct rdti_offer *offer, struct rdt_error *err)
{
    struct shm_state *s = state;
    struct shm_lane *l = aligned_alloc(SHM_LINE_BYTES, sizeof(*l));

    if (l == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "shm lane: %zu bytes", sizeof(*l));
    memset(l, 0, sizeof(*l));
    l->base.transport = &rdti_transport_shm;
    l->state = s;
    l->peer_rank = args->peer_rank;
    l->event_fd = -1;
    rdti_list_init(&l->queue);
    rdt_status status = rdti_random_bytes(l->nonce, sizeof(l->nonce), err);
    if (status != RDT_OK)
        goto err_free;
    status = shm_lane_make_ring(l, err);
    if (status != RDT_OK)
        goto err_free;
    (void)pthread_mutex_init(&l->tx_lock, NULL); /* cannot fail without attributes */
    (void)pthread_mutex_init(&l->read_lock, NULL);
    rdti_list_append(&s->lanes, &l->node);

    struct shm_offer ours = {.pid = (uint32_t)getpid(),
                             .nonce_addr = (uint64_t)(uintptr_t)l->nonce};
    memcpy(ours.nonce, l->nonce, sizeof(ours.nonce));
    rdti_shm_offer_encode(&ours, offer);
    offer->fds[SHM_FD_RING] = l->ring_fd;
    offer->fds[SHM_FD_DOORBELL] = s->host->doorbell_fd;
    offer->fds[SHM_FD_EVENT] = s->host->event_fd;
    offer->fds[SHM_FD_GENERATIONS] = s->host->generation_fd;
    offer->fd_count = SHM_FD_COUNT;
    *out = &l->base;
    return RDT_OK;

err_free:
    free(l);
    return status;
}

/* What connect() has mapped so far; NULL if not mapped. */
struct peer_half {
    void *ring;
    void *bell;
    void *generations;
    uint64_t generation_bytes;
};

static void
shm_lane_unmap_half(const struct peer_half *half)
{
    if (half->ring != NULL)
        (void)munmap(half->ring, SHM_RING_BYTES);
    if (half->bell != NULL)
        (void)munmap(half->bell, SHM_DOORBELL_BYTES);
    if (half->generations != NULL)
        (void)munmap(half->generations, half->generation_bytes);
}

/* Checks that fd is a nonblocking eventfd. RDT_EPROTO, or RDT_ENOTVIABLE without /proc. */
static rdt_status
shm_lane_check_eventfd(int fd, int32_t peer_rank, struct rdt_error *err)
{
    static const char want[] = "anon_inode:[eventfd]";
    char path[64];
    char target[64];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    const ssize_t len = readlink(path, target, sizeof(target) - 1);
    if (len < 0)
        return rdti_error_set(err, RDT_ENOTVIABLE, errno,
                              "readlink(%s), to see what descriptor the peer gave", path);
    target[len] = '\0';
    const int flags = fcntl(fd, F_GETFL);
    if (strcmp(target, want) != 0 || flags < 0 || (flags & O_NONBLOCK) == 0)
        return rdti_error_set_rank(err, RDT_EPROTO, peer_rank,
                                   "offer: event descriptor is %s with flags 0x%x, want a "
                                   "non-blocking eventfd",
                                   target, (unsigned)flags);
    return RDT_OK;
}

/* Checks a memfd of the peer and maps all of it, up to most_bytes. *len_out (may be NULL) is the
 * mapped length. */
static rdt_status
shm_lane_map_memfd(int fd, const struct rdti_memfd_want *want, uint64_t most_bytes, int prot,
                   void **out, uint64_t *len_out, struct rdt_error *err)
{
    struct rdti_memfd_found found;

    rdt_status status = rdti_memfd_check(fd, want, &found, err);
    if (status != RDT_OK)
        return status;
    const uint64_t len_bytes = found.len_bytes < most_bytes ? found.len_bytes : most_bytes;
    status = rdti_memfd_map(fd, want->what, len_bytes, prot, out, err);
    if (status == RDT_OK && len_out != NULL)
        *len_out = len_bytes;
    return status;
}

/* On failure *half has what the caller must unmap. */
static rdt_status
shm_lane_map_half(const struct rdti_offer *offer, int32_t peer_rank, struct peer_half *half,
                  struct rdt_error *err)
{
    const int rw = PROT_READ | PROT_WRITE;
    const int *fds = offer->fds;
    const struct rdti_memfd_want ring = {.what = "shm offer: ring",
                                         .peer_rank = peer_rank,
                                         .min_bytes = SHM_RING_BYTES,
                                         .max_bytes = SHM_RING_BYTES};
    const struct rdti_memfd_want bell = {.what = "shm offer: doorbell",
                                         .peer_rank = peer_rank,
                                         .min_bytes = SHM_DOORBELL_BYTES,
                                         .max_bytes = UINT64_MAX};
    const struct rdti_memfd_want generations = {.what = "shm offer: generation table",
                                                .peer_rank = peer_rank,
                                                .min_bytes = sizeof(uint32_t),
                                                .max_bytes = UINT64_MAX};

    rdt_status status =
        shm_lane_map_memfd(fds[SHM_FD_RING], &ring, SHM_RING_BYTES, rw, &half->ring, NULL, err);
    if (status == RDT_OK)
        status = shm_lane_map_memfd(fds[SHM_FD_DOORBELL], &bell, SHM_DOORBELL_BYTES, rw,
                                    &half->bell, NULL, err);
    if (status == RDT_OK)
        status = shm_lane_check_eventfd(fds[SHM_FD_EVENT], peer_rank, err);
    if (status == RDT_OK)
        status =
            shm_lane_map_memfd(fds[SHM_FD_GENERATIONS], &generations, SHM_GENERATIONS_MAX_BYTES,
                               PROT_READ, &half->generations, &half->generation_bytes, err);
    return status;
}

static void
shm_lane_close_fds(struct rdti_offer *offer)
{
    for (uint32_t i = 0; i < offer->fd_count && i < RDTI_OFFER_MAX_FDS; i++) {
        if (offer->fds[i] >= 0)
            (void)close(offer->fds[i]);
        offer->fds[i] = -1;
    }
}

rdt_status
rdti_shm_connect(struct rdti_lane *lane, struct rdti_offer *peer, struct rdt_error *err)
{
    struct shm_lane *l = shm_lane_of(lane);
    struct peer_half half = {0};
    struct shm_offer offer;
    rdt_status status;

    if (l->is_connected) {
        shm_lane_close_fds(peer);
        return rdti_error_set_rank(err, RDT_EPROTO, l->peer_rank, "shm: a second offer");
    }
    status = rdti_shm_offer_decode(peer, l->peer_rank, &offer, err);
    if (status == RDT_OK)
        status = shm_lane_map_half(peer, l->peer_rank, &half, err);
    if (status != RDT_OK) {
        shm_lane_unmap_half(&half);
        shm_lane_close_fds(peer);
        return status;
    }
    l->event_fd = peer->fds[SHM_FD_EVENT];
    peer->fds[SHM_FD_EVENT] = -1;
    shm_lane_close_fds(peer);
    l->peer_ring = half.ring;
    l->bell = half.bell;
    l->generations = half.generations;
    l->generation_count = (uint32_t)(half.generation_bytes / sizeof(uint32_t));
    l->process.pid = offer.pid;
    l->process.nonce_addr = offer.nonce_addr;
    memcpy(l->process.nonce, offer.nonce, sizeof(offer.nonce));
    rdti_shm_process_probe(&l->process);
    l->is_connected = true;
    l->state->host->on_ready(l->state->host->core, lane);
    return RDT_OK;
}

void
rdti_shm_lane_free(struct shm_lane *l)
{
    const struct peer_half half = {.ring = l->peer_ring,
                                   .bell = l->bell,
                                   .generations = (void *)(uintptr_t)l->generations,
                                   .generation_bytes = l->generation_count * sizeof(uint32_t)};

    rdti_list_remove(&l->node);
    shm_lane_unmap_half(&half);
    rdti_shm_segments_fini(&l->segments);
    if (l->event_fd >= 0)
        (void)close(l->event_fd);
    (void)munmap(l->ring, SHM_RING_BYTES);
    (void)close(l->ring_fd);
    (void)pthread_mutex_destroy(&l->tx_lock);
    (void)pthread_mutex_destroy(&l->read_lock);
    free(l);
}

void
rdti_shm_fail_lane(struct rdti_lane *lane, const struct rdt_error *err)
{
    struct shm_lane *l = shm_lane_of(lane);

    l->is_error_reported = true; /* poll() then takes no arrivals and reports nothing */
    rdti_shm_fail(l, err);
    rdti_shm_drain(l, err);
}

void
rdti_shm_close_lane(struct rdti_lane *lane, const struct rdt_error *err)
{
    struct shm_lane *l = shm_lane_of(lane);
    struct shm_state *s = l->state;

    rdti_shm_fail(l, err);
    rdti_shm_drain(l, err);
    l->is_closed = true;
    if (!s->is_polling) {
        rdti_shm_lane_free(l);
        return;
    }
    /* Called from a callback of poll(), which still uses this lane or one next to it. */
    rdti_list_remove(&l->node);
    rdti_list_append(&s->closed, &l->node);
}
