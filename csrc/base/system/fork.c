/* SPDX-License-Identifier: Apache-2.0
 * Fork handlers: see fork.h. */
#include "base/system/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/log.h"

#define WORD_BITS 64
#define WORDS (RDTI_FORK_FDS_MAX / WORD_BITS)

/* Bit n: close descriptor n. A bitmap by number needs no lock, which a child forked while another
 * thread held it could never take. Relaxed: fork() itself orders what the forking thread did
 * before; a bit that another thread adds at that moment may or may not be seen under any order. */
static _Atomic uint64_t close_bits[WORDS];

/* Words ever used, so that a fork does not scan (and fault in) the whole map. Relaxed as above. */
static _Atomic uint32_t words_used;

/* Set by the child's only thread before fork() returns there; relaxed. Inherited by its
 * children. */
static _Atomic bool in_child;

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Only async-signal-safe calls: other threads may have held any lock. */
static void
fork_enter_child(void)
{
    const uint32_t used = atomic_load_explicit(&words_used, memory_order_relaxed);

    atomic_store_explicit(&in_child, true, memory_order_relaxed);
    for (uint32_t i = 0; i < used; i++) {
        /* Cleared: the child may reuse these numbers for its own files and fork again. */
        uint64_t bits = atomic_exchange_explicit(&close_bits[i], 0, memory_order_relaxed);

        while (bits != 0) {
            const int bit = __builtin_ctzll(bits);

            (void)close((int)i * WORD_BITS + bit);
            bits &= bits - 1;
        }
    }
}

static void
fork_register_handlers(void)
{
    const int rc = pthread_atfork(NULL, NULL, fork_enter_child);

    if (rc != 0)
        rdti_log(RDT_LOG_ERROR,
                 "pthread_atfork failed (errno %d): forked children keep our sockets open", rc);
}

void
rdti_fork_guard(void)
{
    (void)pthread_once(&once, fork_register_handlers);
}

bool
rdti_in_forked_child(void)
{
    return atomic_load_explicit(&in_child, memory_order_relaxed);
}

bool
rdti_fork_close_add(int fd)
{
    if (fd < 0 || fd >= RDTI_FORK_FDS_MAX)
        return false;

    const uint32_t word = (uint32_t)fd / WORD_BITS;
    uint32_t used = atomic_load_explicit(&words_used, memory_order_relaxed);

    while (used < word + 1 &&
           !atomic_compare_exchange_weak_explicit(&words_used, &used, word + 1,
                                                  memory_order_relaxed, memory_order_relaxed))
        ; /* `used` was re-read */
    (void)atomic_fetch_or_explicit(&close_bits[word], UINT64_C(1) << (fd % WORD_BITS),
                                   memory_order_relaxed);
    return true;
}

void
rdti_fork_close_remove(int fd)
{
    if (fd < 0 || fd >= RDTI_FORK_FDS_MAX)
        return;
    (void)atomic_fetch_and_explicit(&close_bits[(uint32_t)fd / WORD_BITS],
                                    ~(UINT64_C(1) << (fd % WORD_BITS)), memory_order_relaxed);
}
