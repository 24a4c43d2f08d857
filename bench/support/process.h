/* SPDX-License-Identifier: Apache-2.0
 * What the kernel knows of this process, and numbers of the library's own description. */
#ifndef RDT_BENCH_PROCESS_H
#define RDT_BENCH_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

struct process_memory {
    uint64_t rss_bytes;
    uint64_t pss_bytes;
    uint64_t private_bytes; /* clean and dirty: nobody else maps them */
    uint64_t descriptors;
};

/* From /proc/self/smaps_rollup and /proc/self/fd. */
struct process_memory process_memory_now(void);

/* The number after `"key":` at its first place within the object after `"object":` of
 * rdt_context_describe(). */
uint64_t process_described(rdt_context *ctx, const char *object, const char *key);

/*
 * Count the system calls that the calling thread makes from now on, until the process ends: a
 * seccomp filter traps each, and the handler makes it in the thread's name. Costs some us a call,
 * nothing where there is none. Linux on x86-64 only; false elsewhere, or where seccomp is not
 * allowed.
 */
#define PROCESS_CALLS_MAX 512
bool process_count_calls(void);
uint64_t process_calls(uint32_t number); /* of one system call */
uint64_t process_calls_total(void);

#endif
