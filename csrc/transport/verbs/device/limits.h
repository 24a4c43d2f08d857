/* SPDX-License-Identifier: Apache-2.0
 * Sizes, counts and times of the verbs transport, each with its reason. */
#ifndef RDTI_VERBS_DEVICE_LIMITS_H
#define RDTI_VERBS_DEVICE_LIMITS_H

#include <assert.h>
#include <stdint.h>

#include "wire/endpoint/verbs.h"

/* Work requests that one QP may have outstanding: at 92 ns per WQE a NIC takes 24 us for them, more
 * than a pass of the engine takes. On a device with a smaller limit, that limit. */
#define RDTI_VERBS_SQ_DEPTH 256
/* Of these, reserved for RESTOCKED messages, so that data cannot block them. */
#define RDTI_VERBS_SQ_RESERVE 4
/* Messages with a notification that a peer may have in flight: as many as one pass can take.
 * Further receives are for RESTOCKED messages, of which at most 2 can be unseen, one for each half
 * of the window, and for one SETTLED of each link but the last. */
#define RDTI_VERBS_WINDOW 256
#define RDTI_VERBS_RQ_RESERVE 8
/* For attributes without an MTU: zero is not a valid value of its type. */
#define RDTI_VERBS_NO_MTU .path_mtu = IBV_MTU_256
/* Immediates of one QP that may wait for other QPs: all that a peer within its window sends. A
 * power of two: the ring's ends count on past 2^32. */
#define RDTI_VERBS_IMMS 512
_Static_assert(RDTI_VERBS_IMMS >= RDTI_VERBS_WINDOW + RDTI_VERBS_RQ_RESERVE &&
                   (RDTI_VERBS_IMMS & (RDTI_VERBS_IMMS - 1)) == 0,
               "the ring holds a window, and wraps where its counters do");
/* Work requests in one call of ibv_post_send; the last of each chain is signaled. */
#define RDTI_VERBS_CHAIN 16
/* Text of a port's counters: five names, and numbers of twenty digits. */
#define RDTI_VERBS_COUNTERS_TEXT 160
/* Completions per poll of a CQ. */
#define RDTI_VERBS_WCS 32
/* Passes that empty a CQ of the maximum number of QPs: a window of immediates and a send queue of
 * completions on each. Each pass takes this much of every link. */
#define RDTI_VERBS_ARRIVAL_PASSES                                                             \
    (RDTI_VERBS_QPS_MAX * (RDTI_VERBS_WINDOW + RDTI_VERBS_RQ_RESERVE + RDTI_VERBS_SQ_DEPTH) / \
         RDTI_VERBS_WCS +                                                                     \
     1)
/* Remedy for RLIMIT_MEMLOCK, for administrators. */
#define RDTI_VERBS_MEMLOCK_CURE                                                        \
    "docker: --ulimit memlock=-1 --cap-add IPC_LOCK; systemd: LimitMEMLOCK=infinity; " \
    "/etc/security/limits.conf: * - memlock unlimited"
/* Time after which registering a source is retried: limits may have been raised, and each attempt
 * may pin gigabytes before it fails. */
#define RDTI_VERBS_OWN_RETRY_NS UINT64_C(10000000000)
/* A separate thread registers more than this: pages are pinned one by one, gigabytes take seconds.
 * The arena's default segment is not worth two thread switches. */
#define RDTI_VERBS_REGISTER_NOW_BYTES (UINT64_C(64) << 20)
/* Requested; the device may grant less. A credit, a flag and most control messages fit. */
#define RDTI_VERBS_INLINE_BYTES 64
/* A message of at least this many bytes per QP is striped over all QPs. */
#define RDTI_VERBS_STRIPE_MIN_BYTES (UINT64_C(64) << 10)
/* Staging pieces for memory that is not registered; 16 cover what a link has in flight. */
#define RDTI_VERBS_STAGE_BYTES (UINT64_C(64) << 10)
#define RDTI_VERBS_STAGE_PIECES 16
/* A copy of 64 KiB takes 7 us, a rendezvous a round trip and a READ. A piece of 64 KiB is written
 * into its place if it has a persistent receive. */
#define RDTI_VERBS_EAGER_MAX_BYTES ((UINT64_C(64) << 10) - 1)
/* Maximum that a flag adds to a request: up to seven bytes of alignment, and the flag. */
#define RDTI_VERBS_TAIL_BYTES 16
/* A flag wakes no thread, so a process that polls for flags sleeps no longer than this. A tensor
 * may be noticed this late; a thousand wake-ups per second take 1 % of a core. */
#define RDTI_VERBS_FLAG_NAP_NS UINT64_C(1000000)
/* Outstanding reads that one QP requests from a device; most devices have 16. */
#define RDTI_VERBS_READS 16

/* 4.096 us * 2^17 = 0.54 s per attempt: with 6 retries a cable may be out for 3 s and more. Never
 * 7: rxe then retries without end, and a cable that stays out causes no error (in
 * tests/c/transport/verbs_trace_test.c no completion within a minute on kernel 6.12). */
#define RDTI_VERBS_TIMEOUT 17
#define RDTI_VERBS_RETRY 6
/* Receives are reposted ahead of the window, so that RNR does not occur; if it does, retries are
 * bounded (7 would mean no bound). 0.64 ms between two attempts. */
#define RDTI_VERBS_RNR_RETRY 6
#define RDTI_VERBS_RNR_TIMER 12
#define RDTI_VERBS_HOP_LIMIT 64

/* Time for all pairs of GIDs of a link together, each the same share: the core gives a path five
 * seconds. A round takes 100 ms on an emulated machine, a lost packet another half second. */
#define RDTI_VERBS_PROOF_NS UINT64_C(4000000000)
#define RDTI_VERBS_PAIRS_MAX 4
/* A QP in ERR flushes at once, but a removed device may not report it. Then the arrivals so far
 * count: it moves no more bytes, and the peer sends again what this side did not see. */
#define RDTI_VERBS_FLUSH_NS UINT64_C(1000000000)
/* Time for the peer to answer DOWN: the core's default for a silent peer, and RDTI_VERBS_FLUSH_NS
 * more in case this process was stopped. A dead peer is found earlier, by its silence. */
#define RDTI_VERBS_ANSWER_NS UINT64_C(10000000000)
/* Teardown waits this long for flushed completions, only for the count in the message. */
#define RDTI_VERBS_DRAIN_NS UINT64_C(20000000)

#endif
