/* SPDX-License-Identifier: Apache-2.0
 * Every number that is a choice: each with its reason, and where it was measured. */
#ifndef RDTI_BASE_LIMITS_H
#define RDTI_BASE_LIMITS_H

/* ---- Fork ---------------------------------------------------------------------------------- */

/* Descriptors numbered below this can be closed in forked children: fs.nr_open's default, which no
 * process exceeds unless its administrator raised it. One bit each, 128 KiB, touched only where used. */
#define RDTI_FORK_FDS_MAX (1 << 20)

#endif
