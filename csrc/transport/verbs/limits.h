/* SPDX-License-Identifier: Apache-2.0
 * Sizes, counts and times of the verbs transport, and why they are what they are. */
#ifndef RDTI_VERBS_LIMITS_H
#define RDTI_VERBS_LIMITS_H

#include <assert.h>
#include <stdint.h>

#include "wire/verbs.h"

/* Work requests of one QP that may be outstanding: at 92 ns a WQE a NIC empties it in 24 us, more
 * than a pass of the engine takes. A device with less gets what it has. */
#define RDTI_VERBS_SQ_DEPTH 256
/* Of them kept for restocking messages, so that data cannot keep the peer from being told. */
#define RDTI_VERBS_SQ_RESERVE 4
/* Messages with a notification that a peer may have on the way: what one pass can take. Receives
 * beyond it are for restocking messages, of which no more than 2 can be unseen, one for each half
 * of the window, and for one SETTLED of each link but the last. */
#define RDTI_VERBS_WINDOW 256
#define RDTI_VERBS_RQ_RESERVE 8
/* In attributes that set none: zero is no value of its type. */
#define RDTI_VERBS_NO_MTU .path_mtu = IBV_MTU_256
/* Immediates of one QP that may wait for the other QPs': all that a peer within its window sends. A
 * power of two: the ring's ends count on past 2^32. */
#define RDTI_VERBS_IMMS 512
_Static_assert(RDTI_VERBS_IMMS >= RDTI_VERBS_WINDOW + RDTI_VERBS_RQ_RESERVE &&
                   (RDTI_VERBS_IMMS & (RDTI_VERBS_IMMS - 1)) == 0,
               "the ring holds a window, and wraps where its counters do");
/* Work requests in one call of ibv_post_send; the last of each chain is signaled. */
#define RDTI_VERBS_CHAIN 16
/* What is said of a port's counters: five names, and numbers of twenty digits. */
#define RDTI_VERBS_COUNTERS_TEXT 160
/* Of one poll of a CQ. */
#define RDTI_VERBS_WCS 32
/* Passes after which everything in a CQ of the most QPs has been taken: a window of immediates and
 * a send queue of completions on each. Each pass takes as much of every link. */
#define RDTI_VERBS_ARRIVAL_PASSES                                                             \
    (RDTI_VERBS_QPS_MAX * (RDTI_VERBS_WINDOW + RDTI_VERBS_RQ_RESERVE + RDTI_VERBS_SQ_DEPTH) / \
         RDTI_VERBS_WCS +                                                                     \
     1)
/* What an administrator does about RLIMIT_MEMLOCK. */
#define RDTI_VERBS_MEMLOCK_CURE                                                        \
    "docker: --ulimit memlock=-1 --cap-add IPC_LOCK; systemd: LimitMEMLOCK=infinity; " \
    "/etc/security/limits.conf: * - memlock unlimited"
/* A source that could not be registered is tried again after so long: limits may be raised, and
 * each try may pin gigabytes before it fails. */
#define RDTI_VERBS_OWN_RETRY_NS UINT64_C(10000000000)
/* More than this is registered by a thread of its own: pages are pinned one by one, gigabytes of
 * them for seconds. The arena's default piece is not worth two changes of threads. */
#define RDTI_VERBS_REGISTER_NOW_BYTES (UINT64_C(64) << 20)
/* Asked for; the device says what it gives. A credit, a flag and most control messages fit. */
#define RDTI_VERBS_INLINE_BYTES 64
/* A message of this many bytes for each QP and more goes over all of them. */
#define RDTI_VERBS_STRIPE_MIN_BYTES (UINT64_C(64) << 10)
/* Memory that is not registered goes through pieces that are; 16 cover what a link holds. */
#define RDTI_VERBS_STAGE_BYTES (UINT64_C(64) << 10)
#define RDTI_VERBS_STAGE_PIECES 16
/* A copy of 64 KiB takes 7 us, a rendezvous a round trip and a READ; a piece of 64 KiB goes into
 * its place where one was told. */
#define RDTI_VERBS_EAGER_MAX_BYTES ((UINT64_C(64) << 10) - 1)
/* The most that a flag adds to a request: up to seven bytes to align it, and the flag. */
#define RDTI_VERBS_TAIL_BYTES 16
/* Nobody is woken by a flag: a process that looks for flags sleeps no longer than this. It is what
 * a tensor may lie there unnoticed, and a thousand wake-ups a second are 1 % of a core. */
#define RDTI_VERBS_FLAG_NAP_NS UINT64_C(1000000)
/* Reads that one QP asks a device to have open; most devices have 16. */
#define RDTI_VERBS_READS 16

/* 4.096 us * 2^17 = 0.54 s a try: with 6 retries a cable may be out for 3 s and more. Never 7: rxe
 * then tries for ever, and a cable that stays out is no error (tests/c/transport/verbs_trace_test.c
 * saw no completion within a minute on kernel 6.12). */
#define RDTI_VERBS_TIMEOUT 17
#define RDTI_VERBS_RETRY 6
/* Receives are restocked ahead of the window, so that RNR does not occur; if it does, it ends: 7
 * would be for ever. 0.64 ms between two tries. */
#define RDTI_VERBS_RNR_RETRY 6
#define RDTI_VERBS_RNR_TIMER 12
#define RDTI_VERBS_HOP_LIMIT 64

/* All pairs of GIDs of a link have so long together, each the same part: the core gives a path five
 * seconds. One round takes an emulated machine 100 ms, and a lost packet another half second. */
#define RDTI_VERBS_PROOF_NS UINT64_C(4000000000)
#define RDTI_VERBS_PAIRS_MAX 4
/* A QP in ERR flushes at once; a device that is gone may not say so. Then what came is what counts:
 * it moves no bytes any more, and the peer sends again what we did not see. */
#define RDTI_VERBS_FLUSH_NS UINT64_C(1000000000)
/* The peer has so long to answer DOWN, as the core's default for a peer that is silent, and
 * RDTI_VERBS_FLUSH_NS more, in case this process stood still. One that is dead is found earlier, by
 * that. */
#define RDTI_VERBS_ANSWER_NS UINT64_C(10000000000)
/* Teardown waits so long for flushed completions, which only serve the count in the message. */
#define RDTI_VERBS_DRAIN_NS UINT64_C(20000000)

#endif
