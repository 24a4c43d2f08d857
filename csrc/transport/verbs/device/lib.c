/* SPDX-License-Identifier: Apache-2.0
 * libibverbs, loaded when a context is opened, so that a machine without it works, too. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "transport/verbs/device/verbs_ops.h"

#define LIBRARY "libibverbs.so.1"

static _Atomic(const struct rdti_verbs_ops *) test_ops;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct rdti_verbs_ops ops;
static char failure[RDT_ERROR_MESSAGE_BYTES]; /* empty: ops is complete */

/* ---- Inline calls of verbs.h ---------------------------------------------------------------- */

static int
lib_call_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
    return ibv_poll_cq(cq, count, wc);
}

static int
lib_call_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    return ibv_req_notify_cq(cq, solicited_only);
}

static int
lib_call_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    return ibv_post_send(qp, wr, bad);
}

static int
lib_call_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    return ibv_post_recv(qp, wr, bad);
}

static int64_t
lib_read_sysfs_counter(const char *device, uint32_t port, const char *name)
{
    char path[256];
    char text[32];

    (void)snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%u/hw_counters/%s", device,
                   port, name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    const ssize_t got = read(fd, text, sizeof(text) - 1);
    const int sys_errno = errno;
    (void)close(fd);
    if (got <= 0)
        return got == 0 ? -EIO : -sys_errno;
    text[got] = '\0';
    return strtoll(text, NULL, 10);
}

/* ---- Loading -------------------------------------------------------------------------------- */

struct symbol {
    const char *name;
    size_t offset;
    int is_optional;
};

#define SYMBOL(field, name) {name, offsetof(struct rdti_verbs_ops, field), 0}

static const struct symbol symbols[] = {
    SYMBOL(get_device_list, "ibv_get_device_list"),
    SYMBOL(free_device_list, "ibv_free_device_list"),
    SYMBOL(get_device_name, "ibv_get_device_name"),
    SYMBOL(open_device, "ibv_open_device"),
    SYMBOL(close_device, "ibv_close_device"),
    SYMBOL(query_device, "ibv_query_device"),
    SYMBOL(query_port, "ibv_query_port"),
    SYMBOL(query_gid_ex, "_ibv_query_gid_ex"),
    SYMBOL(query_pkey, "ibv_query_pkey"),
    SYMBOL(get_async_event, "ibv_get_async_event"),
    SYMBOL(ack_async_event, "ibv_ack_async_event"),
    SYMBOL(event_type_str, "ibv_event_type_str"),
    SYMBOL(wc_status_str, "ibv_wc_status_str"),
    SYMBOL(is_fork_initialized, "ibv_is_fork_initialized"),
    SYMBOL(fork_init, "ibv_fork_init"),
    SYMBOL(alloc_pd, "ibv_alloc_pd"),
    SYMBOL(dealloc_pd, "ibv_dealloc_pd"),
    SYMBOL(reg_mr_iova2, "ibv_reg_mr_iova2"),
    SYMBOL(dereg_mr, "ibv_dereg_mr"),
    SYMBOL(create_comp_channel, "ibv_create_comp_channel"),
    SYMBOL(destroy_comp_channel, "ibv_destroy_comp_channel"),
    SYMBOL(create_cq, "ibv_create_cq"),
    SYMBOL(destroy_cq, "ibv_destroy_cq"),
    SYMBOL(get_cq_event, "ibv_get_cq_event"),
    SYMBOL(ack_cq_events, "ibv_ack_cq_events"),
    SYMBOL(create_qp, "ibv_create_qp"),
    SYMBOL(modify_qp, "ibv_modify_qp"),
    SYMBOL(destroy_qp, "ibv_destroy_qp"),
    {"ibv_query_qp_data_in_order", offsetof(struct rdti_verbs_ops, query_qp_data_in_order), 1},
};

static void
lib_load(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        const char *why = dlerror();
        (void)snprintf(failure, sizeof(failure),
                       "%s cannot be loaded (%s); install libibverbs1 and ibverbs-providers, or "
                       "rdma-core",
                       LIBRARY, why != NULL ? why : "no reason given");
        return;
    }
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *at = dlsym(library, symbols[i].name);

        if (at == NULL && !symbols[i].is_optional) {
            (void)snprintf(failure, sizeof(failure),
                           "%s has no %s: it is older than rdma-core 35; install a newer one",
                           LIBRARY, symbols[i].name);
            (void)dlclose(library);
            return;
        }
        memcpy((char *)&ops + symbols[i].offset, &at, sizeof(at)); /* C has no cast for it */
    }
    ops.poll_cq = lib_call_poll_cq;
    ops.req_notify_cq = lib_call_req_notify_cq;
    ops.post_send = lib_call_post_send;
    ops.post_recv = lib_call_post_recv;
    ops.read_counter = lib_read_sysfs_counter;
}

/* Loading the library and its dependencies takes milliseconds. A kernel with RDMA support has these
 * folders, the first one even without a device. */
static bool
lib_has_kernel_support(void)
{
    return access("/sys/class/infiniband", F_OK) == 0 ||
           access("/sys/class/infiniband_verbs", F_OK) == 0;
}

rdt_status
rdti_verbs_load(const struct rdti_verbs_ops **out, struct rdt_error *err)
{
    /* acquire: pairs with rdti_verbs_use_ops() */
    const struct rdti_verbs_ops *chosen = atomic_load_explicit(&test_ops, memory_order_acquire);

    if (chosen == NULL) {
        if (!lib_has_kernel_support())
            return rdti_error_set(err, RDT_ENOTVIABLE, 0,
                                  "the kernel's RDMA support is not there: neither "
                                  "/sys/class/infiniband nor /sys/class/infiniband_verbs is");
        (void)pthread_once(&once, lib_load);
        if (failure[0] != '\0')
            return rdti_error_set(err, RDT_ENOTVIABLE, 0, "%s", failure);
        chosen = &ops;
    }
    *out = chosen;
    return RDT_OK;
}

void
rdti_verbs_use_ops(const struct rdti_verbs_ops *chosen)
{
    /* release: the table is complete */
    atomic_store_explicit(&test_ops, chosen, memory_order_release);
}
