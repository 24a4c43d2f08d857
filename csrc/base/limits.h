/* SPDX-License-Identifier: Apache-2.0
 * Every number that is a choice: each with its reason, and where it was measured. */
#ifndef RDTI_BASE_LIMITS_H
#define RDTI_BASE_LIMITS_H

#include <stddef.h>

/* A line of cache of x86-64 and of most arm64, and the widest vector. */
#define RDTI_CACHE_LINE_BYTES 64

/*
 * ---- Copies ---------------------------------------------------------------------------------
 *
 * Measured by bench/floor/copy_floor.c between two pinned processes, 4 KiB pages. Write time of a
 * buffer that the peer has read since it was written last, and in brackets the time that the peer
 * then takes to read it, in us. Virtual AMD EPYC, Zen 4 (1 MiB L2 for each core, 32 MiB L3 shared):
 *
 *                  4 KiB      16 KiB      32 KiB      64 KiB      1 MiB       64 MiB
 *   memcpy       0.12 (0.4)  1.3 (1.4)   3.6 (1.6)  7.2 (2.5)   109 (38)   6300-12000 (3500)
 *   rep movsb    0.14 (0.4)  1.3 (1.4)   3.6 (1.6)  7.2 (2.5)   108 (38)   4200-7300 (3500)
 *   non-temporal 0.06 (1.6)  0.24 (6.9)  0.8 (4.3)  2.0 (4.4)    39 (51)   3300 (3500)
 *
 * Ordinary stores fall into a worse mode there from time to time and stay in it: 28 us for 64 KiB,
 * 450 for 1 MiB. The sum of both times decides, since a small message is waited for: equal at 32
 * KiB (5.2 us each), below it the peer finds ordinary stores in a cache, above it the writer gains
 * more than the peer loses. A ping-pong with payload has its cross-over at the same size. Into
 * memory that only this core uses: 8 MiB 219 us by memcpy, 295 non-temporal; 16 MiB 675, 612; 64
 * MiB 5000, 2650: from half of the L3 on source and destination do not fit it together.
 */
#define RDTI_COPY_ZEN4_STREAM_TO_PEER_FROM_BYTES ((size_t)32 << 10)
#define RDTI_COPY_ZEN4_STREAM_TO_OWN_FROM_BYTES ((size_t)16 << 20)

/*
 * The same of Zen 5 (1 MiB L2, 32 MiB L3), where ownership of a line costs a third, and the memcpy
 * of glibc 2.36 goes past the cache, page beside page, from 0.75 MiB on:
 *
 *                 16 KiB      64 KiB      256 KiB     1 MiB      4 MiB      16 MiB      64 MiB
 *   memcpy       0.28 (1.2)  1.5 (2.7)  6.2 (8.6)  133 (33)  434 (136)  1630 (570)  6000 (2490)
 *   rep movsb    0.28 (1.2)  1.5 (2.7)  6.2 (8.6)   26 (33)  100 (135)   489 (580)  2360 (2440)
 *   non-temporal 0.13 (1.4)  1.3 (3.1)  5.7 (9.4)   24 (35)   95 (143)   405 (572)  2220 (2440)
 *
 * Into memory that the peer has not read, or that only this core uses: 64 KiB 0.5 us by memcpy and
 * rep movsb, 1.6 non-temporal; 1 MiB 18, 15, 24; 4 MiB 82, 69, 96; 16 MiB 461, 344, 392; 64 MiB
 * 3050, 2370, 2270. So rep movsb is the best or level with it from 64 KiB to 8 MiB, whoever reads.
 */
#define RDTI_COPY_ZEN5_MOVSB_FROM_BYTES ((size_t)64 << 10)
#define RDTI_COPY_ZEN5_STREAM_TO_PEER_FROM_BYTES ((size_t)8 << 20)
#define RDTI_COPY_ZEN5_STREAM_TO_OWN_FROM_BYTES ((size_t)32 << 20)

/*
 * The same of Zen, family 17h model 1 (512 KiB L2, 8 MiB L3), where what a peer wrote is read from
 * its cache no faster than from memory:
 *
 *                  4 KiB      16 KiB      64 KiB     256 KiB     1 MiB       8 MiB        64 MiB
 *   memcpy       1.2 (0.8)  5.5 (3.3)  13.6 (5.8)  50 (20)   202 (77)   1837 (744)   7086 (7586)
 *   rep movsb    1.2 (0.8)  5.5 (3.3)  13.6 (5.7)  51 (20)   212 (77)   1858 (742)   12700 (7790)
 *   non-temporal 0.1 (0.6)  0.9 (2.7)   2.7 (5.0)   9 (18)    44 (67)    930 (689)   8030 (7500)
 *   the same in four lanes                                   53 (67)    751 (686)   6760 (7595)
 *
 * In four lanes 4 MiB take 239 us, in one 290; 2 MiB 111 and 105. Into memory that only this core
 * uses: 1 MiB 38 us by memcpy, 40 non-temporal; 2 MiB 105, 103; 4 MiB 530, 226; 64 MiB 7080, 6650.
 * Up to 16 KiB it depends on the minute: half a round trip of 16 KiB that is read took 6.7 us by
 * memcpy and 4.3 non-temporal in one, 3.0 and 4.4 in another.
 */
