/* SPDX-License-Identifier: Apache-2.0
 * A port's GIDs. They are ranked by facts that both sides know. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "transport/verbs/device/gid.h"
#include "transport/verbs/device/device.h"

/* Bits of a score. */
enum {
    SCORE_V2 = 64,     /* RoCE v2 can be routed, and switches are set up for it */
    SCORE_IPV4 = 32,   /* IPv4-mapped: an administrator configured it */
    SCORE_GLOBAL = 16, /* a global IPv6 address */
    SCORE_UNIQUE = 8,  /* a unique local one */
    SCORE_BOUND = 4    /* it belongs to a network device */
};

static bool
gid_is_zero(const uint8_t raw[16])
{
    static const uint8_t zeros[16];

    return memcmp(raw, zeros, sizeof(zeros)) == 0;
}

uint32_t
rdti_verbs_score_gid(const struct rdti_verbs_gid *gid)
{
    uint32_t score = gid->kind == RDTI_VERBS_GID_ROCE_V2 ? SCORE_V2 : 0;

    if (rdti_verbs_is_mapped(gid->raw))
        score += SCORE_IPV4;
    else if ((gid->raw[0] & 0xfe) == 0xfc)
        score += SCORE_UNIQUE;
    else if (!rdti_verbs_is_link_local(gid->raw))
        score += SCORE_GLOBAL;
    return score;
}

void
rdti_verbs_gid_text(const uint8_t raw[16], char *buf, size_t cap)
{
    if (inet_ntop(AF_INET6, raw, buf, (socklen_t)cap) == NULL && cap > 0)
        buf[0] = '\0';
}

/* Keeps the table ordered: best first, the lower index among equals. */
static void
gid_insert(struct rdti_verbs_nic *nic, const struct rdti_verbs_gid *gid, uint32_t score)
{
    uint32_t at = nic->gid_count;

    while (at > 0 && nic->gid_scores[at - 1] < score)
        at--;
    if (at == RDTI_VERBS_GIDS_MAX)
        return;
    if (nic->gid_count < RDTI_VERBS_GIDS_MAX)
        nic->gid_count++;
    for (uint32_t i = nic->gid_count - 1u; i > at; i--) {
        nic->gids[i] = nic->gids[i - 1];
        nic->gid_scores[i] = nic->gid_scores[i - 1];
    }
    nic->gids[at] = *gid;
    nic->gid_scores[at] = score;
}

/* Skips holes in the table and entries that have just been removed. */
static void
gid_consider(struct rdti_verbs_nic *nic, uint32_t index)
{
    struct ibv_gid_entry entry;
    struct rdti_verbs_gid gid = {.index = (uint8_t)index};

    memset(&entry, 0, sizeof(entry));
    if (nic->verbs->ops->query_gid_ex(nic->context, nic->port, index, &entry, 0, sizeof(entry)) !=
            0 ||
        gid_is_zero(entry.gid.raw))
        return;
    memcpy(gid.raw, entry.gid.raw, sizeof(gid.raw));
    gid.kind = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? RDTI_VERBS_GID_ROCE_V2
               : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? RDTI_VERBS_GID_ROCE_V1
                                                        : RDTI_VERBS_GID_IB;
    gid_insert(nic, &gid, rdti_verbs_score_gid(&gid) + (entry.ndev_ifindex != 0 ? SCORE_BOUND : 0));
}

rdt_status
rdti_verbs_find_gids(struct rdti_verbs_nic *nic, struct rdt_error *err)
{
    const int32_t wanted = rdti_verbs_wanted_gid(&nic->verbs->settings, nic->name);
    /* An index is a byte of the offer and of the address vector. */
    const uint32_t table_count = nic->gid_table_count < 256 ? nic->gid_table_count : 256;

    nic->gid_count = 0;
    if (wanted >= 0 && (uint32_t)wanted >= table_count)
        return rdti_error_set(err, RDT_ENOTVIABLE, 0,
                              "RDMATENSOR_VERBS_GID_INDEX asks for %d, the table has %u entries",
                              wanted, table_count);
    for (uint32_t i = 0; i < table_count; i++)
        if (wanted < 0 || (uint32_t)wanted == i)
            gid_consider(nic, i);
    /* with LIDs the subnet manager routes: as good as the best address */
    nic->score = nic->is_infiniband ? SCORE_V2 + SCORE_IPV4 + SCORE_BOUND : nic->gid_scores[0];
    if (nic->gid_count > 0 || (nic->is_infiniband && wanted < 0))
        return RDT_OK;
    if (wanted >= 0)
        return rdti_error_set(err, RDT_ENOTVIABLE, 0,
                              "RDMATENSOR_VERBS_GID_INDEX asks for %d, which is empty", wanted);
    return rdti_error_set(err, RDT_ENOTVIABLE, 0,
                          "its GID table is empty: has its network device an address?");
}
