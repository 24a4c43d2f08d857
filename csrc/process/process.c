/* SPDX-License-Identifier: Apache-2.0
 * Queries about the process's context that all folders use. */
#include "process/process.h"

#include <string.h>

#include "base/error.h"
#include "base/system/fork.h"

rdt_status
rdti_context_check(const rdt_context *ctx, const char *call, struct rdt_error *err)
{
    if (ctx == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s: the context is NULL", call);
    if (rdti_in_forked_child())
        return rdti_error_set(err, RDT_EFORKED, 0,
                              "%s: this is a forked child; only its parent may use the context: "
                              "spawn the process instead, or keep rdmatensor out of it",
                              call);
    return RDT_OK;
}

struct rdti_job *
rdti_context_find_job(rdt_context *ctx, const char *job_id)
{
    for (struct rdti_list *node = ctx->jobs.next; node != &ctx->jobs; node = node->next) {
        struct rdti_job *job = RDTI_CONTAINER(node, struct rdti_job, link);
        if (strcmp(job->job_id, job_id) == 0)
            return job;
    }
    return NULL;
}
