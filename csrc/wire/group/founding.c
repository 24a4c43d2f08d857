/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes addresses, votes and costs. */
#include "wire/group/founding.h"

#include "wire/bytes.h"
#include "wire/fields.h"

void
rdti_founding_address_encode(const struct rdti_founding_address *in,
                             uint8_t out[RDTI_FOUNDING_ADDRESS_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_FOUNDING_ADDRESS_BYTES, .is_ok = true};

    rdti_write_u8(&w, (uint8_t)in->has_board);
    rdti_write_region(&w, in->has_board != 0, &in->board);
}

rdt_status
rdti_founding_address_decode(const uint8_t *buf, size_t len_bytes,
                             struct rdti_founding_address *out, struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_founding_address address = {0};

    rdt_status status = rdti_fields_begin(&f, "address of a board", buf, len_bytes,
                                          RDTI_FOUNDING_ADDRESS_BYTES, err);
    if (status != RDT_OK)
        return status;
    address.has_board = rdti_read_u8(&f.r);
    rdti_fields_require(&f, address.has_board <= 1, "the flag is not 0 or 1");
    rdti_fields_region(&f, address.has_board != 0, &address.board, "bad region descriptor");
    status = rdti_fields_end(&f, "address of a board", err);
    if (status == RDT_OK)
        *out = address;
    return status;
}

void
rdti_founding_vote_encode(const struct rdti_founding_vote *in,
                          uint8_t out[RDTI_FOUNDING_VOTE_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_FOUNDING_VOTE_BYTES, .is_ok = true};

    rdti_write_u64(&w, in->members);
    rdti_write_u8(&w, (uint8_t)in->must_measure);
}

rdt_status
rdti_founding_vote_decode(const uint8_t *buf, size_t len_bytes, struct rdti_founding_vote *out,
                          struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_founding_vote vote = {0};

    rdt_status status =
        rdti_fields_begin(&f, "vote for boards", buf, len_bytes, RDTI_FOUNDING_VOTE_BYTES, err);
    if (status != RDT_OK)
        return status;
    vote.members = rdti_read_u64(&f.r);
    vote.must_measure = rdti_read_u8(&f.r);
    rdti_fields_require(&f, vote.must_measure <= 1, "the flag is not 0 or 1");
    status = rdti_fields_end(&f, "vote for boards", err);
    if (status == RDT_OK)
        *out = vote;
    return status;
}

void
rdti_costs_encode(const struct rdti_costs *in, uint8_t out[RDTI_COSTS_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_COSTS_BYTES, .is_ok = true};

    rdti_write_u64(&w, in->source);
    rdti_write_u64(&w, in->far);
    for (unsigned i = 0; i < RDTI_PATHS; i++) {
        rdti_write_u64(&w, in->paths[i].alpha_ns);
        rdti_write_u64(&w, in->paths[i].beta_ps);
        rdti_write_u64(&w, in->paths[i].duplex_permille);
    }
    rdti_write_u64(&w, in->gamma_ps);
}

static uint64_t
founding_read_within(struct rdti_fields *f, uint64_t least, uint64_t most, const char *fault)
{
    const uint64_t value = rdti_read_u64(&f->r);

    rdti_fields_require(f, value >= least && value <= most, fault);
    return value;
}

rdt_status
rdti_costs_decode(const uint8_t *buf, size_t len_bytes, struct rdti_costs *out,
                  struct rdt_error *err)
{
    static const char fault[] = "a value is out of range";
    struct rdti_fields f;
    struct rdti_costs costs = {0};

    rdt_status status =
        rdti_fields_begin(&f, "table of costs", buf, len_bytes, RDTI_COSTS_BYTES, err);
    if (status != RDT_OK)
        return status;
    costs.source = founding_read_within(&f, 0, RDTI_COSTS_SOURCES - 1, "no such source");
    costs.far =
        founding_read_within(&f, RDTI_PATH_SHM, RDTI_PATHS - 1, "no such path between hosts");
    for (unsigned i = 0; i < RDTI_PATHS; i++) {
        struct rdti_path_cost *path = &costs.paths[i];
        path->alpha_ns = founding_read_within(&f, 1, RDTI_COSTS_ALPHA_MAX_NS, fault);
        path->beta_ps = founding_read_within(&f, 1, RDTI_COSTS_BETA_MAX_PS, fault);
        path->duplex_permille = founding_read_within(&f, RDTI_COSTS_DUPLEX_MIN_PERMILLE,
                                                     RDTI_COSTS_DUPLEX_MAX_PERMILLE, fault);
    }
    costs.gamma_ps = founding_read_within(&f, 1, RDTI_COSTS_BETA_MAX_PS, fault);
    status = rdti_fields_end(&f, "table of costs", err);
    if (status == RDT_OK)
        *out = costs;
    return status;
}
