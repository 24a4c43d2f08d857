/* SPDX-License-Identifier: Apache-2.0
 * Vectors of FIPS 180-4 (its published examples), RFC 4231 (HMAC) and FNV's authors; the rest by
 * property. */
#include "base/crypto.h"

#include "harness.h"

static void
to_hex(const uint8_t digest[RDTI_SHA256_BYTES], char hex[2 * RDTI_SHA256_BYTES + 1])
{
    for (size_t i = 0; i < RDTI_SHA256_BYTES; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

static void
check_sha(const void *data, size_t len_bytes, const char *want)
{
    uint8_t digest[RDTI_SHA256_BYTES];
    char hex[2 * RDTI_SHA256_BYTES + 1];

    rdti_sha256(data, len_bytes, digest);
    to_hex(digest, hex);
    CHECK_STR_EQ(hex, want);
}

TEST(sha256_of_the_standards_examples)
{
    check_sha("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_sha("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56,
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    check_sha("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
              "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
              112, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
}

TEST(sha256_of_a_million_a)
{
    char *data = malloc(1000000);

    CHECK_NOT_NULL(data);
    memset(data, 'a', 1000000);
    check_sha(data, 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(data);
}

/* The padding has its cases at 55, 56, 63 and 64 bytes of a block; the digests are of n bytes 'a',
 * as another implementation gives them. */
TEST(sha256_pads_at_every_edge_of_a_block)
{
    static const struct {
        size_t len_bytes;
        const char *digest;
    } cases[] = {
        {55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
        {56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
        {63, "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34"},
        {64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
        {65, "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0"},
    };
    char data[65];

    memset(data, 'a', sizeof(data));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_sha(data, cases[i].len_bytes, cases[i].digest);
}

static void
check_hmac(const void *key, size_t key_bytes, const char *data, size_t data_bytes, const char *want)
{
    uint8_t mac[RDTI_SHA256_BYTES];
    char hex[2 * RDTI_SHA256_BYTES + 1];

    rdti_hmac_sha256(key, key_bytes, data, data_bytes, mac);
    to_hex(mac, hex);
    CHECK_STR_EQ(hex, want);
}

TEST(hmac_of_rfc_4231)
{
    uint8_t key[131];
    char data[50];

    memset(key, 0x0b, 20);
    check_hmac(key, 20, "Hi There", 8,
               "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    check_hmac("Jefe", 4, "what do ya want for nothing?", 28,
               "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof(key));
    memset(data, 0xdd, sizeof(data));
    check_hmac(key, 20, data, 50,
               "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    for (size_t i = 0; i < 25; i++)
        key[i] = (uint8_t)(i + 1);
    memset(data, 0xcd, sizeof(data));
    check_hmac(key, 25, data, 50,
               "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
    memset(key, 0xaa, sizeof(key));
    check_hmac(key, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
               "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    const char *longer = "This is a test using a larger than block-size key and a larger than "
                         "block-size data. The key needs to be hashed before being used by the "
                         "HMAC algorithm.";
    check_hmac(key, 131, longer, strlen(longer),
               "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(hmac_takes_an_empty_key)
{
    check_hmac(NULL, 0, "", 0, "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST(random_bytes_fill_the_whole_buffer_and_differ)
{
    enum { BYTES = 4096, ROUNDS = 64 };
    static uint8_t seen_or[BYTES];
    static uint8_t seen_and[BYTES];
    uint8_t buf[BYTES + 1];
    struct rdt_error err;

    memset(seen_and, 0xff, sizeof(seen_and));
    buf[BYTES] = 0xa5;
    for (int round = 0; round < ROUNDS; round++) {
        CHECK_OK(rdti_random_bytes(buf, BYTES, &err), &err);
        CHECK_HEX_EQ(buf[BYTES], 0xa5);
        for (size_t i = 0; i < BYTES; i++) {
            seen_or[i] |= buf[i];
            seen_and[i] &= buf[i];
        }
    }
    /* A bit that stays the same in 64 rounds: 32768 bits x 2^-63, so never by chance. */
    for (size_t i = 0; i < BYTES; i++) {
        CHECK_HEX_EQ(seen_or[i], 0xff);
        CHECK_HEX_EQ(seen_and[i], 0);
    }
}

TEST(equality_sees_a_difference_at_any_place)
{
    uint8_t a[33] = {0};
    uint8_t b[33] = {0};

    CHECK(rdti_equal_constant_time(a, b, sizeof(a)));
    CHECK(rdti_equal_constant_time(a, b, 0));
    for (size_t i = 0; i < sizeof(a); i++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            b[i] = (uint8_t)(1u << bit);
            CHECK(!rdti_equal_constant_time(a, b, sizeof(a)));
            CHECK(rdti_equal_constant_time(a, b, i)); /* beyond the length nothing counts */
        }
        b[i] = 0;
    }
}

TEST(hash64_of_the_published_vectors)
{
    CHECK_HEX_EQ(rdti_hash64("", 0), UINT64_C(0xcbf29ce484222325));
    CHECK_HEX_EQ(rdti_hash64("a", 1), UINT64_C(0xaf63dc4c8601ec8c));
    CHECK_HEX_EQ(rdti_hash64("foobar", 6), UINT64_C(0x85944171f73967e8));
}

TEST_MAIN()
