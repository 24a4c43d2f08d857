/* SPDX-License-Identifier: Apache-2.0
 * What a socket address says: its text, whether it is of this host. Any thread. */
#ifndef RDTI_BASE_SOCKADDR_H
#define RDTI_BASE_SOCKADDR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

/* Holds every text of rdti_sockaddr_text(): 45 characters of IPv6, brackets, colon, port, NUL. */
#define RDTI_SOCKADDR_TEXT_BYTES 64

/* "127.0.0.1:80" or "[::1]:80", "a socket of family 1" for others; never fails, and ends with NUL
 * whatever cap (at least 1) is. */
void rdti_sockaddr_text(const struct sockaddr *addr, char *buf, size_t cap);

/* 127.0.0.0/8 or ::1. No other family is, and no IPv4 address written as IPv6: our sockets speak
 * one of the two. */
bool rdti_sockaddr_is_loopback(const struct sockaddr *addr);

#endif
