/* SPDX-License-Identifier: Apache-2.0
 * Memory that two processes map: creates, checks and maps memfds. A descriptor from another process
 * is checked before it is mapped, so that no access can raise SIGBUS: it must be a memfd, large
 * enough, and sealed against shrinking. The kernel fills a hole in it at the first access. Any
 * thread. */
#ifndef RDTI_BASE_MEMORY_MEMFD_H
#define RDTI_BASE_MEMORY_MEMFD_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

/* ---- Own memfds ---------------------------------------------------------------------------- */

/* A memfd of len_bytes zero bytes, not yet populated, which can be sealed. `mfd_flags`
 * (MFD_HUGETLB ...) are added. The caller owns the descriptor.
 *   RDT_ENOMEM   RLIMIT_FSIZE is too small
 *   RDT_EDEVICE  the kernel refused, e.g. RLIMIT_NOFILE is reached */
rdt_status rdti_memfd_create(const char *name, uint64_t len_bytes, unsigned mfd_flags, int *fd_out,
                             struct rdt_error *err);

/*
 * Seals it against shrinking, growing and further seals. `is_private_write`: also against new
 * writable mappings; existing ones stay. Kernels before 5.1 cannot do that, and it is left out.
 * RDT_EDEVICE.
 */
rdt_status rdti_memfd_seal(int fd, bool is_private_write, struct rdt_error *err);

/* Both; every process that maps it may write. */
rdt_status rdti_memfd_create_sealed(const char *name, uint64_t len_bytes, unsigned mfd_flags,
                                    int *fd_out, struct rdt_error *err);

/* ---- Memfds of another process ------------------------------------------------------------- */

struct rdti_memfd_want {
    const char *what;  /* begins every message */
    int32_t peer_rank; /* rank that sent it */
    uint64_t min_bytes;
    uint64_t max_bytes;
    /* It may also lie on huge pages that an administrator reserved. A peer that punches holes
     * there could starve the pool; rdmatensor never punches any. */
    bool may_be_huge;
};

struct rdti_memfd_found {
    uint64_t len_bytes;
    uint64_t page_bytes; /* of its file system */
    bool is_read_only;   /* its owner sealed it against other processes' writes */
};

/*
 * Checks that fd is a memfd as `want` describes.
 *   RDT_EPROTO   it is not; the error names the peer
 *   RDT_EDEVICE  the kernel does not report it
 */
rdt_status rdti_memfd_check(int fd, const struct rdti_memfd_want *want,
                            struct rdti_memfd_found *out, struct rdt_error *err);

/* ---- Mapping ------------------------------------------------------------------------------- */

/* Map the first len_bytes, shared; prot as for mmap(). Undone by munmap().
 *   RDT_ENOMEM   no address space or memory     RDT_EPROTO  sealed against that */
rdt_status rdti_memfd_map(int fd, const char *what, uint64_t len_bytes, int prot, void **out,
                          struct rdt_error *err);

/* The same for reading and writing, at a multiple of align_bytes, so that the kernel may use one
 * entry for each huge page. align_bytes is a power of two of at least a page. */
rdt_status rdti_memfd_map_aligned(int fd, const char *what, uint64_t len_bytes,
                                  uint64_t align_bytes, void **out, struct rdt_error *err);

/*
 * Put all pages of [addr, addr + len_bytes), a shared mapping of fd at off_bytes, into memory and
 * into this process's page tables, with their contents unchanged. All three are multiples of the
 * page size. Any thread, also while others use the bytes. Returns 0 or the errno with which the
 * kernel refused; never raises SIGBUS.
 */
int rdti_memfd_populate(int fd, uint64_t off_bytes, void *addr, uint64_t len_bytes);

/* The same for memory of another process, which allocates its pages itself. EINVAL, and no effect,
 * where the kernel (before 5.14) cannot do it in one call. */
int rdti_memfd_populate_mapped(void *addr, uint64_t len_bytes);

#endif
