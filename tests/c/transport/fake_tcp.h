/* SPDX-License-Identifier: Apache-2.0
 * The core's part of a tcp lane: a listener that accepts sockets, verifies their JOIN and hands
 * them over. */
#ifndef RDT_TESTS_FAKE_TCP_H
#define RDT_TESTS_FAKE_TCP_H

#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>

#include "fake_host.h"

struct fake_tcp_listener {
    int fd;
    struct sockaddr_storage addr;
    socklen_t addr_bytes;
    uint32_t accepted; /* handed to the lane */
};

/* On the loopback address of AF_INET or AF_INET6; any port. */
void fake_tcp_listen(struct fake_tcp_listener *listener, int family);
void fake_tcp_unlisten(struct fake_tcp_listener *listener);
/* Accept what is there, check each JOIN against the lane's session and add the stream. */
void fake_tcp_accept(struct fake_tcp_listener *listener, struct fake_link *link,
                     const struct rdti_lane_args *args);
/* args of a connector to the listener. */
struct rdti_lane_args fake_tcp_args(const struct fake_tcp_listener *listener);

/* Both links of two hosts of this process over loopback, until both are ready. */
void fake_tcp_connect(struct fake_host *a, struct fake_link *ab, struct fake_host *b,
                      struct fake_link *ba, int family);

/* One side of a lane between two processes: offer over side_fd (taken over), then pump until
 * ready. The listener gives its listener, the connector NULL and args of fake_tcp_args(). */
void fake_tcp_join(struct fake_host *host, struct fake_link *link, int side_fd,
                   struct fake_tcp_listener *listener, const struct rdti_lane_args *args);

/* Two hosts and their links, ready. */
struct fake_tcp_pair {
    struct fake_host a;
    struct fake_host b;
    struct fake_link ab;
    struct fake_link ba;
};

void fake_tcp_pair_open(struct fake_tcp_pair *p, uint32_t streams, int family);
void fake_tcp_pair_close(struct fake_tcp_pair *p);
#define FAKE_TCP_PUMP(p, condition) FAKE_PUMP_UNTIL(&(p)->a, &(p)->b, condition, 10)

/* Bytes that differ from their neighbours and between seeds. */
void fake_tcp_pattern(uint8_t *at, uint64_t len_bytes, uint32_t seed);
/* A write from a to b with a notification: every byte, the bytes around it, completion. */
void fake_tcp_write_and_check(struct fake_tcp_pair *p, uint64_t len_bytes);

#endif
