/* SPDX-License-Identifier: Apache-2.0
 * Listens for peers: an abstract Unix socket (same user, same network namespace), TCP sockets, and
 * the address that publishes their addresses. */
#ifndef RDTI_CONNECT_LISTENER_H
#define RDTI_CONNECT_LISTENER_H

#include <stdbool.h>
#include <stdint.h>

#include "connect/handshake.h"
#include "process/process.h"

struct rdti_listener;

/* [driver] Listens as ctx->opts configure. RDT_EINVAL (interface, address), RDT_EDEVICE (every port
 * of the range is in use ...). */
rdt_status rdti_listener_open(rdt_context *ctx, const struct rdti_handshake_events *events,
                              struct rdti_listener **out, struct rdt_error *err);
/* [driver] Also ends the handshakes in progress. NULL is legal. */
void rdti_listener_close(struct rdti_listener *listener);
/* The table of handshakes of both roles. */
struct rdti_list *rdti_listener_handshakes(struct rdti_listener *listener);
/* The address; immutable after open. */
const struct rdti_address *rdti_listener_address(const struct rdti_listener *listener);
/* RDMATENSOR_TEST_HOST was set: peers with another host hint are treated as if on another host,
 * although they are on this one. */
bool rdti_listener_is_test_host(const struct rdti_listener *listener);

#endif
