/* SPDX-License-Identifier: Apache-2.0
 * What every benchmark program needs: the clock, a core of its own, samples, lines of JSON. A
 * failure ends the program. */
#ifndef RDT_BENCH_BENCH_H
#define RDT_BENCH_BENCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Silence of the other process that ends this one. */
#define BENCH_PATIENCE_NS UINT64_C(20000000000)
#define BENCH_EXIT_SKIP 77

/* For messages; main() sets it. */
extern const char *bench_name;

/* CLOCK_MONOTONIC: the same in both processes. */
uint64_t bench_now_ns(void);
/* Print `what` with errno's text, or a formatted line, and exit with 1. */
_Noreturn void bench_die(const char *what);
_Noreturn void bench_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Pin the calling thread to the index-th core that it may use; false: there are fewer. */
bool bench_pin(int index);
uint32_t bench_cores(void);
void bench_relax(void);
/* Round trips before `trips` timed ones: a fifth of them, and never fewer than 5. */
size_t bench_warm_up(size_t trips);
/* Keep the core busy, without looking at shared memory. */
void bench_spin_ns(uint64_t ns);

/* What the process has spent so far, with all its threads. A switch: one of them slept of its own
 * will. */
struct bench_spent {
    uint64_t cpu_ns;
    uint64_t switches;
};
struct bench_spent bench_spent_now(void);

/* Wait, spinning, until *word is `value`; the other side has PATIENCE. acquire. */
void bench_await(_Atomic uint64_t *word, uint64_t value, const char *whom);

/* Anonymous, populated, zero; `flags` is MAP_SHARED or MAP_PRIVATE. */
void *bench_map(size_t len_bytes, int flags);
/* Add up the buffer as words: a reader that cannot be optimised away if its sum is used. */
uint64_t bench_sum(const void *buf, size_t len_bytes);
/* A payload in which each place has a byte of its own, different for each seed, and the check of
 * it; what differs ends the program in the name of `whose`. */
void bench_fill(void *buf, size_t len_bytes, uint64_t seed);
void bench_verify(const void *buf, size_t len_bytes, uint64_t seed, const char *whose);

/* ---- Samples ----------------------------------------------------------------------------- */

struct bench_series {
    const char *name;
    uint64_t *ns;
    size_t count;
    size_t cap;
};

void bench_series_init(struct bench_series *s, const char *name, size_t cap);
void bench_series_add(struct bench_series *s, uint64_t ns); /* past cap they are dropped */
void bench_series_free(struct bench_series *s);
/* fraction in [0, 1]; 0.5 is the median. */
uint64_t bench_series_quantile(const struct bench_series *s, double fraction);

/*
 * One line: {"bench": name, "name": ..., <fields>, "median_ns": ..., "p10": ..., "p90": ...,
 * "p99": ..., "p999": ..., "samples": n, "raw_ns": [...]}. `fields` is a piece of JSON such as
 * "\"size\": 8". raw_ns has all samples up to BENCH_RAW_ALL, of which a reader adds those of
 * several runs for their tails; of more BENCH_RAW_MAX, evenly spread over the run and in its order.
 */
#define BENCH_RAW_ALL 1000
#define BENCH_RAW_MAX 200
void bench_series_print(const struct bench_series *s, const char *fields);

/* ---- Arguments --------------------------------------------------------------------------- */

/* The value after `--name`, or NULL; bench_has() for flags, bench_check_args() for the unknown. */
const char *bench_arg(int argc, char **argv, const char *name);
bool bench_has(int argc, char **argv, const char *name);
double bench_arg_number(int argc, char **argv, const char *name, double otherwise);
/* Every argument must be in `known`, a NULL-terminated list in which a name that takes a value ends
 * in "=". */
void bench_check_args(int argc, char **argv, const char *const *known);

#endif
