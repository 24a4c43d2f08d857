/* SPDX-License-Identifier: Apache-2.0
 * The handshake's messages against hostile bytes, and its hashes against another implementation. */
#include "codecs.h"

static const char *const names[] = {"hello", "challenge", "auth", "reject", "join"};
#define NAMES (sizeof(names) / sizeof(names[0]))

TEST(handshake_round_trips)
{
    for (size_t i = 0; i < NAMES; i++)
        check_round_trips(names[i]);
}

TEST(handshake_rejects_every_truncation)
{
    for (size_t i = 0; i < NAMES; i++)
        check_truncations(names[i]);
}

TEST(handshake_survives_every_bit_flip)
{
    for (size_t i = 0; i < NAMES; i++)
        check_bit_flips(names[i]);
}

/* The values of wire.md's example; the bytes there and the hashes below come from Python. */
static void
sample(uint8_t hello_out[RDTI_HELLO_BYTES], uint8_t challenge_out[RDTI_CHALLENGE_BYTES])
{
    struct rdti_hello hello = {.library_version = "1.2.3",
                               .job_id = "job-7",
                               .epoch = 3,
                               .rank = 5,
                               .transports = 1u << RDT_TRANSPORT_SHM | 1u << RDT_TRANSPORT_TCP,
                               .force_transport = RDT_TRANSPORT_AUTO,
                               .require_transport = RDT_TRANSPORT_TCP};
    struct rdti_challenge challenge = {.library_version = "1.2.4",
                                       .epoch = 3,
                                       .rank = -1,
                                       .transports = 1u << RDT_TRANSPORT_TCP,
                                       .force_transport = RDT_TRANSPORT_TCP,
                                       .require_transport = RDT_TRANSPORT_AUTO};

    for (size_t i = 0; i < RDT_UUID_BYTES; i++) {
        hello.connector[i] = (uint8_t)(0x10 + i);
        hello.listener[i] = (uint8_t)(0x30 + i);
        challenge.listener[i] = (uint8_t)(0x30 + i);
    }
    for (size_t i = 0; i < RDTI_NONCE_BYTES; i++) {
        hello.nonce[i] = (uint8_t)(0x50 + i);
        challenge.nonce[i] = (uint8_t)(0x90 + i);
        challenge.mac[i] = (uint8_t)(0xc0 + i); /* no part of the transcript */
    }
    rdti_hello_encode(&hello, hello_out);
    rdti_challenge_encode(&challenge, challenge_out);
}

TEST(transcript_hashes_are_those_of_another_implementation)
{
    static const uint8_t secret[] = "correct horse battery staple";
    /* tests/unit/test_wire_doc.py computes them again from the documented offsets. */
    static const uint8_t want[][RDTI_SHA256_BYTES] = {
        [RDTI_MAC_LISTENER] = {0x2a, 0xa2, 0xd5, 0xf2, 0x03, 0x8a, 0x8b, 0xd8, 0x0e, 0xb0, 0xfc,
                               0x15, 0x3d, 0x5d, 0x6e, 0xf5, 0xf6, 0x2b, 0x6e, 0x69, 0xab, 0x66,
                               0xc4, 0x40, 0x27, 0x6a, 0xa3, 0xe1, 0x9b, 0x49, 0xe1, 0x15},
        [RDTI_MAC_CONNECTOR] = {0x81, 0xb0, 0x48, 0x2f, 0xaa, 0xa4, 0x9a, 0x85, 0xe0, 0xc6, 0x2f,
                                0x7c, 0x5a, 0x90, 0xdb, 0xb6, 0xd7, 0x25, 0x6d, 0x1d, 0xb8, 0x5f,
                                0xc5, 0xf1, 0xb4, 0xc7, 0xcd, 0x23, 0x6e, 0x79, 0x13, 0x53},
        [RDTI_MAC_SESSION] = {0xe9, 0x65, 0xc2, 0xf7, 0xec, 0x5b, 0xbb, 0x04, 0x31, 0x97, 0xb2,
                              0xe1, 0xbc, 0x5e, 0xc1, 0x35, 0x6b, 0x4b, 0xb4, 0x73, 0x16, 0xd1,
                              0xb2, 0x94, 0x02, 0xc4, 0x25, 0x6b, 0x7b, 0x87, 0x8d, 0xc3},
    };
    static const uint8_t want_join[RDTI_SHA256_BYTES] = {0x7f, 0x4d, 0x32, 0x67, 0x02, 0xeb, 0x9f,
                                                         0x54, 0x57, 0xac, 0x5c, 0x63, 0x9d, 0x8c,
                                                         0xd1, 0x93, 0xc8, 0x6b, 0xe6, 0x23, 0x2d,
                                                         0xcb, 0x97, 0x6a, 0x15, 0xef, 0x8c, 0x2a,
                                                         0xca, 0x53, 0x70, 0xb0};
    uint8_t hello[RDTI_HELLO_BYTES];
    uint8_t challenge[RDTI_CHALLENGE_BYTES];
    uint8_t join[RDTI_JOIN_BYTES];
    uint8_t got[RDTI_SHA256_BYTES];

    sample(hello, challenge);
    for (int role = RDTI_MAC_LISTENER; role <= RDTI_MAC_SESSION; role++) {
        rdti_handshake_mac((enum rdti_mac_role)role, secret, sizeof(secret) - 1, hello, challenge,
                           got);
        CHECK_MEM_EQ(got, want[role], sizeof(got));
    }
    struct rdti_join value = {.index = 2};
    for (size_t i = 0; i < 16; i++) {
        value.session_id[i] = (uint8_t)(0xa0 + i);
        value.nonce[i] = (uint8_t)(0xb0 + i);
    }
    memset(value.mac, 0xee, sizeof(value.mac)); /* left out of its own hash */
    rdti_join_encode(&value, join);
    rdti_join_mac(want[RDTI_MAC_SESSION], join, got);
    CHECK_MEM_EQ(got, want_join, sizeof(got));
}

