/* SPDX-License-Identifier: Apache-2.0
 * TCP with plain sockets and nothing of the library: the floor under the tcp path. One connection
 * is between two processes that both follow the same script; whatever fails ends the program. */
#ifndef RDT_BENCH_RAW_TCP_H
#define RDT_BENCH_RAW_TCP_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>

#define RAW_TCP_MAX_STREAMS 4

struct raw_tcp_config {
    bool is_spinning; /* MSG_DONTWAIT until something moves; else recv() blocks, or poll() does */
    unsigned streams;
    size_t chunk_bytes;     /* most that one send() is given */
    int buffer_bytes;       /* SO_SNDBUF and SO_RCVBUF; 0: the kernel tunes them */
    const char *congestion; /* TCP_CONGESTION; NULL: the system's */
};

struct raw_tcp {
    const struct raw_tcp_config *config;
    int fds[RAW_TCP_MAX_STREAMS];
};

/* A listener on 127.0.0.1 with the config's options, which accepted sockets inherit; *out: its
 * address. */
int raw_tcp_listen(const struct raw_tcp_config *config, struct sockaddr_in *out);
/* The config's streams, in the order in which they connect. Each accept waits for 20 s at most. */
void raw_tcp_accept(struct raw_tcp *c, const struct raw_tcp_config *config, int listener);
void raw_tcp_connect(struct raw_tcp *c, const struct raw_tcp_config *config,
                     const struct sockaddr_in *addr);
void raw_tcp_close(struct raw_tcp *c);

/* Send or receive len_bytes over the first `streams` streams, each its contiguous share. */
void raw_tcp_move(const struct raw_tcp *c, bool is_sending, char *buf, size_t len_bytes,
                  unsigned streams);

/* Everything worth trying for one message of len_bytes, at most RAW_TCP_MAX_CANDIDATES; returns how
 * many. */
#define RAW_TCP_MAX_CANDIDATES 144
size_t raw_tcp_candidates(struct raw_tcp_config *out, size_t len_bytes);

#endif
