/* SPDX-License-Identifier: Apache-2.0
 * Memory that peers on this host may map: memfds that cannot shrink under a mapping of theirs. */
#ifndef RDTI_CORE_MEMFD_H
#define RDTI_CORE_MEMFD_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

/* A memfd of len_bytes zero bytes, none of them in memory yet. `mfd_flags` (MFD_HUGETLB ...) are
 * added. The descriptor is the caller's.
 *   RDT_ENOMEM   RLIMIT_FSIZE is too small
 *   RDT_EDEVICE  the kernel refused, e.g. RLIMIT_NOFILE is reached */
rdt_status rdti_memfd_create(const char *name, uint64_t len_bytes, unsigned mfd_flags, int *fd_out,
                             struct rdt_error *err);

/*
 * No shrinking, no growing, no more seals. `is_private_write`: from now on nobody gets a writable
 * mapping either, those that exist stay; where the kernel (before 5.1) cannot do that it is left
 * out.
 */
rdt_status rdti_memfd_seal(int fd, bool is_private_write, struct rdt_error *err);

/*
 * Put all pages of [addr, addr + len_bytes), a shared mapping of fd at off_bytes, into memory and
 * into our page tables, contents untouched. Multiples of the page size. Any thread, also while
 * others use the bytes. Returns 0 or the errno with which the kernel refused; never raises SIGBUS.
 */
int rdti_memfd_populate(int fd, uint64_t off_bytes, void *addr, uint64_t len_bytes);

#endif
