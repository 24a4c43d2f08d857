/* SPDX-License-Identifier: Apache-2.0
 * Every number of the shm transport that is a choice, with its reason. */
#ifndef RDTI_SHM_LIMITS_H
#define RDTI_SHM_LIMITS_H

#include "base/limits.h"

/* Of the offer and of the ring's layout; both sides must have the same. */
#define SHM_VERSION 1

/* A line of cache: one notification a line, so that one transfer between cores delivers it. */
#define SHM_LINE_BYTES RDTI_CACHE_LINE_BYTES
/* One page, the least that a mapping costs: two header lines and the entries. */
#define SHM_RING_BYTES 4096
#define SHM_RING_ENTRIES 62

/* The consumer tells how far it is once in so many entries, so that the header's line rarely moves.
 * It must be less than the entries, or a full ring would never be seen to empty. */
#define SHM_HEAD_EVERY 16

/* Arrivals of one lane that one poll() takes: about half a ring, so that every lane gets its turn.
 * */
#define SHM_ARRIVALS_PER_POLL 32
/* Queued ops that one poll() pushes, by number and by bytes (a millisecond or two of copying). */
#define SHM_PUSHES_PER_POLL 64
#define SHM_PUSH_BYTES_PER_POLL (UINT64_C(16) << 20)

/* The page of the peer's doorbell: struct rdti_doorbell lies at its start. */
#define SHM_DOORBELL_BYTES 4096

/* The generation table at its largest: 20 bits of index, four bytes each. */
#define SHM_GENERATIONS_MAX_BYTES (UINT64_C(4) << 20)

/* Segments are numbered from 0 by their owner; a chunk is 64 MiB or more, so this is 4 TiB at
 * least. A bound for the table's memory against numbers that are made up. */
#define SHM_SEGMENTS_MAX (1u << 16)

/* Segments of at least a huge page are mapped at its multiples, so that the kernel can map them by
 * it. It is also the granule by which an owner brings pages in. */
#define SHM_HUGE_PAGE_BYTES (UINT64_C(2) << 20)
/* What is taken into our page table at a time: a peer's ring lies in a few pages, and each page
 * more is paid for by every pair at its set-up. Ranges that are longer are taken in one call. */
#define SHM_PRESENT_BYTES (UINT64_C(64) << 10)

/* Tries before a thread sleeps on the lane's lock: an 8-byte write holds it for a tenth of a
 * microsecond, a try with a pause takes about 20 ns. */
#define SHM_LOCK_TRIES 64

/* The proof that a process id is the peer's: bytes at random in its private memory. */
#define SHM_NONCE_BYTES 16

/* Blocks that one process_vm_writev() moves; the kernel keeps up to 8 on its stack, more are
 * copied. */
#define SHM_PROCESS_BLOCKS 64

/* Up to here a second copy out of a ring costs less than an offer and its answer, each of which may
 * have to wake the peer's progress thread: docs/performance.md, "Messages between two ranks of a
 * host". Where both spin in C, a rendezvous is faster from 32 KiB on: round trip of a message that
 * the receiver reads once, eager and rendezvous, in us: 4 KiB 0.54 and 0.69, 16 KiB 2.19 and 2.25,
 * 32 KiB 4.23 and 3.50, 64 KiB 7.5 and 5.5 (two pinned processes on a virtual AMD EPYC, Zen 4). */
#define SHM_EAGER_MAX_BYTES (UINT64_C(64) << 10)

#endif
