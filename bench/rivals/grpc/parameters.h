/* SPDX-License-Identifier: Apache-2.0
 *
 * A parameter server over gRPC in C++, both ends, for who loads it: bench/workers/grpc_native.py.
 *
 * Messages are those of bench/workers/grpc_server.py: which tensor, shape, dtype, offset, bytes.
 * All return 0 or a handle, else -1 or NULL, and then params_error() says why, in that thread.
 */
#ifndef BENCH_RIVALS_GRPC_PARAMETERS_H
#define BENCH_RIVALS_GRPC_PARAMETERS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Dense float32 in row-major order. A worker has two places for the values of each, in turn: new
 * values arrive in the one that backward does not read. The server has one. */
struct params_tensor {
    float *values;
    float *other;
    const uint64_t *dims;
    uint64_t ndim;
};

struct params_client;

const char *params_error(void);

/* Hold the tensors until all workers have ended their streams; `address` is HOST:PORT, the port
 * may be 0. The one that it listens on is written to `port_file`, which is new then. */
int params_serve(const char *address, const struct params_tensor *tensors, size_t count,
                 size_t piece_bytes, size_t workers, float rate, const char *port_file,
                 double timeout_s);

/* `tensors` and what they point to outlive the client. The deadline is that of the whole stream. */
struct params_client *params_connect(const char *address, const struct params_tensor *tensors,
                                     size_t count, size_t piece_bytes, double timeout_s);

/* Send a gradient, from a thread of the client's; it must not change before params_pull(). */
int params_push(struct params_client *client, size_t index, const float *gradient);

/* Wait until all new values are here: in `other` after the first, third... time. */
int params_pull(struct params_client *client);

/* Processor time of the server's process so far; below 0: an error. */
int64_t params_server_spent_ns(struct params_client *client);

/* End the stream, and free the client, also where it returns -1. */
int params_close(struct params_client *client);

#ifdef __cplusplus
}
#endif
#endif
