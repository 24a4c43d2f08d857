/* SPDX-License-Identifier: Apache-2.0
 * Pairs the ports and GIDs of both sides. Candidates are ranked by facts that both sides know, so
 * that both get the same pairs in the same order. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "transport/verbs/device/gid.h"
#include "transport/verbs/lane.h"

/* Part of a pair's score: both are in one subnet. */
#define PAIR_SAME_NET RDTI_VERBS_SCORE_END

static bool
pair_same_net(const uint8_t a[16], const uint8_t b[16])
{
    /* The usual prefixes: 24 bits of an IPv4 address, 64 of an IPv6 one. */
    return memcmp(a, b, rdti_verbs_is_mapped(a) ? 15 : 8) == 0;
}

/* Length of the common prefix in bits; decides if the usual prefix differs. Link-local addresses
 * count 0: after the first 64 bits they consist of device addresses. */
static uint32_t
pair_common_bits(const uint8_t a[16], const uint8_t b[16])
{
    uint32_t bits = 0;

    if (rdti_verbs_is_link_local(a))
        return 0;
    while (bits < 128 && (((a[bits / 8] ^ b[bits / 8]) << bits % 8) & 0x80) == 0)
        bits++;
    return bits;
}

/* 0: they cannot communicate. Symmetric. */
static uint32_t
pair_score(const struct rdti_verbs_gid *a, const struct rdti_verbs_gid *b)
{
    if (a->kind != b->kind || rdti_verbs_is_mapped(a->raw) != rdti_verbs_is_mapped(b->raw) ||
        rdti_verbs_is_link_local(a->raw) != rdti_verbs_is_link_local(b->raw))
        return 0;
    const uint32_t net =
        pair_same_net(a->raw, b->raw) && !rdti_verbs_is_link_local(a->raw) ? PAIR_SAME_NET : 0;
    return 1 + net + rdti_verbs_score_gid(a) + rdti_verbs_score_gid(b);
}

/* The same with a tie-break by common prefix: the real prefix length is unknown, and a subnet may
 * be wider than usual. */
static uint32_t
pair_order(const struct rdti_verbs_gid *a, const struct rdti_verbs_gid *b)
{
    const uint32_t bits = pair_same_net(a->raw, b->raw) ? 0 : pair_common_bits(a->raw, b->raw);
    const uint32_t score = pair_score(a, b);

    return score == 0 ? 0 : score << 8 | bits;
}

/* Whether pair x comes before y on both sides: by score, then by the connector's index. */
static bool
pair_comes_first(const struct rdti_verbs_pair *x, const struct rdti_verbs_pair *y,
                 bool is_connector)
{
    const uint32_t key_x = is_connector ? x->own * 256u + x->peer : x->peer * 256u + x->own;
    const uint32_t key_y = is_connector ? y->own * 256u + y->peer : y->peer * 256u + y->own;

    return x->score != y->score ? x->score > y->score : key_x < key_y;
}

static void
pair_insert(struct rdti_verbs_pair *pairs, uint32_t *count, struct rdti_verbs_pair pair,
            bool is_connector)
{
    uint32_t at = *count;

    while (at > 0 && pair_comes_first(&pair, &pairs[at - 1], is_connector))
        at--;
    if (at == RDTI_VERBS_PAIRS_MAX)
        return;
    if (*count < RDTI_VERBS_PAIRS_MAX)
        (*count)++;
    for (uint32_t i = *count - 1; i > at; i--)
        pairs[i] = pairs[i - 1];
    pairs[at] = pair;
}

/* The pairs of two ports, best first; returns their number. */
static uint32_t
pair_list_pairs(const struct rdti_verbs_port_offer *own, const struct rdti_verbs_port_offer *peer,
                bool is_connector, struct rdti_verbs_pair pairs[RDTI_VERBS_PAIRS_MAX])
{
    uint32_t count = 0;

    if (own->is_infiniband != peer->is_infiniband)
        return 0;
    if (own->is_infiniband == 1) { /* with LIDs the subnet manager routes */
        pairs[0] = (struct rdti_verbs_pair){.score = 1};
        return 1;
    }
    for (uint32_t i = 0; i < own->gid_count; i++) {
        for (uint32_t j = 0; j < peer->gid_count; j++) {
            const struct rdti_verbs_pair pair = {
                .own = (uint8_t)i,
                .peer = (uint8_t)j,
                .score = pair_order(&own->gids[i], &peer->gids[j]),
            };
            if (pair.score > 0)
                pair_insert(pairs, &count, pair, is_connector);
        }
    }
    return count;
}

/* The score of two ports by the best of these pairs. A subnet may also be narrower than usual, so
 * the longest common prefix breaks ties. */
static uint32_t
pair_score_ports(const struct rdti_verbs_port_offer *own, const struct rdti_verbs_port_offer *peer,
                 const struct rdti_verbs_pair *pairs, uint32_t count)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < count && own->is_infiniband == 0 && pairs[i].score == pairs[0].score;
         i++) {
        const uint32_t bits =
            pair_common_bits(own->gids[pairs[i].own].raw, peer->gids[pairs[i].peer].raw);
        most = bits > most ? bits : most;
    }
    return pairs[0].score << 8 | most;
}

