/* SPDX-License-Identifier: Apache-2.0
 * Processes that are known to be dead, and peers that were refused permanently. */
#ifndef RDTI_ENDPOINT_FAILURES_H
#define RDTI_ENDPOINT_FAILURES_H

#include "process/process.h"

/* [driver] Remembers a death and announces it to every endpoint but `source` (may be NULL) and
 * every group. First news wins. */
void rdti_context_announce_death(rdt_context *ctx, const struct rdti_obituary *news,
                                 const rdt_endpoint *source);
/* [driver] Sends the known deaths to an endpoint that just became ready. */
void rdti_context_tell_obituaries(rdt_context *ctx, rdt_endpoint *ep);
/* [driver] The obituary of a process, or NULL. */
const struct rdti_obituary *rdti_context_find_obituary(const rdt_context *ctx,
                                                       const uint8_t uuid[RDT_UUID_BYTES]);
/* [driver] Remembers why a peer was refused: the peer may be gone, with its error, before it is
 * opened here. */
void rdti_context_note_rejection(rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES],
                                 const struct rdt_error *err);
/* [driver] A path reaches this peer: counts a reconnection if one did before. */
void rdti_context_note_met(rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES]);
/* [driver] Why the peer was refused, or NULL. */
const struct rdt_error *rdti_context_find_rejection(const rdt_context *ctx,
                                                    const uint8_t uuid[RDT_UUID_BYTES]);

#endif
