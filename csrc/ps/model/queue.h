/* SPDX-License-Identifier: Apache-2.0
 * A queue of chunks of samples that workers lease from server 0. A lease ends when its worker asks
 * for the next one, or leaves after the chunk's step: then all servers have applied the step. The
 * leases of a worker that dies go to others, and a server that had applied the step drops its
 * repetition. Pure: no threads. */
#ifndef RDTI_PS_MODEL_QUEUE_H
#define RDTI_PS_MODEL_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor_ps.h"

struct rdti_ps_queue {
    uint64_t chunks;
    uint64_t room; /* chunks that there is memory for */
    bool is_open;  /* more may follow */
    uint64_t done;
    uint64_t applied;  /* on this server */
    uint64_t next;     /* all before it are leased or done, but for those that came back */
    uint64_t returned; /* chunks before next that are free */
    /* NULL once all chunks are done, or applied, unless it is or was open. */
    uint32_t *holders;   /* of each chunk: RDTI_PS_CHUNK_*, or the worker; on server 0 */
    uint8_t *is_applied; /* of each chunk, on this server */
    uint8_t *saved;      /* a copy of it for a checkpoint, or NULL */
    uint64_t saved_chunks;
};
#define RDTI_PS_CHUNK_FREE UINT32_MAX
#define RDTI_PS_CHUNK_DONE (UINT32_MAX - 1)

/* RDT_EINVAL: more than 2^28 chunks. RDT_PS_CHUNKS_OPEN: none, and open. */
rdt_status rdti_ps_queue_init(struct rdti_ps_queue *queue, uint64_t chunks, struct rdt_error *err);
/* An open queue gets more chunks; is_last: it is open no more. RDT_EINVAL: it is not open, or a
 * wrong number of them; RDT_ENOMEM. These change nothing. */
rdt_status rdti_ps_queue_extend(struct rdti_ps_queue *queue, uint64_t chunks, bool is_last,
                                struct rdt_error *err);
void rdti_ps_queue_free(struct rdti_ps_queue *queue);
/* The first free chunk, for this worker; RDT_PS_CHUNK_NONE: none is free now. */
uint64_t rdti_ps_queue_lease(struct rdti_ps_queue *queue, uint32_t worker);
/* The chunk's step is applied on this server. False: it was before. */
bool rdti_ps_queue_apply(struct rdti_ps_queue *queue, uint64_t chunk);
/* The other replica of server 0 has given this chunk to the worker. */
void rdti_ps_queue_take(struct rdti_ps_queue *queue, uint64_t chunk, uint32_t worker);
/* The chunk is done, if this worker holds it. */
void rdti_ps_queue_confirm(struct rdti_ps_queue *queue, uint64_t chunk, uint32_t worker);
/* The chunk is free again, if this worker holds it. */
void rdti_ps_queue_give_back(struct rdti_ps_queue *queue, uint64_t chunk, uint32_t worker);
/* All leases of the worker come back. */
void rdti_ps_queue_return(struct rdti_ps_queue *queue, uint32_t worker);
/* Whether this worker holds the chunk. */
static inline bool
rdti_ps_queue_is_held(const struct rdti_ps_queue *queue, uint64_t chunk, uint32_t worker)
{
    return queue->holders != NULL && chunk < queue->chunks && queue->holders[chunk] == worker;
}
/* Of each chunk whether it was applied. */
void rdti_ps_queue_save(const struct rdti_ps_queue *queue, uint8_t *is_applied);
/* Begin with these chunks applied, on all servers, and none leased. */
void rdti_ps_queue_restore(struct rdti_ps_queue *queue, const uint8_t *is_applied);
static inline bool
rdti_ps_queue_is_over(const struct rdti_ps_queue *queue)
{
    return !queue->is_open && queue->done == queue->chunks;
}

#endif
