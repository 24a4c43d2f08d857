/* SPDX-License-Identifier: Apache-2.0
 * The GIDs of a port (gid.c). */
#ifndef RDTI_VERBS_DEVICE_GID_H
#define RDTI_VERBS_DEVICE_GID_H

#include <string.h>

#include "transport/verbs/device/device.h"

/* Whether an IPv4 address is mapped into it. */
static inline bool
rdti_verbs_is_mapped(const uint8_t raw[16])
{
    static const uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

    return memcmp(raw, prefix, sizeof(prefix)) == 0;
}

static inline bool
rdti_verbs_is_link_local(const uint8_t raw[16])
{
    return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80;
}

/* Fill gids, best first, and score. RDT_ENOTVIABLE if the port has no suitable one. */
rdt_status rdti_verbs_find_gids(struct rdti_verbs_nic *nic, struct rdt_error *err);
/* By its kind and address, less than RDTI_VERBS_SCORE_END. */
uint32_t rdti_verbs_score_gid(const struct rdti_verbs_gid *gid);
#define RDTI_VERBS_SCORE_END 128
void rdti_verbs_gid_text(const uint8_t raw[16], char *buf, size_t cap);

#endif