/* The best pair of the remaining ports. False: none. */
static bool
pair_pick(const struct rdti_verbs_lane *lane, uint32_t own_left, uint32_t peer_left,
          uint32_t *own_out, uint32_t *peer_out)
{
    struct rdti_verbs_pair best = {0};
    bool is_found = false;

    for (uint32_t i = 0; i < lane->own.port_count; i++) {
        for (uint32_t j = 0; j < lane->peer.port_count; j++) {
            struct rdti_verbs_pair pairs[RDTI_VERBS_PAIRS_MAX];
            struct rdti_verbs_pair ports = {.own = (uint8_t)i, .peer = (uint8_t)j};

            if ((own_left >> i & 1) == 0 || (peer_left >> j & 1) == 0)
                continue;
            const uint32_t count = pair_list_pairs(&lane->own.ports[i], &lane->peer.ports[j],
                                                   lane->args.is_connector, pairs);
            if (count == 0)
                continue;
            ports.score = pair_score_ports(&lane->own.ports[i], &lane->peer.ports[j], pairs, count);
            if (is_found && !pair_comes_first(&ports, &best, lane->args.is_connector))
                continue;
            best = ports;
            is_found = true;
        }
    }
    *own_out = best.own;
    *peer_out = best.peer;
    return is_found;
}

static void
pair_move_link(struct rdti_verbs_link *to, struct rdti_verbs_link *from)
{
    struct rdti_verbs_link held = *to;

    *to = *from;
    *from = held;
    for (uint32_t i = 0; i < to->qp_count; i++)
        to->qps[i]->link = to;
    for (uint32_t i = 0; i < from->qp_count; i++)
        from->qps[i]->link = from;
}

static const char *
pair_family_of(const uint8_t raw[16])
{
    if (rdti_verbs_is_mapped(raw))
        return "IPv4";
    if ((raw[0] & 0xfe) == 0xfc)
        return "unique local IPv6";
    return rdti_verbs_is_link_local(raw) ? "link-local IPv6" : "global IPv6";
}

void
rdti_verbs_explain_choice(const struct rdti_verbs_link *link, char *buf, size_t cap)
{
    const struct rdti_verbs_lane *lane = link->lane;
    const struct rdti_verbs_pair *pair = &link->pairs[link->round];
    const struct rdti_verbs_gid *own = &lane->own.ports[link->port_index].gids[pair->own];
    const struct rdti_verbs_gid *peer = &lane->peer.ports[link->peer_port].gids[pair->peer];
    const bool is_set = rdti_verbs_wanted_gid(&lane->verbs->settings, link->nic->name) >= 0;
    const uint32_t first = rdti_verbs_is_mapped(own->raw) ? 96 : 0;
    const char *usual = rdti_verbs_is_link_local(own->raw) ? "one link" : "one subnet";
    char net[48];

    if (link->nic->is_infiniband) {
        (void)snprintf(buf, cap, "the subnet manager routes");
        return;
    }
    (void)snprintf(net, sizeof(net), "%u bits of the addresses alike",
                   pair_common_bits(own->raw, peer->raw) - first);
    (void)snprintf(buf, cap, "RoCE %s, %s, %s%s", own->kind == RDTI_VERBS_GID_ROCE_V2 ? "v2" : "v1",
                   pair_family_of(own->raw), pair_same_net(own->raw, peer->raw) ? usual : net,
                   is_set ? ", GID by RDMATENSOR_VERBS_GID_INDEX" : "");
}

rdt_status
rdti_verbs_pair_links(struct rdti_verbs_lane *lane, struct rdt_error *err)
{
    uint32_t own_left = (1u << lane->own.port_count) - 1;
    uint32_t peer_left = (1u << lane->peer.port_count) - 1;
    uint32_t own;
    uint32_t peer;
    uint32_t count = 0;

    while (pair_pick(lane, own_left, peer_left, &own, &peer)) {
        uint32_t at = count;

        while (lane->links[at].port_index != own) /* each port has one, at or behind count */
            at++;
        if (at != count)
            pair_move_link(&lane->links[count], &lane->links[at]);
        struct rdti_verbs_link *link = &lane->links[count];
        link->number = count++;
        link->peer_port = peer;
        link->pair_count = pair_list_pairs(&lane->own.ports[own], &lane->peer.ports[peer],
                                           lane->args.is_connector, link->pairs);
        own_left &= ~(1u << own);
        peer_left &= ~(1u << peer);
    }
    while (lane->link_count > count)
        rdti_verbs_destroy_link(&lane->links[--lane->link_count]);
    if (count > 0)
        return RDT_OK;
    return rdti_error_set_rank(err, RDT_ENOTVIABLE, lane->args.peer_rank,
                               "verbs: no port here can meet one of rank %d: %s (%u GIDs) and %s "
                               "(%u GIDs) differ in link layer, RoCE version or address family",
                               lane->args.peer_rank, lane->own.ports[0].device,
                               lane->own.ports[0].gid_count, lane->peer.ports[0].device,
                               lane->peer.ports[0].gid_count);
}
