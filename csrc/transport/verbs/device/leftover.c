/* SPDX-License-Identifier: Apache-2.0 Objects that a device refuses to destroy. Callers cannot do
 * anything about that: it is logged, the library's own memory for the object is freed, and
 * destroying it is retried before the device is closed, which ends it in the kernel in any case. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "transport/verbs/device/device.h"

/* In the order in which they must be destroyed. */
enum leftover_kind { LEFT_QP = 0, LEFT_CQ = 1, LEFT_MR = 2, LEFT_KINDS = 3 };

static const char *const calls[LEFT_KINDS] = {"ibv_destroy_qp", "ibv_destroy_cq", "ibv_dereg_mr"};

struct leftover {
    struct rdti_list link;
    enum leftover_kind kind;
    void *object;
};

static bool
leftover_destroy(const struct rdti_verbs_nic *nic, enum leftover_kind kind, void *object)
{
    const struct rdti_verbs_ops *ops = nic->verbs->ops;
    const int failed = kind == LEFT_QP   ? ops->destroy_qp(object)
                       : kind == LEFT_CQ ? ops->destroy_cq(object)
                                         : ops->dereg_mr(object);
    const int sys_errno = failed > 0 ? failed : errno;

    if (failed != 0)
        rdti_log(RDT_LOG_ERROR, "verbs: %s on device %s port %u: %s (errno %d)", calls[kind],
                 nic->name, nic->port, strerror(sys_errno), sys_errno);
    return failed == 0;
}

static void
leftover_destroy_or_keep(struct rdti_verbs_nic *nic, enum leftover_kind kind, void *object)
{
    if (object == NULL || leftover_destroy(nic, kind, object))
        return;
    struct leftover *left = calloc(1, sizeof(*left));
    if (left == NULL) { /* closing the device ends it */
        rdti_log(RDT_LOG_ERROR, "verbs: no memory to try %s again later", calls[kind]);
        return;
    }
    left->kind = kind;
    left->object = object;
    (void)pthread_mutex_lock(&nic->left_lock);
    rdti_list_append(&nic->leftovers, &left->link);
    (void)pthread_mutex_unlock(&nic->left_lock);
}

void
rdti_verbs_deregister(struct rdti_verbs_nic *nic, struct ibv_mr *mr)
{
    if (mr == NULL)
        return;
    const uint64_t begin_ns = rdti_now_ns();
    leftover_destroy_or_keep(nic, LEFT_MR, mr);
    rdti_count(&nic->verbs->host->counters->registration_ns, rdti_now_ns() - begin_ns);
}

void
rdti_verbs_destroy_qp(struct rdti_verbs_nic *nic, struct ibv_qp *qp)
{
    leftover_destroy_or_keep(nic, LEFT_QP, qp);
}

void
rdti_verbs_destroy_cq(struct rdti_verbs_nic *nic, struct ibv_cq *cq)
{
    leftover_destroy_or_keep(nic, LEFT_CQ, cq);
}

void
rdti_verbs_free_leftovers(struct rdti_verbs_nic *nic)
{
    struct rdti_list left;
    struct rdti_list *node;

    rdti_list_init(&left);
    (void)pthread_mutex_lock(&nic->left_lock);
    rdti_list_splice(&left, &nic->leftovers);
    (void)pthread_mutex_unlock(&nic->left_lock);
    for (enum leftover_kind kind = LEFT_QP; kind < LEFT_KINDS; kind++)
        for (node = left.next; node != &left; node = node->next) {
            const struct leftover *at = RDTI_CONTAINER(node, struct leftover, link);
            if (at->kind == kind)
                (void)leftover_destroy(nic, kind, at->object);
        }
    while ((node = rdti_list_take_first(&left)) != NULL)
        free(RDTI_CONTAINER(node, struct leftover, link));
}
