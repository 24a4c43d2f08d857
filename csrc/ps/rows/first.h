/* SPDX-License-Identifier: Apache-2.0
 * First values of rows: from the seed, the id and the column alone. */
#ifndef RDTI_PS_ROWS_FIRST_H
#define RDTI_PS_ROWS_FIRST_H

#include "rdmatensor_ps.h"

/* opts->dim floats. */
void rdti_ps_first_row(const struct rdt_ps_table_opts *opts, uint64_t id, float *out);

#endif
