/* SPDX-License-Identifier: Apache-2.0
 * Writing JSON: strings of any bytes, numbers, buffers that are too small. */
#include "base/json.h"

#include "harness.h"

/* The string form of `text`, checked to be whole. */
static const char *
quoted(const char *text)
{
    static char buf[512];
    struct rdti_json json;
    struct rdt_error err;
    size_t needed = 0;

    rdti_json_init(&json, buf, sizeof(buf));
    rdti_json_put_string(&json, text);
    CHECK_OK(rdti_json_finish(&json, "test", &needed, &err), &err);
    CHECK_UINT_EQ(needed, strlen(buf));
    return buf;
}

TEST(quotes_and_backslashes_are_escaped)
{
    CHECK_STR_EQ(quoted(""), "\"\"");
    CHECK_STR_EQ(quoted("plain / text"), "\"plain / text\"");
    CHECK_STR_EQ(quoted("a\"b\\c"), "\"a\\\"b\\\\c\"");
    CHECK_STR_EQ(quoted("\"},{\"x\":1"), "\"\\\"},{\\\"x\\\":1\"");
}

TEST(every_control_character_is_escaped)
{
    for (int c = 1; c < 0x20; c++) {
        const char text[] = {'<', (char)c, '>', '\0'};
        char want[16];

        (void)snprintf(want, sizeof(want), "\"<\\u%04x>\"", (unsigned)c);
        CHECK_STR_EQ(quoted(text), want);
    }
    CHECK_STR_EQ(quoted("\x7f"), "\"\x7f\""); /* allowed as it is: RFC 8259, 7 */
}

TEST(valid_utf8_stays)
{
    static const char *const texts[] = {
        "\xc2\x80",         "\xc3\xa9",         "\xdf\xbf",         "\xe0\xa0\x80",
        "\xe2\x82\xac",     "\xed\x9f\xbf",     "\xee\x80\x80",     "\xef\xbf\xbf",
        "\xf0\x90\x80\x80", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf",
    };
    char want[16];

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        (void)snprintf(want, sizeof(want), "\"%s\"", texts[i]);
        CHECK_STR_EQ(quoted(texts[i]), want);
    }
}

static const char *
decimal(uint64_t value, uint32_t digits)
{
    static char buf[64];
    struct rdti_json json;
    struct rdt_error err;

    rdti_json_init(&json, buf, sizeof(buf));
    rdti_json_put_decimal(&json, value, digits);
    CHECK_OK(rdti_json_finish(&json, "test", NULL, &err), &err);
    return buf;
}

TEST(decimals_keep_every_digit)
{
    CHECK_STR_EQ(decimal(0, 0), "0");
    CHECK_STR_EQ(decimal(0, 3), "0.000");
    CHECK_STR_EQ(decimal(7, 9), "0.000000007");
    CHECK_STR_EQ(decimal(1500, 3), "1.500");
    CHECK_STR_EQ(decimal(UINT64_MAX, 0), "18446744073709551615");
    CHECK_STR_EQ(decimal(UINT64_MAX, 9), "18446744073.709551615");
    CHECK_STR_EQ(decimal(UINT64_MAX, 19), "1.8446744073709551615");
}

#define BAD "\xef\xbf\xbd"