/* Whatever one bit of what was said, but the mac itself: the hash is another one. */
TEST(transcript_hash_covers_every_bit)
{
    static const uint8_t secret[] = "s";
    uint8_t hello[RDTI_HELLO_BYTES];
    uint8_t challenge[RDTI_CHALLENGE_BYTES];
    uint8_t base[RDTI_SHA256_BYTES];
    uint8_t got[RDTI_SHA256_BYTES];

    sample(hello, challenge);
    rdti_handshake_mac(RDTI_MAC_CONNECTOR, secret, 1, hello, challenge, base);
    for (size_t bit = 0; bit < 8 * (RDTI_HELLO_BYTES + RDTI_CHALLENGE_BYTES); bit++) {
        const size_t byte = bit / 8;
        uint8_t *at = byte < RDTI_HELLO_BYTES ? &hello[byte] : &challenge[byte - RDTI_HELLO_BYTES];
        const bool is_mac = byte >= RDTI_HELLO_BYTES + RDTI_CHALLENGE_BYTES - RDTI_SHA256_BYTES;
        *at ^= (uint8_t)(1u << bit % 8);
        rdti_handshake_mac(RDTI_MAC_CONNECTOR, secret, 1, hello, challenge, got);
        *at ^= (uint8_t)(1u << bit % 8);
        CHECK_INT_EQ(memcmp(got, base, sizeof(got)) == 0, is_mac);
    }
}

TEST(hello_lies_at_the_documented_offsets)
{
    uint8_t hello[RDTI_HELLO_BYTES];
    uint8_t challenge[RDTI_CHALLENGE_BYTES];

    sample(hello, challenge);
    CHECK_MEM_EQ(hello, "RDTH\x01\x00\xac\x00", 8);
    CHECK_STR_EQ((char *)hello + 8, "1.2.3");
    CHECK_STR_EQ((char *)hello + 24, "job-7");
    CHECK_UINT_EQ(hello[88], 0x10);
    CHECK_UINT_EQ(hello[104], 0x30);
    CHECK_UINT_EQ(hello[120], 0x50);
    CHECK_MEM_EQ(hello + 152, "\x03\0\0\0\x05\0\0\0\x06\0\0\0\0\0\0\0\x02\0\0\0", 20);
    CHECK_MEM_EQ(challenge, "RDTC\x01\x00\x7c\x00", 8);
    CHECK_STR_EQ((char *)challenge + 8, "1.2.4");
    CHECK_UINT_EQ(challenge[24], 0x30);
    CHECK_UINT_EQ(challenge[40], 0x90);
    CHECK_MEM_EQ(challenge + 72, "\x03\0\0\0\xff\xff\xff\xff\x04\0\0\0\x02\0\0\0\0\0\0\0", 20);
    CHECK_UINT_EQ(challenge[92], 0xc0);
}

