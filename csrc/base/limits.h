/* SPDX-License-Identifier: Apache-2.0
 * Tunable constants, each with its reason and where it was measured. */
#ifndef RDTI_BASE_LIMITS_H
#define RDTI_BASE_LIMITS_H

#include <stddef.h>

/* Cache line of x86-64 and of most arm64, and the widest vector. */
#define RDTI_CACHE_LINE_BYTES 64

/*
 * ---- Copies ---------------------------------------------------------------------------------
 *
 * Measured between two pinned processes with 4 KiB pages (`rdtperf shm_write` does the same). The
 * tables show the time to write a buffer that the peer has read since it was last written, and in
 * brackets the time that the peer then takes to read it, in us. Virtual AMD EPYC, Zen 4 (1 MiB L2
 * for each core, 32 MiB L3 shared):
 *
 *                  4 KiB      16 KiB      32 KiB      64 KiB      1 MiB       64 MiB
 *   memcpy       0.12 (0.4)  1.3 (1.4)   3.6 (1.6)  7.2 (2.5)   109 (38)   6300-12000 (3500)
 *   rep movsb    0.14 (0.4)  1.3 (1.4)   3.6 (1.6)  7.2 (2.5)   108 (38)   4200-7300 (3500)
 *   non-temporal 0.06 (1.6)  0.24 (6.9)  0.8 (4.3)  2.0 (4.4)    39 (51)   3300 (3500)
 *
 * The sum of both times decides, since the peer waits for a small message: it is equal at 32 KiB
 * (5.2 us), where a ping-pong with payload crosses over, too. Below it the peer finds ordinary
 * stores in a cache, above it the writer gains more than the peer loses. Into memory that only this
 * core uses, 16 MiB take 675 us by memcpy and 612 non-temporal: from half of the L3 on, source and
 * destination together exceed it.
 */
#define RDTI_COPY_ZEN4_STREAM_TO_PEER_FROM_BYTES ((size_t)32 << 10)
#define RDTI_COPY_ZEN4_STREAM_TO_OWN_FROM_BYTES ((size_t)16 << 20)

/*
 * The same on Zen 5 (1 MiB L2, 32 MiB L3), where an ownership request costs a third, and the memcpy
 * of glibc 2.36 uses non-temporal stores, on several pages in turn, from 0.75 MiB on:
 *
 *                 16 KiB      64 KiB      256 KiB     1 MiB      4 MiB      16 MiB      64 MiB
 *   memcpy       0.28 (1.2)  1.5 (2.7)  6.2 (8.6)  133 (33)  434 (136)  1630 (570)  6000 (2490)
 *   rep movsb    0.28 (1.2)  1.5 (2.7)  6.2 (8.6)   26 (33)  100 (135)   489 (580)  2360 (2440)
 *   non-temporal 0.13 (1.4)  1.3 (3.1)  5.7 (9.4)   24 (35)   95 (143)   405 (572)  2220 (2440)
 *
 * Into memory that the peer has not read, or that only this core uses, 4 MiB take 82 us by memcpy,
 * 69 by rep movsb, 96 non-temporal. rep movsb is the fastest, or equal to it, from 64 KiB to 8 MiB
 * for both patterns.
 */
#define RDTI_COPY_ZEN5_MOVSB_FROM_BYTES ((size_t)64 << 10)
#define RDTI_COPY_ZEN5_STREAM_TO_PEER_FROM_BYTES ((size_t)8 << 20)
#define RDTI_COPY_ZEN5_STREAM_TO_OWN_FROM_BYTES ((size_t)32 << 20)

/*
 * The same on Zen, family 17h model 1 (512 KiB L2, 8 MiB L3), where reading from a peer's cache is
 * no faster than reading from memory:
 *
 *                  4 KiB      16 KiB      64 KiB     256 KiB     1 MiB       8 MiB        64 MiB
 *   memcpy       1.2 (0.8)  5.5 (3.3)  13.6 (5.8)  50 (20)   202 (77)   1837 (744)   7086 (7586)
 *   rep movsb    1.2 (0.8)  5.5 (3.3)  13.6 (5.7)  51 (20)   212 (77)   1858 (742)   12700 (7790)
 *   non-temporal 0.1 (0.6)  0.9 (2.7)   2.7 (5.0)   9 (18)    44 (67)    930 (689)   8030 (7500)
 *   the same in four lanes                                   53 (67)    751 (686)   6760 (7595)
 *
 * 4 MiB take 239 us in four lanes and 290 in one. Into memory that only this core uses, 4 MiB take
 * 530 us by memcpy and 226 non-temporal. Up to 16 KiB the order changes between runs.
 */
