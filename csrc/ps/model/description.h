/* SPDX-License-Identifier: Apache-2.0
 * The description of a table, which servers and workers check in the same way. */
#ifndef RDTI_PS_MODEL_DESCRIPTION_H
#define RDTI_PS_MODEL_DESCRIPTION_H

#include "rdmatensor_ps.h"

/* Bytes from one row to the next. */
uint64_t rdti_ps_row_stride(uint32_t dim);
/* RDT_EINVAL: a field is out of range. */
rdt_status rdti_ps_description_check(const struct rdt_ps_table_opts *opts, struct rdt_error *err);

#endif
