/* SPDX-License-Identifier: Apache-2.0
 * The address of a peer's region in this process, and whether it may still be accessed. */
#include "base/error.h"
#include "base/range.h"
#include "transport/shm/attempt.h"

enum shm_progress
rdti_shm_check_generation(const struct shm_lane *l, const struct rdt_remote_region *remote,
                          struct shm_attempt *attempt)
{
    if (remote->index >= l->generation_count) {
        attempt->status =
            rdti_error_set_rank(attempt->err, RDT_ESTALE, l->peer_rank,
                                "region %u is not among the %u regions of rank %d", remote->index,
                                l->generation_count, (int)l->peer_rank);
        return SHM_REFUSED;
    }
    /* seq_cst: pairs with the owner's store when it exports the region or ends its generation. It
     * comes after the core's count of this thread: if the core saw no count, this load sees the end
     * of the generation. */
    const uint32_t generation =
        atomic_load_explicit(&l->generations[remote->index], memory_order_seq_cst);
    if (generation == remote->generation)
        return SHM_DONE;
    attempt->status =
        rdti_error_set_rank(attempt->err, RDT_ESTALE, l->peer_rank,
                            "region %u of rank %d was freed by its owner: generation %u, now %u",
                            remote->index, (int)l->peer_rank, remote->generation, generation);
    return SHM_REFUSED;
}

/* Whether an attempt may use the segment as it is mapped. */
static bool
reach_may_use(const struct shm_segment *segment, const struct shm_attempt *attempt)
{
    return segment->state == SHM_SEGMENT_MAPPED ||
           (segment->state == SHM_SEGMENT_READ_ONLY && attempt->is_for_reading);
}

/* For a segment that is not mapped. Its first use requests it from the peer. */
static enum shm_progress
reach_ask_segment(struct shm_lane *l, const struct rdt_remote_region *remote,
                  struct shm_attempt *attempt)
{
    struct shm_segment *segment;

    attempt->status = rdti_shm_segments_get(&l->segments, remote->segment, &segment, attempt->err);
    if (attempt->status != RDT_OK)
        return SHM_REFUSED;
    if (segment->state == SHM_SEGMENT_REFUSED) {
        attempt->status =
            rdti_error_set(attempt->err, RDT_ESTALE, 0, "the peer has no segment %u (region %u)",
                           remote->segment, remote->index);
        return SHM_REFUSED;
    }
    if (segment->state == SHM_SEGMENT_READ_ONLY) {
        attempt->status =
            rdti_error_set(attempt->err, RDT_EINVAL, 0, "region %u of rank %d is for reading only",
                           remote->index, (int)l->peer_rank);
        return SHM_REFUSED;
    }
    if (segment->state == SHM_SEGMENT_UNKNOWN) {
        segment->state = SHM_SEGMENT_ASKED;
        attempt->asks_segment = true;
        attempt->segment = remote->segment;
    }
    return SHM_NEEDS_SEGMENT;
}

enum shm_progress
rdti_shm_reach(struct shm_lane *l, const struct rdt_remote_region *remote,
               const struct rdt_block *blocks, uint32_t count, struct shm_attempt *attempt,
               uint8_t **base_out)
{
    struct shm_segment *segment = shm_segments_find(&l->segments, remote->segment);

    if (rdti_shm_check_generation(l, remote, attempt) != SHM_DONE)
        return SHM_REFUSED;
    if (segment == NULL || !reach_may_use(segment, attempt))
        return reach_ask_segment(l, remote, attempt);
    if (!rdti_range_ok(remote->segment_off, remote->len_bytes, segment->len_bytes)) {
        attempt->status =
            rdti_error_set(attempt->err, RDT_ERANGE, 0,
                           "region %u (%llu bytes at %llu) leaves segment %u of %llu bytes",
                           remote->index, (unsigned long long)remote->len_bytes,
                           (unsigned long long)remote->segment_off, remote->segment,
                           (unsigned long long)segment->len_bytes);
        return SHM_REFUSED;
    }
    for (uint32_t i = 0; i < count; i++) {
        attempt->status = shm_segment_touch(segment, remote->segment_off + blocks[i].dst_off,
                                            blocks[i].len_bytes, attempt->err);
        if (attempt->status != RDT_OK)
            return SHM_FAILED;
    }
    *base_out = segment->addr + remote->segment_off;
    return SHM_DONE;
}
