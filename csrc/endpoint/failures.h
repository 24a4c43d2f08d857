/* SPDX-License-Identifier: Apache-2.0
 * Processes that are known to be dead, and peers that were refused for good. */
#ifndef RDTI_ENDPOINT_FAILURES_H
#define RDTI_ENDPOINT_FAILURES_H

#include "process/process.h"

/* [driver] Remember a death and tell every endpoint but `source` (may be NULL) and every group.
 * First news wins. */
void rdti_context_announce_death(rdt_context *ctx, const struct rdti_obituary *news,
                                 const rdt_endpoint *source);
/* [driver] What an endpoint that just became ready may not have heard. */
void rdti_context_tell_obituaries(rdt_context *ctx, rdt_endpoint *ep);
/* [driver] The obituary of a process, or NULL. */
const struct rdti_obituary *rdti_context_find_obituary(const rdt_context *ctx,
                                                       const uint8_t uuid[RDT_UUID_BYTES]);
/* [driver] Remember why a peer was refused: it may be gone, with its error, before we want it. */
void rdti_context_note_rejection(rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES],
                                 const struct rdt_error *err);
/* [driver] A path reaches it: counts where one did before. */
void rdti_context_note_met(rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES]);
/* [driver] Why it was, or NULL. */
const struct rdt_error *rdti_context_find_rejection(const rdt_context *ctx,
                                                    const uint8_t uuid[RDT_UUID_BYTES]);

#endif