#define RDTI_COPY_ZEN_STREAM_TO_PEER_FROM_BYTES ((size_t)32 << 10)
#define RDTI_COPY_ZEN_STREAM_TO_OWN_FROM_BYTES ((size_t)4 << 20)
#define RDTI_COPY_ZEN_LANES_FROM_BYTES ((size_t)4 << 20)

/*
 * The same on Intel's Golden and Raptor Cove, family 6, models 143 and 207 (2 MiB L2, a large
 * non-inclusive L3), measured on a virtual 207. Up to 16 MiB the reader loses what streaming gains:
 *
 *                 16 KiB      64 KiB      256 KiB     1 MiB      4 MiB       16 MiB       64 MiB
 *   memcpy       1.1 (3.8)  6.5 (12)    15 (28)   73 (122)   357 (432)  1580 (2010)  8330 (9050)
 *   rep movsb    1.1 (3.8)  6.5 (12)    15 (28)   73 (122)   352 (393)  1440 (1760)  8550 (9180)
 *   non-temporal 1.5 (5.6)  7.1 (14)    28 (37)  122 (151)   378 (513)  1300 (2200)  7440 (9690)
 *   the same in four lanes                                   371 (521)  1230 (2200)  5340 (8940)
 *
 * Into memory that only this core uses, 4 MiB take 388 us by memcpy, 373 by rep movsb, 297 streamed
 * in four lanes.
 *
 * A later Xeon, virtual, which reports model 167 (2 MiB L2, 480 MiB L3, AMX):
 *
 *                 16 KiB      64 KiB      256 KiB     1 MiB      4 MiB       16 MiB       64 MiB
 *   memcpy       1.3 (2.0)  7.5 (7.5)   17 (20)   70 (74)    402 (364)  2020 (1700)  11800 (7520)
 *   rep movsb    1.3 (2.0)  7.5 (7.5)   17 (20)   70 (74)    370 (335)  1660 (1510)  12000 (7600)
 *   non-temporal 1.7 (2.7)  7.8 (11)    32 (22)  121 (67)    435 (462)  1540 (1860)   9420 (7600)
 *   the same in four lanes                                   433 (462)  1490 (1880)   6900 (7450)
 *
 * By the sum of both times the thresholds are the same, so all of family 6 use this table. Older
 * models were not measured. rep movsb is used only where cpuid reports that it is fast.
 */
#define RDTI_COPY_COVE_MOVSB_FROM_BYTES ((size_t)64 << 10)
#define RDTI_COPY_COVE_STREAM_TO_PEER_FROM_BYTES ((size_t)32 << 20)
#define RDTI_COPY_COVE_STREAM_TO_OWN_FROM_BYTES ((size_t)4 << 20)
#define RDTI_COPY_COVE_LANES_FROM_BYTES ((size_t)4 << 20)

/* Boards of collectives (collectives/team/team.h), stages and sums in place, which are rewritten
 * repeatedly. all_reduce of 1 MiB between two ranks, streamed and with ordinary stores: 100 and
 * 540 us on Zen, 315 and 235 on the Xeon of model 167; no alternative was measured on Zen 5. */
#define RDTI_COPY_BOARD_STREAM_FROM_BYTES ((size_t)4 << 10)
#define RDTI_COPY_COVE_BOARD_STREAM_FROM_BYTES ((size_t)32 << 20)

/* glibc's own memcpy takes rep movsb from 2 KiB on, on processors where it is fast. */
#define RDTI_COPY_MOVSB_BLOCK_MIN_BYTES ((size_t)2 << 10)

/* Four lanes of this length are streamed in turn: 64 MiB take 3.1 ms in four lanes of 128 KiB to 1
 * MiB, 3.7 in one lane. Blocks that fit the L2 do not gain. */
#define RDTI_COPY_LANE_BYTES ((size_t)256 << 10)

/* ---- Fork ---------------------------------------------------------------------------------- */

/* Descriptors below this number can be closed in forked children: the default of fs.nr_open, which
 * only an administrator can raise. One bit each, 128 KiB, touched only where used. */
#define RDTI_FORK_FDS_MAX (1 << 20)

#endif
