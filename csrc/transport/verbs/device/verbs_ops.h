/* SPDX-License-Identifier: Apache-2.0
 * The table of all libibverbs calls that this transport makes: filled from the library found at run
 * time, or by tests/sim, which simulates devices in memory. Each entry has the contract of the call
 * of the same name; those of the data path replace the inline calls of verbs.h. */
#ifndef RDTI_VERBS_DEVICE_OPS_H
#define RDTI_VERBS_DEVICE_OPS_H

#include <infiniband/verbs.h>
#include <stdint.h>

#include "rdmatensor.h"

struct rdti_verbs_ops {
    struct ibv_device **(*get_device_list)(int *count);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device);
    int (*close_device)(struct ibv_context *context);
    int (*query_device)(struct ibv_context *context, struct ibv_device_attr *attr);
    int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr);
    int (*query_gid_ex)(struct ibv_context *context, uint32_t port, uint32_t index,
                        struct ibv_gid_entry *entry, uint32_t flags, size_t entry_bytes);
    int (*query_pkey)(struct ibv_context *context, uint8_t port, int index, __be16 *pkey);
    int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *event);
    void (*ack_async_event)(struct ibv_async_event *event);
    const char *(*event_type_str)(enum ibv_event_type event);
    const char *(*wc_status_str)(enum ibv_wc_status status);
    enum ibv_fork_status (*is_fork_initialized)(void);
    int (*fork_init)(void);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
    int (*dealloc_pd)(struct ibv_pd *pd);
    struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *pd, void *addr, size_t len_bytes, uint64_t iova,
                                   unsigned int access);
    int (*dereg_mr)(struct ibv_mr *mr);
    struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context);
    int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
    struct ibv_cq *(*create_cq)(struct ibv_context *context, int entries, void *cq_context,
                                struct ibv_comp_channel *channel, int vector);
    int (*destroy_cq)(struct ibv_cq *cq);
    int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
    void (*ack_cq_events)(struct ibv_cq *cq, unsigned int count);
    struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
    int (*destroy_qp)(struct ibv_qp *qp);
    /* NULL: the library is too old to have it, so the answer is no. */
    int (*query_qp_data_in_order)(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags);

    int (*poll_cq)(struct ibv_cq *cq, int count, struct ibv_wc *wc);
    int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
    int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
    int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

    /* Not in libibverbs: a port's counter by its name in hw_counters; negative errno. */
    int64_t (*read_counter)(const char *device, uint32_t port, const char *name);
};

/*
 * Load the library, once per process; *out lives as long as the process.
 *   RDT_ENOTVIABLE it is missing, or lacks a call: which one, and what to install
 */
rdt_status rdti_verbs_load(const struct rdti_verbs_ops **out, struct rdt_error *err);

/* For tests: contexts opened from now on use this table; NULL: the library again. */
void rdti_verbs_use_ops(const struct rdti_verbs_ops *ops);

#endif