#define RDTI_COPY_ZEN_STREAM_TO_PEER_FROM_BYTES ((size_t)32 << 10)
#define RDTI_COPY_ZEN_STREAM_TO_OWN_FROM_BYTES ((size_t)4 << 20)
#define RDTI_COPY_ZEN_LANES_FROM_BYTES ((size_t)4 << 20)

/*
 * The same of Intel's Golden and Raptor Cove, family 6, models 143 and 207 (2 MiB L2, a large L3
 * that holds what the L2s do not), measured on 207, virtual, where streaming gains nothing that a
 * reader does not lose again up to 16 MiB:
 *
 *                 16 KiB      64 KiB      256 KiB     1 MiB      4 MiB       16 MiB       64 MiB
 *   memcpy       1.1 (3.8)  6.5 (12)    15 (28)   73 (122)   357 (432)  1580 (2010)  8330 (9050)
 *   rep movsb    1.1 (3.8)  6.5 (12)    15 (28)   73 (122)   352 (393)  1440 (1760)  8550 (9180)
 *   non-temporal 1.5 (5.6)  7.1 (14)    28 (37)  122 (151)   378 (513)  1300 (2200)  7440 (9690)
 *   the same in four lanes                                   371 (521)  1230 (2200)  5340 (8940)
 *
 * Into memory that only this core uses: 1 MiB 44 us by memcpy, 43 by rep movsb, 57 non-temporal; 4
 * MiB 388, 373 and, in four lanes, 297; 64 MiB 8110, 8120, 4690.
 *
 * A later Xeon, virtual, which calls itself model 167 (2 MiB L2, 480 MiB L3, AMX):
 *
 *                 16 KiB      64 KiB      256 KiB     1 MiB      4 MiB       16 MiB       64 MiB
 *   memcpy       1.3 (2.0)  7.5 (7.5)   17 (20)   70 (74)    402 (364)  2020 (1700)  11800 (7520)
 *   rep movsb    1.3 (2.0)  7.5 (7.5)   17 (20)   70 (74)    370 (335)  1660 (1510)  12000 (7600)
 *   non-temporal 1.7 (2.7)  7.8 (11)    32 (22)  121 (67)    435 (462)  1540 (1860)   9420 (7600)
 *   the same in four lanes                                   433 (462)  1490 (1880)   6900 (7450)
 *
 * Into memory that only this core uses: 1 MiB 46, 44 and 66; 4 MiB 326, 325 and, in four lanes,
 * 349; 64 MiB 11800, 12000, 6700. By the sum of both times it changes at the same sizes, so that
 * all of family 6 have this table, though of older ones nothing was measured; rep movsb only where
 * cpuid says that it is fast.
 */
#define RDTI_COPY_COVE_MOVSB_FROM_BYTES ((size_t)64 << 10)
#define RDTI_COPY_COVE_STREAM_TO_PEER_FROM_BYTES ((size_t)32 << 20)
#define RDTI_COPY_COVE_STREAM_TO_OWN_FROM_BYTES ((size_t)4 << 20)
#define RDTI_COPY_COVE_LANES_FROM_BYTES ((size_t)4 << 20)

/* Boards of collectives (collectives/team/team.h), stages and sums in place, which are rewritten
 * time and again. Zen, all_reduce between two ranks, streamed and with ordinary stores: 4 KiB 5.2
 * us and 5.1 to 6.9; 16 KiB 6.3 and 6.5; a MiB 100 and 540. Of Zen 5 only this was ever used. The
 * Xeon of model 167: all_reduce of 64 KiB 31 and 21 us, 1 MiB 315 and 235, 16 MiB 4600 and 3600;
 * broadcast of 16 MiB 2200 and 1800, of 64 MiB 10100 and 11600. */
#define RDTI_COPY_BOARD_STREAM_FROM_BYTES ((size_t)4 << 10)
#define RDTI_COPY_COVE_BOARD_STREAM_FROM_BYTES ((size_t)32 << 20)

/* glibc's own memcpy takes rep movsb from 2 KiB on, on processors where it is fast. */
#define RDTI_COPY_MOVSB_BLOCK_MIN_BYTES ((size_t)2 << 10)

/* Four lanes of this length are streamed side by side. 64 MiB: one lane 3.7 ms, four of 64
 * KiB 3.19, of 128 KiB to 1 MiB 3.1; two lanes 3.4, eight 3.6; with software prefetch never less.
 * Blocks that fit the L2 do not care. */
#define RDTI_COPY_LANE_BYTES ((size_t)256 << 10)

/* ---- Fork ---------------------------------------------------------------------------------- */

/* Descriptors numbered below this can be closed in forked children: fs.nr_open's default, which no
 * process exceeds unless its administrator raised it. One bit each, 128 KiB, touched only where
 * used. */
#define RDTI_FORK_FDS_MAX (1 << 20)

#endif
