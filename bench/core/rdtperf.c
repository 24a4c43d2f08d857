/* SPDX-License-Identifier: Apache-2.0
 *
 * rdtperf - what the library costs through rdmatensor.h: rdtperf COMMAND [--option value]...
 * Without a command it lists them. Each file of this folder says at its top what its command
 * measures; options that a command does not have are refused.
 */
#include "rdtperf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define MAX_OPTIONS 9

struct command {
    const char *name;
    const char *what;
    void (*run)(const struct contest *options);
    const char *known[MAX_OPTIONS];
    size_t most_bytes;
    struct contest defaults;
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
     {"--size=", "--seconds="},
     64 * MIB,
     {.len_bytes = MIB, .seconds = 2}},
    {"tcp_throughput",
     "a large write over TCP and the best plain sockets",
     perf_tcp_throughput,
     {"--size=", "--seconds="},
     64 * MIB,
     {.transport = "tcp", .len_bytes = 64 * MIB, .seconds = 5}},
    {"write_many",
     "a list of blocks and one write of their sum",
     perf_write_many,
     {"--transport=", "--count=", "--size=", "--seconds="},
     64 * MIB,
     {.len_bytes = 16 * KIB, .count = 4096, .seconds = 3}},
    {"registration",
     "memory, a context and a connection, before the first write",
     perf_registration,
     {"--transport=", "--size=", "--rounds="},
     1024 * MIB,
     {.len_bytes = 1024 * MIB, .rounds = 3}},
    {"idle_memory",
     "memory of idle connections",
     perf_idle_memory,
     {"--transport=", "--count="},
     0,
     {.count = 64}},
    {"overhead",
     "system calls and wire bytes of a write",
     perf_overhead,
     {"--transport=", "--count=", "--size="},
     MIB,
     {.len_bytes = 8, .count = 20000}},
};

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
        const struct command *command = &commands[i];

        if (strcmp(argv[1], command->name) != 0)
            continue;
        bench_name = command->name;
        bench_check_args(argc - 1, argv + 1, command->known);
        const struct contest options =
            contest_of(argc - 1, argv + 1, &command->defaults, command->most_bytes);
        command->run(&options);
        return 0;
    }
    list_commands();
}
