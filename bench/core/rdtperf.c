/* SPDX-License-Identifier: Apache-2.0
 *
 * rdtperf - what the library costs through rdmatensor.h: rdtperf COMMAND [--option value]...
 * Without a command it lists them. Each file of this folder says at its top what its command
 * measures; options that a command does not have are refused.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define MAX_OPTIONS 10

struct command {
    const char *name;
    const char *what;
    void (*run)(const struct perf_options *options);
    const char *known[MAX_OPTIONS];
    size_t most_bytes;
    struct perf_options defaults;
};

static const struct command commands[] = {
    {"latency",
     "write + notify, half a round trip",
     perf_latency,
     {"--transport=", "--wait=", "--size=", "--rounds=", "--count="},
     64 * MIB,
     {.len_bytes = 8, .rounds = 50, .count = 1000}},
    {"streams",
     "messages in a row",
     perf_streams,
     {"--transport=", "--wait=", "--size=", "--depth=", "--both", "--silent",
      "--count=", "--rounds="},
     1024 * MIB,
     {.len_bytes = 64 * KIB, .depth = 1, .rounds = 5, .count = 200}},
    {"reads",
     "one-sided reads",
     perf_reads,
     {"--transport=", "--wait=", "--size=", "--depth=", "--count=", "--rounds="},
     64 * MIB,
     {.len_bytes = 64 * KIB, .depth = 1, .rounds = 5, .count = 200}},
    {"tensors",
     "one tensor by slots and by rings",
     perf_tensors,
     {"--transport=", "--size=", "--rounds=", "--count=", "--chunk="},
     64 * MIB,
     {.len_bytes = 64 * KIB, .rounds = 5, .count = 200}},
    {"shm_write",
     "writes over shared memory and kinds of copies",
     perf_shm_write,
     {"--size=", "--rounds=", "--count="},
     64 * MIB,
     {.len_bytes = MIB, .rounds = 20, .count = 3}},
    {"write_many",
     "a list of blocks and one write of their sum",
     perf_write_many,
     {"--transport=", "--blocks=", "--size=", "--rounds=", "--count="},
     64 * MIB,
     {.len_bytes = 16 * KIB, .blocks = 4096, .rounds = 10, .count = 3}},
    {"registration",
     "memory, a context and a connection, before the first write",
     perf_registration,
     {"--transport=", "--size=", "--rounds="},
     1024 * MIB,
     {.len_bytes = 1024 * MIB, .rounds = 3}},
};

static bool
is_sleeping(int argc, char **argv)
{
    const char *wait = bench_arg(argc, argv, "--wait");

    if (wait != NULL && strcmp(wait, "sleep") != 0 && strcmp(wait, "spin") != 0)
        bench_fail("--wait is spin or sleep, not \"%s\"", wait);
    return wait != NULL && strcmp(wait, "sleep") == 0;
}

static struct perf_options
options_of(const struct command *command, int argc, char **argv)
{
    const char *transport = bench_arg(argc, argv, "--transport");
    struct perf_options o = command->defaults;

    o.transport = transport != NULL ? transport : "shm";
    o.is_tcp = strcmp(o.transport, "tcp") == 0;
    o.sleeps = is_sleeping(argc, argv);
    o.is_both = bench_has(argc, argv, "--both");
    o.is_silent = bench_has(argc, argv, "--silent");
    o.has_floor = strcmp(o.transport, "verbs") != 0 && !o.is_silent;
    o.len_bytes = (size_t)bench_arg_number(argc, argv, "--size", (double)o.len_bytes);
    o.depth = (uint64_t)bench_arg_number(argc, argv, "--depth", (double)o.depth);
    o.count = (uint64_t)bench_arg_number(argc, argv, "--count", (double)o.count);
    o.rounds = (size_t)bench_arg_number(argc, argv, "--rounds", (double)o.rounds);
    o.blocks = (uint64_t)bench_arg_number(argc, argv, "--blocks", (double)o.blocks);
    o.chunk_bytes = (size_t)bench_arg_number(argc, argv, "--chunk", o.is_tcp ? 1 << 20 : 65536);
    if (o.len_bytes > command->most_bytes || o.depth > PERF_MAX_DEPTH)
        bench_fail("--size is at most %zu, --depth %d", command->most_bytes, PERF_MAX_DEPTH);
    if (o.sleeps && !o.is_tcp)
        bench_fail("--wait sleep has a baseline on tcp only");
    return o;
}

_Noreturn static void
list_commands(void)
{
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        (void)fprintf(stderr, "rdtperf %-15s %s:", commands[i].name, commands[i].what);
        for (const char *const *known = commands[i].known; *known != NULL; known++)
            (void)fprintf(stderr, " %s", *known);
        (void)fputc('\n', stderr);
    }
    exit(2);
}

int
main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(argv[1], commands[i].name) != 0)
            continue;
        bench_name = commands[i].name;
        bench_check_args(argc - 1, argv + 1, commands[i].known);
        const struct perf_options options = options_of(&commands[i], argc - 1, argv + 1);
        commands[i].run(&options);
        return 0;
    }
    list_commands();
}
