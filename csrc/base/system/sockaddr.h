/* SPDX-License-Identifier: Apache-2.0
 * Socket addresses: their text, and whether they are loopback addresses. Any thread. */
#ifndef RDTI_BASE_SYSTEM_SOCKADDR_H
#define RDTI_BASE_SYSTEM_SOCKADDR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

/* Holds every text of rdti_sockaddr_text(): 45 characters of IPv6, brackets, colon, port, NUL. */
#define RDTI_SOCKADDR_TEXT_BYTES 64

/* "127.0.0.1:80" or "[::1]:80", "a socket of family 1" for others; never fails, and ends with NUL
 * whatever cap (at least 1) is. */
void rdti_sockaddr_text(const struct sockaddr *addr, char *buf, size_t cap);

/* 127.0.0.0/8 or ::1. False for other families and for IPv4-mapped IPv6 addresses: each socket of
 * the library uses one of the two families. */
bool rdti_sockaddr_is_loopback(const struct sockaddr *addr);

#endif
