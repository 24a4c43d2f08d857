/* SPDX-License-Identifier: Apache-2.0
 * Error objects: what they hold, and how a message that is too long is cut. */
#include "base/error.h"

#include "harness.h"

TEST(set_fills_every_field_and_returns_the_status)
{
    struct rdt_error err;

    memset(&err, 0x5a, sizeof(err));
    CHECK_STATUS(rdti_error_set(&err, RDT_EDEVICE, ENOSPC, "write of %d bytes", 7), RDT_EDEVICE);
    CHECK_INT_EQ(err.status, RDT_EDEVICE);
    CHECK_INT_EQ(err.sys_errno, ENOSPC);
    CHECK_INT_EQ(err.wc_status, 0);
    CHECK_UINT_EQ(err.vendor_err, 0);
    CHECK_INT_EQ(err.peer_rank, RDT_RANK_UNKNOWN);
    CHECK_UINT_EQ(err.reserved, 0);
    CHECK_STR_CONTAINS(err.message, "write of 7 bytes: ");
    CHECK_STR_CONTAINS(err.message, strerror(ENOSPC));
}

TEST(set_adds_nothing_without_an_errno)
{
    struct rdt_error err;

    (void)rdti_error_set(&err, RDT_EINVAL, 0, "offset %d", 3);
    CHECK_STR_EQ(err.message, "offset 3");
}

TEST(set_takes_no_error_object)
{
    CHECK_STATUS(rdti_error_set(NULL, RDT_EINVAL, 0, "%s", "x"), RDT_EINVAL);
    CHECK_STATUS(rdti_error_set_rank(NULL, RDT_EPEER, 3, "%s", "x"), RDT_EPEER);
}

TEST(set_rank_names_the_rank)
{
    struct rdt_error err;

    CHECK_STATUS(rdti_error_set_rank(&err, RDT_EPEER, 3, "rank %d died", 3), RDT_EPEER);
    CHECK_INT_EQ(err.peer_rank, 3);
    CHECK_INT_EQ(err.sys_errno, 0);
    CHECK_STR_EQ(err.message, "rank 3 died");
}

TEST(set_may_quote_its_own_message)
{
    struct rdt_error err;

    (void)rdti_error_set(&err, RDT_EPEER, 0, "inner");
    (void)rdti_error_set(&err, RDT_ETIMEDOUT, 0, "outer: %s", err.message);
    CHECK_STR_EQ(err.message, "outer: inner");
}

/* Whether `text` is UTF-8 to its end, by the lengths that lead bytes announce. */
static bool
is_utf8(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;

    while (*p != 0) {
        const int more = *p < 0x80 ? 0 : *p >= 0xf0 ? 3 : *p >= 0xe0 ? 2 : *p >= 0xc0 ? 1 : -1;

        if (more < 0)
            return false;
        p++;
        for (int i = 0; i < more; i++, p++)
            if ((*p & 0xc0) != 0x80)
                return false;
    }
    return true;
}

TEST(a_long_message_is_cut_between_characters)
{
    static const char *const characters[] = {"a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    char text[2 * RDT_ERROR_MESSAGE_BYTES];
    struct rdt_error err;

    for (size_t c = 0; c < 4; c++) {
        for (size_t shift = 0; shift < 4; shift++) {
            size_t n = shift;

            memset(text, 'x', shift);
            while (n < RDT_ERROR_MESSAGE_BYTES + 8) {
                memcpy(text + n, characters[c], strlen(characters[c]));
                n += strlen(characters[c]);
            }
            text[n] = '\0';
            (void)rdti_error_set(&err, RDT_EINVAL, EIO, "%s", text);
            CHECK(is_utf8(err.message));
            CHECK_INT_GE(strlen(err.message), RDT_ERROR_MESSAGE_BYTES - 4);
            CHECK_INT_LT(strlen(err.message), RDT_ERROR_MESSAGE_BYTES);
        }
    }
}

/* The errno's text may be cut too, and a message that fits exactly must not be. */
TEST(a_message_of_exactly_the_capacity_stays_whole)
{
    char text[RDT_ERROR_MESSAGE_BYTES];
    struct rdt_error err;

    memset(text, 'y', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    (void)rdti_error_set(&err, RDT_EINVAL, 0, "%s", text);
    CHECK_STR_EQ(err.message, text);
    (void)rdti_error_set(&err, RDT_EINVAL, EIO, "%s", text);
    CHECK_STR_EQ(err.message, text);
    (void)rdti_error_set(&err, RDT_EINVAL, EIO, "%s", text + 4);
    CHECK_INT_EQ(strlen(err.message), RDT_ERROR_MESSAGE_BYTES - 1);
}

TEST(copy_moves_the_whole_error)
{
    struct rdt_error from;
    struct rdt_error to = {0};

    (void)rdti_error_set_rank(&from, RDT_EPEER, 5, "gone");
    CHECK_STATUS(rdti_error_copy(&to, &from), RDT_EPEER);
    CHECK_MEM_EQ(&to, &from, sizeof(to));
    CHECK_STATUS(rdti_error_copy(NULL, &from), RDT_EPEER);
    CHECK_STATUS(rdti_error_copy(&from, &from), RDT_EPEER);
    CHECK_STR_EQ(from.message, "gone");
}

TEST_MAIN()
