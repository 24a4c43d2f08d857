/* SPDX-License-Identifier: Apache-2.0
 * Memory that two processes map: memfds, made, checked and mapped. What another process handed over
 * is checked before it is mapped, so that no access of ours can end in SIGBUS: it must be a memfd,
 * large enough, and sealed against shrinking. A hole in it is filled by the kernel at the touch.
 * Any thread. */
#ifndef RDTI_BASE_MEMFD_H
#define RDTI_BASE_MEMFD_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

/* ---- Ours ---------------------------------------------------------------------------------- */

/* A memfd of len_bytes zero bytes, none of them in memory yet, open to seals. `mfd_flags`
 * (MFD_HUGETLB ...) are added. The descriptor is the caller's.
 *   RDT_ENOMEM   RLIMIT_FSIZE is too small
 *   RDT_EDEVICE  the kernel refused, e.g. RLIMIT_NOFILE is reached */
rdt_status rdti_memfd_create(const char *name, uint64_t len_bytes, unsigned mfd_flags, int *fd_out,
                             struct rdt_error *err);

/*
 * No shrinking, no growing, no more seals. `is_private_write`: from now on nobody gets a writable
 * mapping either, those that exist stay; where the kernel (before 5.1) cannot do that it is left
 * out. RDT_EDEVICE.
 */
rdt_status rdti_memfd_seal(int fd, bool is_private_write, struct rdt_error *err);

/* Both, writable for whoever maps it. */
rdt_status rdti_memfd_create_sealed(const char *name, uint64_t len_bytes, unsigned mfd_flags,
                                    int *fd_out, struct rdt_error *err);

/* ---- Another process's --------------------------------------------------------------------- */

struct rdti_memfd_want {
    const char *what;  /* begins every message */
    int32_t peer_rank; /* who handed it over */
    uint64_t min_bytes;
    uint64_t max_bytes;
    /* On huge pages that an administrator set aside it may lie, too: a peer that punches holes
     * there, which ours never does, could starve the pool. */
    bool may_be_huge;
};

struct rdti_memfd_found {
    uint64_t len_bytes;
    uint64_t page_bytes; /* of its file system */
};

/*
 * Whether fd is a memfd as wanted.
 *   RDT_EPROTO   it is not; the error names the peer
 *   RDT_EDEVICE  the kernel does not say
 */
rdt_status rdti_memfd_check(int fd, const struct rdti_memfd_want *want,
                            struct rdti_memfd_found *out, struct rdt_error *err);

/* ---- Mapping ------------------------------------------------------------------------------- */

/* Map the first len_bytes, shared; prot as for mmap(). Undone by munmap().
 *   RDT_ENOMEM   no address space or memory     RDT_EPROTO  sealed against that */
rdt_status rdti_memfd_map(int fd, const char *what, uint64_t len_bytes, int prot, void **out,
                          struct rdt_error *err);

/* The same for reading and writing, at a multiple of align_bytes, a power of two of at least a
 * page: so that the kernel may use one entry for each huge page. */
rdt_status rdti_memfd_map_aligned(int fd, const char *what, uint64_t len_bytes,
                                  uint64_t align_bytes, void **out, struct rdt_error *err);

/*
 * Put all pages of [addr, addr + len_bytes), a shared mapping of fd at off_bytes, into memory and
 * into our page tables, contents untouched. Multiples of the page size. Any thread, also while
 * others use the bytes. Returns 0 or the errno with which the kernel refused; never raises SIGBUS.
 */
int rdti_memfd_populate(int fd, uint64_t off_bytes, void *addr, uint64_t len_bytes);

/* The same for memory of another process, whose pages are its business: EINVAL where the kernel
 * (before 5.14) cannot do it in one call, and nothing has happened. */
int rdti_memfd_populate_mapped(void *addr, uint64_t len_bytes);

#endif
