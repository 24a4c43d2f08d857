/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded before every other library: counts how often this process asks for the name of an
 * address, for which a name server may be asked over the network. Built by test_rendezvous.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdatomic.h>

static _Atomic unsigned asked;

unsigned
asked_names(void)
{
    return atomic_load(&asked);
}

int
getnameinfo(const struct sockaddr *addr, socklen_t addr_bytes, char *host, socklen_t host_bytes,
            char *service, socklen_t service_bytes, int flags)
{
    int (*real)(const struct sockaddr *, socklen_t, char *, socklen_t, char *, socklen_t, int) =
        (int (*)(const struct sockaddr *, socklen_t, char *, socklen_t, char *, socklen_t,
                 int))dlsym(RTLD_NEXT, "getnameinfo");

    if ((flags & NI_NUMERICHOST) == 0)
        (void)atomic_fetch_add(&asked, 1);
    return real(addr, addr_bytes, host, host_bytes, service, service_bytes, flags);
}
