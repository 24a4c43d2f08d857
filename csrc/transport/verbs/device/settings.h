/* SPDX-License-Identifier: Apache-2.0
 * Settings of verbs from the environment, read when a context is opened. */
#ifndef RDTI_VERBS_DEVICE_SETTINGS_H
#define RDTI_VERBS_DEVICE_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"
#include "transport/verbs/device/verbs_ops.h"

#define RDTI_VERBS_LIST_BYTES 256

enum rdti_verbs_notify { RDTI_VERBS_IMM = 0, RDTI_VERBS_FLAG = 1, RDTI_VERBS_AUTO = 2 };

struct rdti_verbs_settings {
    char devices[RDTI_VERBS_LIST_BYTES]; /* RDMATENSOR_VERBS_DEVICES: "mlx5_0,rxe1:1"; "": all */
    char gid_indices[RDTI_VERBS_LIST_BYTES]; /* RDMATENSOR_VERBS_GID_INDEX: "3", "rxe0=1,rxe1=3" */
    uint32_t qp_count;                       /* RDMATENSOR_VERBS_QPS: per port and peer */
    uint32_t max_links;                      /* RDMATENSOR_VERBS_LINKS: ports used for one peer */
    uint32_t mtu_bytes;                      /* RDMATENSOR_VERBS_MTU; 0: the smaller active one */
    int32_t pkey_index; /* RDMATENSOR_VERBS_PKEY_INDEX: in the first port's table; -1: unset */
    /* These five go into the offer, so that both directions use them: RDTI_VERBS_UNSET if unset. */
    uint16_t pkey;                 /* RDMATENSOR_VERBS_PKEY; 0: unset */
    uint8_t timeout;               /* RDMATENSOR_VERBS_TIMEOUT: 4.096 us * 2^n */
    uint8_t retry;                 /* RDMATENSOR_VERBS_RETRY */
    uint8_t service_level;         /* RDMATENSOR_VERBS_SL */
    uint8_t traffic_class;         /* RDMATENSOR_VERBS_TC */
    enum rdti_verbs_notify notify; /* RDMATENSOR_VERBS_NOTIFY: imm, flag or auto */
    bool is_flag_unsafe; /* RDMATENSOR_VERBS_FLAG_UNSAFE: flags without the device's guarantee */
};

/* RDT_ENOTVIABLE, naming variable, value and allowed values. */
rdt_status rdti_verbs_read_settings(struct rdti_verbs_settings *out, struct rdt_error *err);
/* Every device and port that a list names must exist. RDT_ENOTVIABLE, naming variable, value and
 * existing devices. */
rdt_status rdti_verbs_check_names(const struct rdti_verbs_settings *settings,
                                  const struct rdti_verbs_ops *ops, struct ibv_device **list,
                                  int count, struct rdt_error *err);
rdt_status rdti_verbs_check_ports(const struct rdti_verbs_settings *settings, const char *device,
                                  uint32_t port_count, struct rdt_error *err);
/* Whether a port may be used; a device named twice with two ports is two ports. */
bool rdti_verbs_is_wanted(const struct rdti_verbs_settings *settings, const char *device,
                          uint32_t port);
/* The configured GID index of a device, or -1. */
int32_t rdti_verbs_wanted_gid(const struct rdti_verbs_settings *settings, const char *device);

#endif
