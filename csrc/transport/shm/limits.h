/* SPDX-License-Identifier: Apache-2.0
 * Tunable constants of the shm transport, each with its reason. */
#ifndef RDTI_SHM_LIMITS_H
#define RDTI_SHM_LIMITS_H

#include "base/limits.h"

/* Version of the offer and of the ring's layout; both sides must have the same. */
#define SHM_VERSION 1

/* One notification per cache line, so that one transfer between cores delivers it. */
#define SHM_LINE_BYTES RDTI_CACHE_LINE_BYTES
/* One page, the minimum of a mapping: two header lines and the entries. */
#define SHM_RING_BYTES 4096
#define SHM_RING_ENTRIES 62

/* The receiver publishes its position once per this many entries, so that the header's line rarely
 * moves. It must be less than the number of entries, or a full ring would stay full to its
 * sender. */
#define SHM_HEAD_EVERY 16

/* Arrivals of one lane per poll(): about half a ring, so that every lane is served. */
#define SHM_ARRIVALS_PER_POLL 32
/* Queued ops per poll(), by number and by bytes (one or two milliseconds of copying). */
#define SHM_PUSHES_PER_POLL 64
#define SHM_PUSH_BYTES_PER_POLL (UINT64_C(16) << 20)

/* The page of the peer's doorbell: struct rdti_doorbell lies at its start. */
#define SHM_DOORBELL_BYTES 4096

/* Maximum of the generation table: 20 bits of index, four bytes each. */
#define SHM_GENERATIONS_MAX_BYTES (UINT64_C(4) << 20)

/* The owner numbers its segments from 0; at 64 MiB or more each this is at least 4 TiB. It bounds
 * the table's memory against invalid numbers. */
#define SHM_SEGMENTS_MAX (1u << 16)

/* Segments of at least a huge page are mapped at a multiple of it, so that the kernel can map huge
 * pages. It is also the granule in which an owner populates pages. */
#define SHM_HUGE_PAGE_BYTES (UINT64_C(2) << 20)
/* Unit in which pages enter this process's page table: a peer's ring takes a few pages, and each
 * further page costs time at the set-up of every pair. A longer range takes one call. */
#define SHM_PRESENT_BYTES (UINT64_C(64) << 10)

/* Attempts before a thread sleeps on the lane's lock: an 8-byte write holds it for a tenth of a
 * microsecond, an attempt with a pause takes about 20 ns. */
#define SHM_LOCK_TRIES 64

/* The proof that a process id is the peer's: random bytes in its private memory. */
#define SHM_NONCE_BYTES 16

/* Blocks per process_vm_writev(); the kernel keeps up to 8 on its stack and copies larger lists. */
#define SHM_PROCESS_BLOCKS 64

/* Up to this size a second copy out of a ring costs less than an RTS and its answer, each of which
 * may have to wake the peer's progress thread: messages.md, "Between two ranks of
 * a host". If both processes spin in C, rendezvous is faster from 32 KiB on (round trip 3.50 us,
 * eager 4.23; virtual AMD EPYC, Zen 4). */
#define SHM_EAGER_MAX_BYTES (UINT64_C(64) << 10)

#endif