/* The version stands at one place for ever, whatever follows: the error names both versions. */
TEST(another_version_is_named_whatever_the_length)
{
    uint8_t wire[RDTI_HELLO_BYTES + 40] = {0};
    uint8_t challenge[RDTI_CHALLENGE_BYTES];
    struct rdti_hello out;
    char ours[64];

    (void)snprintf(ours, sizeof(ours), "this process %d (library %s)", RDTI_WIRE_VERSION,
                   rdt_version());
    for (size_t len = RDTI_OPENING_HEAD_BYTES; len <= sizeof(wire); len++) {
        struct rdt_error err = {0};
        sample(wire, challenge);
        rdti_put_u16(wire + 4, 77);
        uint8_t *exact = exact_copy(wire, len);
        CHECK_STATUS(rdti_hello_decode(exact, len, &out, &err), RDT_EVERSION);
        free(exact);
        CHECK_STR_CONTAINS(err.message, "wire version 77");
        CHECK_STR_CONTAINS(err.message, len >= 24 ? "library 1.2.3" : "library unknown");
        CHECK_STR_CONTAINS(err.message, ours);
    }
    memset(wire + 8, 'x', RDTI_VERSION_BYTES); /* a library version without a NUL is not shown */
    rdti_put_u16(wire + 4, 77);
    struct rdt_error err = {0};
    CHECK_STATUS(rdti_hello_decode(wire, RDTI_HELLO_BYTES, &out, &err), RDT_EVERSION);
    CHECK_STR_CONTAINS(err.message, "library unknown");
}

TEST(hello_refuses_what_no_peer_of_ours_sends)
{
    static const struct {
        size_t off;
        uint8_t value;
    } faults[] = {
        {0, 'X'},        /* magic */
        {6, 171},        /* length */
        {8 + 15, 'x'},   /* library version: bytes behind the NUL */
        {24, '\n'},      /* job id: a control character */
        {24, 0x7f},      /* the same */
        {24 + 63, 1},    /* no NUL at the end */
        {156 + 3, 0x80}, /* rank below -1 */
        {160, 0x01},     /* transports: AUTO is none */
        {160, 0x10},     /* transports: unknown bit */
        {164, 4},        /* force */
        {168, 4},        /* require */
    };

    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        uint8_t hello[RDTI_HELLO_BYTES];
        uint8_t challenge[RDTI_CHALLENGE_BYTES];
        union any_value out;
        sample(hello, challenge);
        CHECK_INT_EQ(decode_strictly(codec_named("hello"), hello, sizeof(hello), &out), RDT_OK);
        hello[faults[i].off] = faults[i].value;
        CHECK_MSG(decode_strictly(codec_named("hello"), hello, sizeof(hello), &out) == RDT_EPROTO,
                  "fault %zu", i);
    }
}

TEST(reject_wants_a_failure)
{
    static const int32_t statuses[] = {0, 1, INT32_MAX, -1, RDT_EINTERNAL, -1000, INT32_MIN};

    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        uint8_t wire[RDTI_REJECT_BYTES];
        union any_value out;
        const struct rdti_reject reject = {.status = statuses[i], .text = "go away"};
        rdti_reject_encode(&reject, wire);
        CHECK_INT_EQ(decode_strictly(codec_named("reject"), wire, sizeof(wire), &out),
                     statuses[i] < 0 ? RDT_OK : RDT_EPROTO);
    }
}

TEST(text_is_made_plain_and_cut_between_characters)
{
    uint8_t wire[RDTI_REJECT_BYTES];
    struct rdti_reject back;
    struct rdti_reject reject = {.status = -1};

    memset(reject.text, 'a', sizeof(reject.text)); /* no NUL at all */
    memcpy(reject.text, "x\n\x1b[31my\x7f", 9);
    memcpy(reject.text + 253, "\xe2\x82\xac", 3); /* three bytes, of which two would fit */
    rdti_reject_encode(&reject, wire);
    CHECK_STATUS(rdti_reject_decode(wire, sizeof(wire), &back, NULL), RDT_OK);
    CHECK_MEM_EQ(back.text, "x  [31my ", 9);
    CHECK_UINT_EQ(strlen(back.text), 253);
    CHECK_INT_EQ(back.text[252], 'a');
}

