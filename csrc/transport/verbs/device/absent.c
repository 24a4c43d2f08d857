/* SPDX-License-Identifier: Apache-2.0
 * Replaces all other files here if infiniband/verbs.h was not found at build time. */
#include "base/error.h"
#include "transport/transport.h"

static rdt_status
absent_open(const struct rdti_host *host, void **state_out, struct rdt_error *err)
{
    (void)host;
    (void)state_out;
    return rdti_error_set(err, RDT_ENOTVIABLE, 0,
                          "this library was built without verbs: infiniband/verbs.h was absent");
}

const struct rdti_transport rdti_transport_verbs = {.name = "verbs",
                                                    .id = RDT_TRANSPORT_VERBS,
                                                    .open = absent_open};
