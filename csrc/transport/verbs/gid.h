/* SPDX-License-Identifier: Apache-2.0
 * Selects the GID of a port, and the port of the peer (gid.c). */
#ifndef RDTI_VERBS_GID_H
#define RDTI_VERBS_GID_H

#include "transport/verbs/verbs.h"

/* Fill gids, best first, and score. RDT_ENOTVIABLE if the port has no suitable one. */
rdt_status rdti_verbs_find_gids(struct rdti_verbs_nic *nic, struct rdt_error *err);
/* Pair the lane's links with the peer's ports; the best pairs of GIDs of each. Unpaired links are
 * destroyed. RDT_ENOTVIABLE: no two can meet. */
rdt_status rdti_verbs_pair_links(struct rdti_verbs_lane *lane, struct rdt_error *err);
/* The reason for the link's pair of GIDs, as text. */
void rdti_verbs_explain_choice(const struct rdti_verbs_link *link, char *buf, size_t cap);
void rdti_verbs_gid_text(const uint8_t raw[16], char *buf, size_t cap);

#endif
