/* SPDX-License-Identifier: Apache-2.0
 * Which members of a group are on one host, from the votes of all of them. */
#include "collectives/team/team.h"

static bool
hosts_share_memory(const uint64_t *can_hold, uint32_t a, uint32_t b)
{
    return (can_hold[a] >> b & 1) != 0 && (can_hold[b] >> a & 1) != 0 &&
           (can_hold[a] >> a & 1) != 0 && (can_hold[b] >> b & 1) != 0;
}

/* Whether a member shares memory with all that are on the host so far. */
static bool
hosts_belongs(const uint64_t *can_hold, const struct rdti_hosts *hosts, uint32_t member,
              uint32_t host)
{
    for (uint32_t i = 0; i < member; i++)
        if (hosts->of[i] == host && !hosts_share_memory(can_hold, i, member))
            return false;
    return true;
}

void
rdti_hosts_sort(const uint64_t *can_hold, uint32_t size, uint32_t rank, struct rdti_hosts *out)
{
    struct rdti_hosts hosts = {.least = size};
    uint32_t at = 0;

    for (uint32_t i = 0; i < size; i++) {
        uint32_t host = 0;
        while (host < hosts.count && !hosts_belongs(can_hold, &hosts, i, host))
            host++;
        hosts.of[i] = host;
        if (host == hosts.count)
            hosts.count++;
    }
    for (uint32_t host = 0; host < hosts.count; host++) {
        hosts.first[host] = at;
        for (uint32_t i = 0; i < size; i++) {
            if (hosts.of[i] != host)
                continue;
            if (i == rank)
                hosts.index = at - hosts.first[host];
            hosts.ranks[at++] = i;
        }
        hosts.first[host + 1] = at;
        const uint32_t members = rdti_hosts_members(&hosts, host);
        hosts.least = members < hosts.least ? members : hosts.least;
        hosts.most = members > hosts.most ? members : hosts.most;
    }
    hosts.own = hosts.of[rank];
    *out = hosts;
}
