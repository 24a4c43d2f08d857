/* SPDX-License-Identifier: Apache-2.0
 * Futexes on words that processes share (never FUTEX_PRIVATE). */
#ifndef RDTI_BASE_SYSTEM_FUTEX_H
#define RDTI_BASE_SYSTEM_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

/* Sleep while *word == expected, at most timeout_ns. Returns on a wake, a change, a signal or the
 * timeout, without reporting which: the caller checks again. */
void rdti_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns);

/* Wake at most `count` sleepers on word. */
void rdti_futex_wake(_Atomic uint32_t *word, uint32_t count);

#endif
