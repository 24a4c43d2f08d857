/* SPDX-License-Identifier: Apache-2.0
 * Clock, cores, samples and lines of JSON; see bench.h. */
#include "bench.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

const char *bench_name = "bench";

uint64_t
bench_now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

struct bench_spent
bench_spent_now(void)
{
    struct rusage use;

    if (getrusage(RUSAGE_SELF, &use) != 0)
        bench_die("getrusage");
    return (struct bench_spent){
        .cpu_ns =
            ((uint64_t)use.ru_utime.tv_sec + (uint64_t)use.ru_stime.tv_sec) * UINT64_C(1000000000) +
            ((uint64_t)use.ru_utime.tv_usec + (uint64_t)use.ru_stime.tv_usec) * 1000,
        .switches = (uint64_t)use.ru_nvcsw,
    };
}

_Noreturn void
bench_die(const char *what)
{
    (void)fprintf(stderr, "%s: %s: %s\n", bench_name, what, strerror(errno));
    exit(1);
}

_Noreturn void
bench_fail(const char *format, ...)
{
    va_list args;

    (void)fprintf(stderr, "%s: ", bench_name);
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
    exit(1);
}

bool
bench_pin(int index)
{
    cpu_set_t allowed;
    cpu_set_t one;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        bench_die("sched_getaffinity");
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || index-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        return sched_setaffinity(0, sizeof(one), &one) == 0;
    }
    return false;
}

uint32_t
bench_cores(void)
{
    cpu_set_t allowed;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        bench_die("sched_getaffinity");
    return (uint32_t)CPU_COUNT(&allowed);
}

void
bench_relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#endif
}

void
bench_spin_ns(uint64_t ns)
{
    const uint64_t until_ns = bench_now_ns() + ns;

    while (bench_now_ns() < until_ns)
        bench_relax();
}

void
bench_await(_Atomic uint64_t *word, uint64_t value, const char *whom)
{
    const uint64_t deadline_ns = bench_now_ns() + BENCH_PATIENCE_NS;

    /* acquire: pairs with the other side's release store */
    for (uint32_t spins = 1; atomic_load_explicit(word, memory_order_acquire) != value; spins++) {
        bench_relax();
        if (spins % 4096 == 0 && bench_now_ns() > deadline_ns)
            bench_fail("%s does not answer", whom);
    }
}

void *
bench_map(size_t len_bytes, int flags)
{
    void *p =
        mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    if (p == MAP_FAILED)
        bench_die("mmap");
    return p;
}

size_t
bench_warm_up(size_t trips)
{
    return trips / 5 < 5 ? 5 : trips / 5;
}

uint64_t
bench_sum(const void *buf, size_t len_bytes)
{
    const char *p = buf;
    uint64_t sum = 0;

    for (size_t i = 0; i + 8 <= len_bytes; i += 8) {
        uint64_t word;

        memcpy(&word, p + i, sizeof(word));
        sum += word;
    }
    return sum;
}

/* Of pages and larger pieces that change places, too. */
static unsigned char
byte_at(size_t i, uint64_t seed)
{
    return (unsigned char)(i * 31 + (i >> 8) * 7 + (i >> 16) * 13 + (i >> 24) * 29 + seed);
}

void
bench_fill(void *buf, size_t len_bytes, uint64_t seed)
{
    unsigned char *p = buf;

    for (size_t i = 0; i < len_bytes; i++)
        p[i] = byte_at(i, seed);
}

void
bench_verify(const void *buf, size_t len_bytes, uint64_t seed, const char *whose)
{
    const unsigned char *p = buf;

    for (size_t i = 0; i < len_bytes; i++)
        if (p[i] != byte_at(i, seed))
            bench_fail("%s: byte %zu of %zu is not what was sent", whose, i, len_bytes);
}

/* ---- Samples ----------------------------------------------------------------------------- */

void
bench_series_init(struct bench_series *s, const char *name, size_t cap)
{
    *s = (struct bench_series){.name = name, .cap = cap};
    s->ns = calloc(cap, sizeof(*s->ns));
    if (s->ns == NULL)
        bench_die("calloc");
}

void
bench_series_add(struct bench_series *s, uint64_t ns)
{
    if (s->count < s->cap)
        s->ns[s->count++] = ns;
}

void
bench_series_free(struct bench_series *s)
{
    free(s->ns);
    *s = (struct bench_series){0};
}

static int
compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

uint64_t
bench_series_quantile(const struct bench_series *s, double fraction)
{
    if (s->count == 0)
        bench_fail("%s has no sample", s->name);
    uint64_t *sorted = malloc(s->count * sizeof(*sorted));
    if (sorted == NULL)
        bench_die("malloc");
    memcpy(sorted, s->ns, s->count * sizeof(*sorted));
    qsort(sorted, s->count, sizeof(*sorted), compare);
    const uint64_t value = sorted[(size_t)(fraction * (double)(s->count - 1) + 0.5)];
    free(sorted);
    return value;
}

void
bench_series_print(const struct bench_series *s, const char *fields)
{
    const size_t shown = s->count <= BENCH_RAW_ALL ? s->count : BENCH_RAW_MAX;

    (void)printf("{\"bench\": \"%s\", \"name\": \"%s\", %s%s\"median_ns\": %llu, "
                 "\"p10\": %llu, \"p90\": %llu, \"p99\": %llu, \"p999\": %llu, \"samples\": %zu, "
                 "\"raw_ns\": [",
                 bench_name, s->name, fields, fields[0] != '\0' ? ", " : "",
                 (unsigned long long)bench_series_quantile(s, 0.5),
                 (unsigned long long)bench_series_quantile(s, 0.1),
                 (unsigned long long)bench_series_quantile(s, 0.9),
                 (unsigned long long)bench_series_quantile(s, 0.99),
                 (unsigned long long)bench_series_quantile(s, 0.999), s->count);
    for (size_t i = 0; i < shown; i++)
        (void)printf("%s%llu", i > 0 ? ", " : "", (unsigned long long)s->ns[i * s->count / shown]);
    (void)printf("]}\n");
    (void)fflush(stdout);
}

/* ---- Arguments --------------------------------------------------------------------------- */

const char *
bench_arg(int argc, char **argv, const char *name)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    return NULL;
}

bool
bench_has(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return true;
    return false;
}

double
bench_arg_number(int argc, char **argv, const char *name, double otherwise)
{
    const char *text = bench_arg(argc, argv, name);
    char *end;

    if (text == NULL)
        return otherwise;
    const double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value > 0))
        bench_fail("%s wants a number above 0, got \"%s\"", name, text);
    return value;
}

void
bench_check_args(int argc, char **argv, const char *const *known)
{
    for (int i = 1; i < argc; i++) {
        const char *const *k = known;
        const size_t len = strlen(argv[i]);

        while (*k != NULL && (strncmp(*k, argv[i], len) != 0 ||
                              ((*k)[len] != '\0' && strcmp(*k + len, "=") != 0)))
            k++;
        if (*k == NULL) {
            (void)fprintf(stderr, "%s: unknown argument \"%s\"; it knows", bench_name, argv[i]);
            for (k = known; *k != NULL; k++)
                (void)fprintf(stderr, " %s", *k);
            (void)fputc('\n', stderr);
            exit(1);
        }
        if ((*k)[len] == '=' && ++i == argc)
            bench_fail("%s wants a value", argv[i - 1]);
    }
}
