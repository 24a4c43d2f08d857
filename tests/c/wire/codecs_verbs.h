/* SPDX-License-Identifier: Apache-2.0
 * Random values of what verbs lanes exchange; codecs_values.h includes it after its helpers. */
#ifndef RDT_TESTS_WIRE_CODECS_VERBS_H
#define RDT_TESTS_WIRE_CODECS_VERBS_H

static inline void
fill_verbs_port(struct rng *rng, struct rdti_verbs_port_offer *v, uint32_t qp_count)
{
    rng_text(rng, v->device, sizeof(v->device));
    v->port = (uint8_t)rng_u32(rng);
    v->is_infiniband = (uint8_t)rng_below(rng, 2);
    v->mtu = (uint8_t)(1 + rng_below(rng, 5));
    v->gid_count = (uint8_t)(1 - v->is_infiniband + rng_below(rng, RDTI_VERBS_GIDS_MAX));
    v->lid = (uint16_t)rng_u32(rng);
    v->reads_in = (uint8_t)(1 + rng_below(rng, 255));
    v->reads_out = (uint8_t)(1 + rng_below(rng, 255));
    v->max_msg_bytes = 4096 + rng_u64(rng) / 2;
    for (uint32_t i = 0; i < v->gid_count; i++) {
        rng_bytes(rng, v->gids[i].raw, sizeof(v->gids[i].raw));
        v->gids[i].kind = (uint8_t)rng_below(rng, 3);
        v->gids[i].index = (uint8_t)rng_u32(rng);
    }
    for (uint32_t i = 0; i < qp_count; i++) {
        v->qps[i].qpn = rng_u32(rng) & 0xffffff;
        v->qps[i].psn = rng_u32(rng) & 0xffffff;
    }
}

static inline void
fill_verbs_offer(struct rng *rng, void *value)
{
    struct rdti_verbs_offer *v = value;

    v->port_count = (uint8_t)(1 + rng_below(rng, RDTI_VERBS_PORTS_MAX));
    v->qp_count = (uint8_t)(1 + rng_below(rng, RDTI_VERBS_QPS_MAX));
    v->timeout = (uint8_t)(1 + rng_below(rng, 31));
    v->retry = (uint8_t)rng_below(rng, 7);
    v->service_level = RDTI_VERBS_UNSET;
    v->traffic_class = (uint8_t)rng_u32(rng);
    v->window = 2 + rng_below(rng, 0xfffe);
    v->pkey = (uint16_t)rng_u32(rng);
    for (uint32_t i = 0; i < v->port_count; i++)
        fill_verbs_port(rng, &v->ports[i], v->qp_count);
}

static inline void
fill_verbs_key(struct rng *rng, struct rdti_verbs_words *v)
{
    const bool is_region = rng_below(rng, 2) == 0;

    v->access = (uint8_t)(RDTI_VERBS_MAY_WRITE + rng_below(rng, 3));
    v->segment = is_region ? RDT_SEGMENT_NONE : rng_below(rng, 1000);
    v->index = 1 + rng_below(rng, 1000);
    v->generation = rng_u32(rng);
    if (v->kind == RDTI_VERBS_KEY_REFUSED)
        v->refusal = (uint8_t)(RDTI_VERBS_REGION_OVER + rng_below(rng, RDTI_VERBS_NOT_REGISTERED));
    if (v->refusal > RDTI_VERBS_REGION_OVER) {
        v->base = rng_u64(rng);
        v->len_bytes = rng_u64(rng);
    }
    if (v->kind != RDTI_VERBS_KEY)
        return;
    v->len_bytes = rng_u64(rng) / 2;
    v->base = rng_u64(rng) / 2;
    v->rkey_count = (uint8_t)(1 + rng_below(rng, RDTI_VERBS_PORTS_MAX));
    for (uint32_t i = 0; i < v->rkey_count; i++)
        v->rkeys[i] = rng_u32(rng);
}

static inline void
fill_verbs_words(struct rng *rng, void *value)
{
    struct rdti_verbs_words *v = value;

    v->kind = (uint8_t)(RDTI_VERBS_LINK_READY + rng_below(rng, RDTI_VERBS_FLAGS));
    if (v->kind == RDTI_VERBS_FLAGS) {
        v->access = (uint8_t)(RDTI_VERBS_FLAGS_WHOLE + rng_below(rng, 2));
        return;
    }
    if (v->kind == RDTI_VERBS_LINK_DOWN) {
        v->link = (uint8_t)rng_below(rng, RDTI_VERBS_PORTS_MAX);
        v->qp_count = (uint8_t)(1 + rng_below(rng, RDTI_VERBS_QPS_MAX));
        for (uint32_t i = 0; i < v->qp_count; i++)
            v->received[i] = rng_u64(rng);
        return;
    }
    if (v->kind <= RDTI_VERBS_LINK_FAILED) {
        v->link = (uint8_t)rng_below(rng, RDTI_VERBS_PORTS_MAX);
        v->round = (uint8_t)rng_u32(rng);
        return;
    }
    fill_verbs_key(rng, v);
}

#endif
