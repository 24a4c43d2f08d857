/* SPDX-License-Identifier: Apache-2.0
 * The sub-commands of rdtperf. Each measures one thing between two processes, which take turns with
 * a baseline where there is one, and prints a line of JSON for each series of samples. */
#ifndef RDT_BENCH_RDTPERF_H
#define RDT_BENCH_RDTPERF_H

#include "contest.h"

void perf_idle_memory(const struct contest *options);
void perf_latency(const struct contest *options);
void perf_overhead(const struct contest *options);
void perf_reads(const struct contest *options);
void perf_registration(const struct contest *options);
void perf_shm_write(const struct contest *options);
void perf_streams(const struct contest *options);
void perf_tcp_throughput(const struct contest *options);
void perf_tensors(const struct contest *options);
void perf_write_many(const struct contest *options);

#endif