TEST(opening_tells_what_begins)
{
    uint8_t head[RDTI_OPENING_HEAD_BYTES];
    uint8_t hello[RDTI_HELLO_BYTES];
    uint8_t challenge[RDTI_CHALLENGE_BYTES];
    uint8_t join[RDTI_JOIN_BYTES];
    const struct rdti_join value = {.index = 1};
    uint16_t version = 9;
    uint16_t total = 9;

    sample(hello, challenge);
    rdti_join_encode(&value, join);
    memcpy(head, challenge, sizeof(head));
    CHECK_INT_EQ(rdti_opening_parse(head, &version, &total), RDTI_OPENING_GARBAGE);
    memcpy(head, "GET / HT", sizeof(head));
    CHECK_INT_EQ(rdti_opening_parse(head, &version, &total), RDTI_OPENING_GARBAGE);
    memcpy(head, hello, sizeof(head));
    head[6]++;
    CHECK_INT_EQ(rdti_opening_parse(head, &version, &total), RDTI_OPENING_GARBAGE);
    CHECK_UINT_EQ(version, 9); /* untouched */
    CHECK_UINT_EQ(total, 9);
    rdti_put_u16(head + 4,
                 RDTI_WIRE_VERSION + 1); /* which may have another length, within reason */
    CHECK_INT_EQ(rdti_opening_parse(head, &version, &total), RDTI_OPENING_HELLO);
    CHECK_UINT_EQ(version, 2);
    CHECK_UINT_EQ(total, RDTI_HELLO_BYTES + 1);
    rdti_put_u16(head + 6, RDTI_OPENING_MAX_BYTES + 1);
    CHECK_INT_EQ(rdti_opening_parse(head, &version, &total), RDTI_OPENING_GARBAGE);
    rdti_put_u16(head + 6, RDTI_OPENING_HEAD_BYTES - 1);
    CHECK_INT_EQ(rdti_opening_parse(head, &version, &total), RDTI_OPENING_GARBAGE);
    memcpy(head, hello, sizeof(head));
    CHECK_INT_EQ(rdti_opening_parse(head, &version, &total), RDTI_OPENING_HELLO);
    CHECK_UINT_EQ(version, RDTI_WIRE_VERSION);
    CHECK_UINT_EQ(total, RDTI_HELLO_BYTES);
    memcpy(head, join, sizeof(head));
    CHECK_INT_EQ(rdti_opening_parse(head, &version, &total), RDTI_OPENING_JOIN);
    CHECK_UINT_EQ(total, RDTI_JOIN_BYTES);
}

TEST(answer_tells_what_came)
{
    uint8_t head[RDTI_OPENING_HEAD_BYTES];
    uint8_t hello[RDTI_HELLO_BYTES];
    uint8_t challenge[RDTI_CHALLENGE_BYTES];
    uint8_t reject[RDTI_REJECT_BYTES];
    const struct rdti_reject value = {.status = RDT_EAUTH};
    uint16_t total = 9;

    sample(hello, challenge);
    rdti_reject_encode(&value, reject);
    memcpy(head, hello, sizeof(head));
    CHECK_INT_EQ(rdti_answer_parse(head, &total), RDTI_ANSWER_GARBAGE);
    memcpy(head, "HTTP/1.1", sizeof(head));
    CHECK_INT_EQ(rdti_answer_parse(head, &total), RDTI_ANSWER_GARBAGE);
    memcpy(head, challenge, sizeof(head));
    head[6]++;
    CHECK_INT_EQ(rdti_answer_parse(head, &total), RDTI_ANSWER_GARBAGE);
    CHECK_UINT_EQ(total, 9); /* untouched */
    rdti_put_u16(head + 4,
                 RDTI_WIRE_VERSION + 1); /* which may have another length, within reason */
    CHECK_INT_EQ(rdti_answer_parse(head, &total), RDTI_ANSWER_CHALLENGE);
    CHECK_UINT_EQ(total, RDTI_CHALLENGE_BYTES + 1);
    rdti_put_u16(head + 6, RDTI_OPENING_MAX_BYTES + 1);
    CHECK_INT_EQ(rdti_answer_parse(head, &total), RDTI_ANSWER_GARBAGE);
    rdti_put_u16(head + 6, RDTI_OPENING_HEAD_BYTES - 1);
    CHECK_INT_EQ(rdti_answer_parse(head, &total), RDTI_ANSWER_GARBAGE);
    memcpy(head, challenge, sizeof(head));
    CHECK_INT_EQ(rdti_answer_parse(head, &total), RDTI_ANSWER_CHALLENGE);
    CHECK_UINT_EQ(total, RDTI_CHALLENGE_BYTES);
    memcpy(head, reject, sizeof(head));
    CHECK_INT_EQ(rdti_answer_parse(head, &total), RDTI_ANSWER_REJECT);
    CHECK_UINT_EQ(total, RDTI_REJECT_BYTES);
}

TEST_MAIN()
