/* SPDX-License-Identifier: Apache-2.0
 * Pages of private memory that is about to be written for the first time. */
#ifndef RDTI_BASE_PAGES_H
#define RDTI_BASE_PAGES_H

#include <stdint.h>

/* Before all of dst is stored to, by us or by the kernel for us: gets its pages by one call of the
 * kernel's where they are not there, in place of a fault for each. Its bytes stay. What cannot be
 * got so comes by faults. Any memory; short pieces are left alone. */
void rdti_pages_populate(void *dst, uint64_t len_bytes);

#endif
