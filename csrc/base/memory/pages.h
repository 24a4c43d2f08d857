/* SPDX-License-Identifier: Apache-2.0
 * Pages of private memory that is about to be written for the first time. */
#ifndef RDTI_BASE_MEMORY_PAGES_H
#define RDTI_BASE_MEMORY_PAGES_H

#include <stdint.h>

/* Call before this process, or the kernel on its behalf, writes all of dst. If its pages are
 * missing, one system call populates them in place of one fault for each. The contents stay. Pages
 * that cannot be populated so are faulted in later. Any memory; short spans are skipped. */
void rdti_pages_populate(void *dst, uint64_t len_bytes);

#endif
