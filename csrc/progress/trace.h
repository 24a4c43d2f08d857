/* SPDX-License-Identifier: Apache-2.0
 * A ring of the most recent transfers: name, peer, time and result of each.
 *
 * Off until rdt_context_trace_start(): until then a transfer costs one load. Threads: any; an entry
 * is locked for the few instructions that fill or copy it.
 */
#ifndef RDTI_PROGRESS_TRACE_H
#define RDTI_PROGRESS_TRACE_H

#include <stdint.h>

#include "rdmatensor.h"

struct rdti_trace;

/* Room for `capacity` transfers, at least 1; NULL without memory. The caller destroys it after the
 * last call that traces. */
struct rdti_trace *rdti_trace_create(uint32_t capacity);
void rdti_trace_destroy(struct rdti_trace *trace);

/* `name` is a literal. Returns the sequence number for rdti_trace_end(), from 1 on. */
uint64_t rdti_trace_begin(struct rdti_trace *trace, const char *name, int32_t peer_rank,
                          uint64_t len_bytes);
/* Does nothing if a later transfer has taken the entry. */
void rdti_trace_end(struct rdti_trace *trace, uint64_t sequence, rdt_status status,
                    uint64_t len_bytes);

/* As rdt_context_trace_read(). */
uint32_t rdti_trace_read(struct rdti_trace *trace, uint64_t first, struct rdt_trace_event *events,
                         uint32_t cap, uint64_t *next_out);

/* As rdt_context_trace_histogram(). */
rdt_status rdti_trace_histogram(const struct rdti_trace *trace, uint32_t index,
                                struct rdt_trace_histogram *out);

#endif
