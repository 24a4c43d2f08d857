/* SPDX-License-Identifier: Apache-2.0
 * Checks of a table's description. */
#include "ps/model/description.h"

#include <math.h>

#include "base/error.h"
#include "ps/rules/rules.h"

enum { ROW_ALIGN_BYTES = 16 };
#define TABLE_BYTES_MAX (UINT64_C(1) << 60)

uint64_t
rdti_ps_row_stride(uint32_t dim)
{
    return ((uint64_t)dim * sizeof(float) + ROW_ALIGN_BYTES - 1) / ROW_ALIGN_BYTES *
           ROW_ALIGN_BYTES;
}

uint64_t
rdti_ps_rows_bytes(const struct rdt_ps_table_opts *opts, uint64_t rows)
{
    const uint64_t version_bytes = opts->consistency == RDT_PS_ROW ? sizeof(uint32_t) : 0;

    return rows * (rdti_ps_row_stride(opts->dim) + version_bytes);
}

static rdt_status
description_check_keys(const struct rdt_ps_table_opts *opts, struct rdt_error *err)
{
    const bool is_dense = opts->keys == RDT_PS_KEYS_DENSE;

    if (opts->keys > RDT_PS_KEYS_INT64 || opts->evict > RDT_PS_EVICT_EPOCH)
        return rdti_error_set(err, RDT_EINVAL, 0, "table: keys %u or evict %u are no kind",
                              opts->keys, opts->evict);
    if (is_dense && (opts->admit_after > 0 || opts->expire_after > 0 || opts->capacity > 0))
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "table: admission, expiry and capacity are for tables of keys");
    if (!is_dense && (opts->rows > 0 || opts->admit_after == 0))
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "table: %llu rows of a table of keys, or admission after %u steps",
                              (unsigned long long)opts->rows, opts->admit_after);
    return RDT_OK;
}

rdt_status
rdti_ps_description_check(const struct rdt_ps_table_opts *opts, struct rdt_error *err)
{
    if (opts == NULL || opts->struct_size != sizeof(*opts))
        return rdti_error_set(err, RDT_EINVAL, 0, "table: not a struct of this version");
    if (opts->dim == 0 || opts->dim > RDT_PS_DIM_MAX)
        return rdti_error_set(err, RDT_EINVAL, 0, "table: dim %u is not from 1 to %d", opts->dim,
                              RDT_PS_DIM_MAX);
    if (opts->init > RDT_PS_INIT_NORMAL || !isfinite(opts->init_from) || !isfinite(opts->init_to))
        return rdti_error_set(err, RDT_EINVAL, 0, "table: first values %u of %g and %g", opts->init,
                              opts->init_from, opts->init_to);
    if (opts->consistency > RDT_PS_ROW)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "table: consistency %u is not RDT_PS_RELAXED or RDT_PS_ROW",
                              opts->consistency);
    rdt_status status = rdt_ps_rule_check(&opts->rule, err);
    if (status == RDT_OK)
        status = description_check_keys(opts, err);
    if (status != RDT_OK)
        return status;
    const uint64_t state_bytes = rdti_ps_rule_state_floats(&opts->rule, opts->dim) * sizeof(float);
    if (opts->rows > TABLE_BYTES_MAX / (rdti_ps_rows_bytes(opts, 1) + state_bytes))
        return rdti_error_set(err, RDT_EINVAL, 0, "table: %llu rows of dim %u exceed 2^60 B",
                              (unsigned long long)opts->rows, opts->dim);
    return RDT_OK;
}