TEST(invalid_utf8_is_replaced_byte_by_byte)
{
    static const struct {
        const char *text;
        const char *want;
    } cases[] = {
        {"\x80", "\"" BAD "\""},                                 /* a continuation alone */
        {"\xbf|", "\"" BAD "|\""},                               /* the same */
        {"\xc0\xaf", "\"" BAD BAD "\""},                         /* overlong '/' */
        {"\xc1\xbf", "\"" BAD BAD "\""},                         /* overlong */
        {"\xc3", "\"" BAD "\""},                                 /* cut at the end */
        {"\xc3(", "\"" BAD "(\""},                               /* cut before a letter */
        {"\xe0\x9f\xbf", "\"" BAD BAD BAD "\""},                 /* overlong */
        {"\xed\xa0\x80", "\"" BAD BAD BAD "\""},                 /* a surrogate */
        {"\xe2\x82", "\"" BAD BAD "\""},                         /* cut at the end */
        {"\xe2\x82\"", "\"" BAD BAD "\\\"\""},                   /* a quote is never swallowed */
        {"\xf0\x8f\xbf\xbf", "\"" BAD BAD BAD BAD "\""},         /* overlong */
        {"\xf0\x9f\x98", "\"" BAD BAD BAD "\""},                 /* cut at the end */
        {"\xf4\x90\x80\x80", "\"" BAD BAD BAD BAD "\""},         /* above U+10FFFF */
        {"\xf5\x80\x80\x80", "\"" BAD BAD BAD BAD "\""},         /* no lead */
        {"\xff\xfe", "\"" BAD BAD "\""},                         /* no lead */
        {"\xc3\xa9\xc3\xc3\xa9", "\"\xc3\xa9" BAD "\xc3\xa9\""}, /* what follows is kept */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CHECK_STR_EQ(quoted(cases[i].text), cases[i].want);
}

/* Every kind of put. */
static void
put_sample(struct rdti_json *json)
{
    const uint8_t bytes[] = {0x00, 0x0f, 0xff};

    rdti_json_put(json, "{\"n\":%d,\"hex\":", -7);
    rdti_json_put_hex(json, bytes, sizeof(bytes));
    rdti_json_put(json, ",\"text\":");
    rdti_json_put_string(json, "\n\xff\xc3\xa9");
    rdti_json_put(json, "}");
}

static const char sample[] = "{\"n\":-7,\"hex\":\"000fff\",\"text\":\"\\u000a" BAD "\xc3\xa9\"}";

/* Each capacity in memory of exactly that size, so that a sanitizer sees one byte too many. */
TEST(truncation_is_an_error_at_every_capacity)
{
    const size_t len_bytes = sizeof(sample) - 1;

    for (size_t cap = 0; cap <= len_bytes + 1; cap++) {
        struct rdti_json json;
        struct rdt_error err;
        size_t needed = 0;
        char *buf = cap > 0 ? malloc(cap) : NULL;

        CHECK(cap == 0 || buf != NULL);
        if (buf != NULL)
            memset(buf, 'x', cap);
        rdti_json_init(&json, buf, cap);
        put_sample(&json);
        const rdt_status status = rdti_json_finish(&json, "sample", &needed, &err);
        CHECK_UINT_EQ(needed, len_bytes);
        if (cap > len_bytes) {
            CHECK_OK(status, &err);
            CHECK_STR_EQ(buf, sample);
        } else {
            char want[96];

            (void)snprintf(want, sizeof(want), "sample: %zu bytes are needed, the buffer has %zu",
                           len_bytes + 1, cap);
            CHECK_STATUS(status, RDT_EINVAL);
            CHECK_STR_EQ(err.message, want);
            CHECK(buf == NULL || buf[0] == '\0'); /* nothing that looks like an answer */
        }
        free(buf);
    }
}

TEST(finish_takes_no_length_and_no_error_object)
{
    struct rdti_json json;
    char buf[4];

    rdti_json_init(&json, buf, sizeof(buf));
    rdti_json_put(&json, "[]");
    CHECK_STATUS(rdti_json_finish(&json, "test", NULL, NULL), RDT_OK);
    CHECK_STR_EQ(buf, "[]");
    rdti_json_put(&json, "[]");
    CHECK_STATUS(rdti_json_finish(&json, "test", NULL, NULL), RDT_EINVAL);
}

/* A wide character that the C locale cannot express: the one way a format fails. */
TEST(a_format_that_fails_is_an_error)
{
    struct rdti_json json;
    struct rdt_error err;
    char buf[16];

    rdti_json_init(&json, buf, sizeof(buf));
    rdti_json_put(&json, "[");
    rdti_json_put(&json, "%ls", L"\x20ac");
    rdti_json_put(&json, "]");
    CHECK_STATUS(rdti_json_finish(&json, "test", NULL, &err), RDT_EINTERNAL);
    CHECK_STR_EQ(buf, "");
    CHECK_STR_CONTAINS(err.message, "test: ");
}

TEST_MAIN()
