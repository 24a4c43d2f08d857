/* SPDX-License-Identifier: Apache-2.0
 * Addresses in words, and which of them stay on the host. */
#include "base/system/sockaddr.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include "harness.h"

static struct sockaddr_storage
make(const char *text, uint16_t port)
{
    struct sockaddr_storage addr = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)&addr;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)&addr;

    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
    } else {
        CHECK_INT_EQ(inet_pton(AF_INET6, text, &v6->sin6_addr), 1);
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
    }
    return addr;
}

static const char *
text_of(const struct sockaddr_storage *addr)
{
    static char text[RDTI_SOCKADDR_TEXT_BYTES];

    memset(text, 'x', sizeof(text));
    rdti_sockaddr_text((const struct sockaddr *)(const void *)addr, text, sizeof(text));
    CHECK(memchr(text, '\0', sizeof(text)) != NULL);
    return text;
}

TEST(text_names_host_and_port)
{
    static const struct {
        const char *host;
        uint16_t port;
        const char *want;
    } cases[] = {
        {"127.0.0.1", 80, "127.0.0.1:80"},
        {"255.255.255.255", 65535, "255.255.255.255:65535"},
        {"0.0.0.0", 0, "0.0.0.0:0"},
        {"::1", 80, "[::1]:80"},
        {"::", 1, "[::]:1"},
        {"fe80::1", 443, "[fe80::1]:443"},
        {"::ffff:192.0.2.1", 7, "[::ffff:192.0.2.1]:7"},
        {"1234:5678:9abc:def1:1234:5678:9abc:def1", 65535,
         "[1234:5678:9abc:def1:1234:5678:9abc:def1]:65535"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct sockaddr_storage addr = make(cases[i].host, cases[i].port);

        CHECK_STR_EQ(text_of(&addr), cases[i].want);
    }
}

TEST(text_of_another_family_says_which)
{
    const struct sockaddr_storage addr = {.ss_family = AF_UNIX};

    CHECK_STR_EQ(text_of(&addr), "a socket of family 1");
}

/* In memory of exactly that size, so that a sanitizer sees one byte too many. */
TEST(text_ends_in_a_buffer_of_any_size)
{
    const struct sockaddr_storage addr = make("127.0.0.1", 80);

    for (size_t cap = 1; cap <= sizeof("127.0.0.1:80"); cap++) {
        char *buf = malloc(cap);

        CHECK_NOT_NULL(buf);
        rdti_sockaddr_text((const struct sockaddr *)(const void *)&addr, buf, cap);
        CHECK_UINT_EQ(strlen(buf), cap - 1);
        CHECK_MEM_EQ(buf, "127.0.0.1:80", cap - 1);
        free(buf);
    }
}

TEST(loopback_is_told_from_the_rest)
{
    static const struct {
        const char *host;
        bool is_loopback;
    } cases[] = {
        {"127.0.0.1", true},
        {"127.255.255.254", true},
        {"126.255.255.255", false},
        {"128.0.0.1", false},
        {"0.0.0.0", false},
        {"1.0.0.127", false},
        {"::1", true},
        {"::", false},
        {"::2", false},
        {"::ffff:127.0.0.1", false},
        {"::ffff:192.0.2.1", false},
        {"::127.0.0.1", false},
        {"fe80::1", false},
        {"7f00::", false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct sockaddr_storage addr = make(cases[i].host, 80);

        CHECK_MSG(rdti_sockaddr_is_loopback((const struct sockaddr *)(const void *)&addr) ==
                      cases[i].is_loopback,
                  "%s", cases[i].host);
    }
}

TEST(another_family_is_no_loopback)
{
    struct sockaddr_storage addr;

    memset(&addr, 127, sizeof(addr));
    addr.ss_family = AF_UNIX;
    CHECK(!rdti_sockaddr_is_loopback((const struct sockaddr *)(const void *)&addr));
}

TEST_MAIN()
