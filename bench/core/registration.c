/* SPDX-License-Identifier: Apache-2.0
 *
 * registration - what memory costs before it can be written to, and that it costs that only once;
 * and apart from it what a process and a connection cost before.
 *
 *   rdtperf registration [--transport shm|tcp] [--size N] [--rounds N]    default shm, 1 GiB, 3
 *
 * In each round, in processes of its own: "alloc": rdt_region_alloc() of the whole, from nothing;
 * "alloc again": the same after it was freed; "register": rdt_region_register() of memory that
 * exists and is populated. Floor: "populate", a memfd of that size, mapped and populated by one
 * thread. Then, between two processes: "open", of a context; "connect", from the peer's address
 * until the path is proved; "first write" of 8 B into a region of that size, which over shared
 * memory maps it, and "second write".
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "perf.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older libcs do not name it */
#endif

enum { ALLOC, ALLOC_AGAIN, REGISTER, POPULATE, OPEN, CONNECT, FIRST_WRITE, SECOND_WRITE, SERIES };

static uint64_t *took; /* [SERIES], shared by all processes */

static rdt_region *
alloc(rdt_context *ctx, uint64_t len_bytes, uint64_t *took_ns)
{
    struct rdt_error err;
    rdt_region *region;

    const uint64_t start_ns = bench_now_ns();
    pair_check(rdt_region_alloc(ctx, len_bytes, 0, &region, &err), &err, "rdt_region_alloc");
    *took_ns = bench_now_ns() - start_ns;
    return region;
}

static void
register_existing(rdt_context *ctx, uint64_t len_bytes, uint64_t *took_ns)
{
    struct rdt_error err;
    rdt_region *region;
    void *memory = bench_map(len_bytes, MAP_PRIVATE);

    const uint64_t start_ns = bench_now_ns();
    pair_check(rdt_region_register(ctx, memory, len_bytes, &region, &err), &err,
               "rdt_region_register");
    *took_ns = bench_now_ns() - start_ns;
    rdt_region_free(region, NULL, NULL);
    (void)munmap(memory, len_bytes);
}

static void
populate(uint64_t len_bytes, uint64_t *took_ns)
{
    const uint64_t start_ns = bench_now_ns();
    const int fd = memfd_create("registration", MFD_CLOEXEC);

    if (fd < 0 || ftruncate(fd, (off_t)len_bytes) != 0)
        bench_die("memfd");
    void *p = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        bench_die("mmap");
    if (madvise(p, len_bytes, MADV_POPULATE_WRITE) != 0) {
        if (errno != EINVAL)
            bench_die("madvise");
        for (uint64_t i = 0; i < len_bytes; i += 4096) /* an older kernel: page by page */
            ((volatile char *)p)[i] = 0;
    }
    *took_ns = bench_now_ns() - start_ns;
    (void)munmap(p, len_bytes);
    (void)close(fd);
}

static void
measure_alone(const struct perf_options *options)
{
    const struct pair_opts opts = {.transport = options->transport};
    const uint64_t len_bytes = options->len_bytes;
    struct rdt_error err;
    rdt_context *ctx = pair_open_context(&opts, 0);
    rdt_region *region = alloc(ctx, len_bytes, &took[ALLOC]);

    rdt_region_free(region, NULL, NULL);
    region = alloc(ctx, len_bytes, &took[ALLOC_AGAIN]);
    rdt_region_free(region, NULL, NULL);
    register_existing(ctx, len_bytes, &took[REGISTER]);
    pair_check(rdt_context_close(ctx, &err), &err, "rdt_context_close");
    populate(len_bytes, &took[POPULATE]);
}

static void
write_side(struct pair *p)
{
    const struct perf_options *options = p->arg;
    const struct rdt_remote_region remote = pair_take_offer(p);
    const uint64_t word = 1;

    took[OPEN] = p->open_ns;
    took[CONNECT] = p->connect_ns;
    for (int i = FIRST_WRITE; i <= SECOND_WRITE; i++) {
        const uint64_t start_ns = bench_now_ns();

        pair_write(p, &word, sizeof(word), &remote, options->len_bytes - sizeof(word), 7);
        took[i] = bench_now_ns() - start_ns;
        bench_spin_ns(1000000);
    }
}

static void
own_side(struct pair *p)
{
    const struct perf_options *options = p->arg;
    rdt_region *region = pair_offer(p, options->len_bytes);

    for (int i = FIRST_WRITE; i <= SECOND_WRITE; i++)
        (void)pair_wait_notify(p);
    rdt_region_free(region, NULL, NULL);
}

/* In a process of its own: the library does not work on in children of processes that used it. */
static void
run_round(const struct perf_options *options)
{
    int status;

    (void)fflush(NULL);
    const pid_t child = fork();
    if (child < 0)
        bench_die("fork");
    if (child == 0) {
        perf_run(options, write_side, own_side);
        measure_alone(options);
        exit(0);
    }
    if (waitpid(child, &status, 0) != child || status != 0)
        bench_fail("a round failed");
}

void
perf_registration(const struct perf_options *options)
{
    static const char *const names[SERIES] = {"alloc",       "alloc again", "register",
                                              "populate",    "open",        "connect",
                                              "first write", "second write"};
    struct bench_series series[SERIES];
    char fields[96];

    took = bench_map(SERIES * sizeof(uint64_t), MAP_SHARED);
    for (size_t i = 0; i < SERIES; i++)
        bench_series_init(&series[i], names[i], options->rounds);
    for (size_t round = 0; round < options->rounds; round++) {
        run_round(options);
        for (size_t i = 0; i < SERIES; i++)
            bench_series_add(&series[i], took[i]);
    }
    (void)snprintf(fields, sizeof(fields), "\"transport\": \"%s\", \"size\": %zu",
                   options->transport, options->len_bytes);
    for (size_t i = 0; i < SERIES; i++) {
        bench_series_print(&series[i], fields);
        bench_series_free(&series[i]);
    }
}
