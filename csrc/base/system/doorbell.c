/* SPDX-License-Identifier: Apache-2.0
 * The doorbell; the header has the argument that no wake-up is lost. */
#include "base/system/doorbell.h"

#include <errno.h>
#include <unistd.h>

#include "base/system/futex.h"

uint32_t
rdti_doorbell_ring(struct rdti_doorbell *bell, int event_fd, bool is_urgent)
{
    uint32_t calls = 0;

    /* seq_cst: after the caller's seq_cst publication, before the sleeper's second check. */
    if (atomic_load_explicit(&bell->futex_sleepers, memory_order_seq_cst) > 0) {
        /* relaxed would do: the futex system call orders it; pairs with the load in
         * begin_sleep(). */
        (void)atomic_fetch_add_explicit(&bell->sequence, 1, memory_order_seq_cst);
        rdti_futex_wake(&bell->sequence, INT32_MAX);
        calls++;
    }
    bool needs_event = atomic_load_explicit(&bell->epoll_sleepers, memory_order_seq_cst) > 0;
    if (!needs_event && is_urgent && calls == 0)
        needs_event = atomic_load_explicit(&bell->background, memory_order_seq_cst) > 0;
    if (needs_event && event_fd >= 0) {
        const uint64_t one = 1;
        ssize_t written;
        do
            written = write(event_fd, &one, sizeof(one));
        while (written < 0 && errno == EINTR);
        /* EAGAIN: the counter is full, so the descriptor is readable, which suffices. */
        calls++;
    }
    return calls;
}

uint32_t
rdti_doorbell_begin_sleep(struct rdti_doorbell *bell)
{
    /* Read first: a ring between here and the futex call changes the word, so the sleep returns. */
    const uint32_t sequence = atomic_load_explicit(&bell->sequence, memory_order_seq_cst);

    /* seq_cst: pairs with the load in rdti_doorbell_ring(). */
    (void)atomic_fetch_add_explicit(&bell->futex_sleepers, 1, memory_order_seq_cst);
    return sequence;
}

void
rdti_doorbell_sleep(struct rdti_doorbell *bell, uint32_t sequence, uint64_t timeout_ns)
{
    rdti_futex_wait(&bell->sequence, sequence, timeout_ns);
}

void
rdti_doorbell_end_sleep(struct rdti_doorbell *bell)
{
    (void)atomic_fetch_sub_explicit(&bell->futex_sleepers, 1, memory_order_seq_cst);
}
