/* SPDX-License-Identifier: Apache-2.0
 * Memory that two processes map. What a peer handed over is checked before it is mapped, so that no
 * access of ours can end in SIGBUS: it must be a memfd on tmpfs, large enough, and sealed against
 * shrinking. A hole in it is filled by the kernel at the touch. The one exception is a segment on
 * huge pages that an administrator set aside: a peer that punches holes there, which ours never
 * does, could starve the pool.
 */
#ifndef RDTI_SHM_MEMFD_H
#define RDTI_SHM_MEMFD_H

#include <stdint.h>

#include "rdmatensor.h"

/* A new sealed memfd of len_bytes, zero; RDT_EDEVICE. The descriptor is the caller's. */
rdt_status rdti_shm_memfd_create(const char *name, uint64_t len_bytes, int *fd_out,
                                 struct rdt_error *err);

/*
 * Whether fd is such a memfd of at least min_bytes and at most max_bytes; its size. RDT_EPROTO: the
 * message begins with `what` and names the peer's rank.
 */
rdt_status rdti_shm_memfd_check(int fd, const char *what, int32_t peer_rank, uint64_t min_bytes,
                                uint64_t max_bytes, uint64_t *size_out, struct rdt_error *err);

/* Whether fd is an eventfd that does not block. RDT_EPROTO, or RDT_ENOTVIABLE without /proc. */
rdt_status rdti_shm_eventfd_check(int fd, int32_t peer_rank, struct rdt_error *err);

/* Map the first len_bytes, shared; prot as for mmap(). RDT_ENOMEM. Undone by munmap(). */
rdt_status rdti_shm_map(int fd, const char *what, uint64_t len_bytes, int prot, void **out,
                        struct rdt_error *err);

/*
 * Check and map a segment of a peer's arena for reading and writing, left out of core dumps and at
 * a multiple of the huge page where it is that long. Undone by munmap(addr, len_bytes).
 *   RDT_EPROTO, as rdti_shm_memfd_check()   RDT_ENOMEM
 */
rdt_status rdti_shm_map_segment(int fd, int32_t peer_rank, uint64_t len_bytes, void **out,
                                struct rdt_error *err);

/* Bring shared pages into our page table at once, which is a tenth of the cost of a fault for each.
 * RDT_ENOMEM. */
rdt_status rdti_shm_populate(void *addr, uint64_t len_bytes, struct rdt_error *err);

/* Whether sealed memfds can be made and mapped here: RDT_ENOTVIABLE. */
rdt_status rdti_shm_viable(struct rdt_error *err);

#endif
