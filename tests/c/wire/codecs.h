/* SPDX-License-Identifier: Apache-2.0
 * Every format of the wire as one table entry: how to make a random value, its bytes, and back. The
 * checks below hold for all of them. */
#ifndef RDT_TESTS_WIRE_CODECS_H
#define RDT_TESTS_WIRE_CODECS_H

#include "codecs_values.h"

struct codec {
    const char *name;
    size_t struct_bytes;
    size_t least_bytes; /* of the encoding */
    size_t most_bytes;
    bool is_prefix_enough; /* the decoder takes longer buffers and reads the front */
    void (*fill)(struct rng *rng, void *value); /* *value is zero before */
    size_t (*encode)(const void *value, uint8_t *out);
    rdt_status (*decode)(const uint8_t *buf, size_t len_bytes, void *out, struct rdt_error *err);
};

union any_value {
    struct rdti_hello hello;
    struct rdti_challenge challenge;
    struct rdti_auth auth;
    struct rdti_reject reject;
    struct rdti_join join;
    struct rdti_address address;
    struct rdti_path path;
    struct rdti_text text;
    struct rdti_death death;
    struct rdti_revoke revoke;
    struct rdti_segment segment;
    struct rdti_slot_announce slot_announce;
    struct rdti_slot_gone slot_gone;
    struct rdti_abort abort_frame;
    struct rdti_move move;
    struct rdti_message message;
    struct rdti_rts rts;
    struct rdti_place place;
    struct rdti_nack nack;
    struct rdti_sums sums;
    struct rdti_sums_get sums_get;
    struct rdti_slot_header slot_header;
    struct rdt_remote_region region;
    struct rdti_verbs_offer verbs_offer;
    struct rdti_verbs_words verbs_words;
    struct rdti_founding_address founding_address;
    struct rdti_founding_vote founding_vote;
    struct rdti_costs costs;
    struct rdti_placement placement;
    struct rdti_card card;
    struct rdti_told told;
    struct rdti_persistent_record persistent_record;
    struct rdti_persistent_vote persistent_vote;
    struct rdti_persistent_start persistent_start;
    struct rdti_ps_request ps_request;
    struct rdti_ps_answer ps_answer;
    struct rdti_ps_lease ps_lease;
};

/* Thunks of one codec of fixed size whose encoder returns nothing. */
#define FIXED_CODEC(type, name, total_bytes)                                                \
    static inline size_t encode_##name(const void *value, uint8_t *out)                     \
    {                                                                                       \
        type##_encode(value, out);                                                          \
        return (total_bytes);                                                               \
    }                                                                                       \
    static inline rdt_status decode_##name(const uint8_t *buf, size_t len_bytes, void *out, \
                                           struct rdt_error *err)                           \
    {                                                                                       \
        return type##_decode(buf, len_bytes, out, err);                                     \
    }

/* The same for frames, whose encoders return the length. */
#define FRAME_CODEC(type, name)                                                             \
    static inline size_t encode_##name(const void *value, uint8_t *out)                     \
    {                                                                                       \
        return type##_encode(value, out);                                                   \
    }                                                                                       \
    static inline rdt_status decode_##name(const uint8_t *buf, size_t len_bytes, void *out, \
                                           struct rdt_error *err)                           \
    {                                                                                       \
        return type##_decode(buf, len_bytes, out, err);                                     \
    }

FIXED_CODEC(rdti_hello, hello, RDTI_HELLO_BYTES)
FIXED_CODEC(rdti_challenge, challenge, RDTI_CHALLENGE_BYTES)
FIXED_CODEC(rdti_auth, auth, RDTI_AUTH_BYTES)
FIXED_CODEC(rdti_reject, reject, RDTI_REJECT_BYTES)
FIXED_CODEC(rdti_join, join, RDTI_JOIN_BYTES)
FIXED_CODEC(rdti_message, message, RDTI_MESSAGE_HEAD_BYTES)
FIXED_CODEC(rdti_rts, rts, RDTI_RTS_BYTES)
FIXED_CODEC(rdti_place, place, RDTI_PLACE_BYTES)
FIXED_CODEC(rdti_nack, nack, RDTI_NACK_BYTES)
FIXED_CODEC(rdti_sums_get, sums_get, RDTI_SUMS_GET_BYTES)
FIXED_CODEC(rdti_slot_header, slot_header, RDTI_SLOT_HEADER_BYTES)
FIXED_CODEC(rdt_remote_region, region, RDT_REMOTE_REGION_BYTES)
FIXED_CODEC(rdti_founding_address, founding_address, RDTI_FOUNDING_ADDRESS_BYTES)
FIXED_CODEC(rdti_founding_vote, founding_vote, RDTI_FOUNDING_VOTE_BYTES)
FIXED_CODEC(rdti_costs, costs, RDTI_COSTS_BYTES)
FIXED_CODEC(rdti_card, card, RDTI_CARD_BYTES)
FIXED_CODEC(rdti_told, told, RDTI_TOLD_BYTES)
FIXED_CODEC(rdti_persistent_record, persistent_record, RDTI_PERSISTENT_RECORD_BYTES)
FIXED_CODEC(rdti_persistent_vote, persistent_vote, RDTI_PERSISTENT_VOTE_BYTES)
FIXED_CODEC(rdti_persistent_start, persistent_start, RDTI_PERSISTENT_START_BYTES)
FRAME_CODEC(rdti_placement, placement)
FRAME_CODEC(rdti_sums, sums)
FRAME_CODEC(rdti_path, path)
FRAME_CODEC(rdti_text, text)
FRAME_CODEC(rdti_death, death)
FRAME_CODEC(rdti_revoke, revoke)
FRAME_CODEC(rdti_segment, segment)
FRAME_CODEC(rdti_slot_announce, slot_announce)
FRAME_CODEC(rdti_slot_gone, slot_gone)
FRAME_CODEC(rdti_abort, abort)
FRAME_CODEC(rdti_move, move)
FRAME_CODEC(rdti_verbs_offer, verbs_offer)
FRAME_CODEC(rdti_verbs_words, verbs_words)
FRAME_CODEC(rdti_ps_lease, ps_lease)

/* The heads of requests and answers, whose slots are as large as they may be. */
#define HEAD_CODEC(type, name)                                                              \
    static inline size_t encode_##name(const void *value, uint8_t *out)                     \
    {                                                                                       \
        type##_encode(value, out);                                                          \
        return RDTI_PS_HEAD_BYTES;                                                          \
    }                                                                                       \
    static inline rdt_status decode_##name(const uint8_t *buf, size_t len_bytes, void *out, \
                                           struct rdt_error *err)                           \
    {                                                                                       \
        return type##_decode(buf, len_bytes, RDTI_PS_SLOT_BYTES_MAX, out, err);             \
    }

HEAD_CODEC(rdti_ps_request, ps_request)
HEAD_CODEC(rdti_ps_answer, ps_answer)

static inline size_t
encode_address(const void *value, uint8_t *out)
{
    struct rdt_error err;
    size_t len_bytes = 0;

    CHECK_OK(rdti_address_encode(value, out, WIRE_MAX_BYTES, &len_bytes, &err), &err);
    return len_bytes;
}

static inline rdt_status
decode_address(const uint8_t *buf, size_t len_bytes, void *out, struct rdt_error *err)
{
    return rdti_address_decode(buf, len_bytes, out, err);
}

/* clang-format off */
static const struct codec codecs[] = {
#define ENTRY(name, type, least, most, prefix) \
    {#name, sizeof(type), (least), (most), (prefix), fill_##name, encode_##name, decode_##name}
    ENTRY(hello, struct rdti_hello, RDTI_HELLO_BYTES, RDTI_HELLO_BYTES, false),
    ENTRY(challenge, struct rdti_challenge, RDTI_CHALLENGE_BYTES, RDTI_CHALLENGE_BYTES, false),
    ENTRY(auth, struct rdti_auth, RDTI_AUTH_BYTES, RDTI_AUTH_BYTES, false),
    ENTRY(reject, struct rdti_reject, RDTI_REJECT_BYTES, RDTI_REJECT_BYTES, false),
    ENTRY(join, struct rdti_join, RDTI_JOIN_BYTES, RDTI_JOIN_BYTES, false),
    ENTRY(address, struct rdti_address, RDTI_ADDRESS_FIXED_BYTES, RDTI_ADDRESS_BYTES_MAX, false),
    ENTRY(path, struct rdti_path, RDTI_PATH_FIXED_BYTES,
          RDTI_PATH_FIXED_BYTES + RDTI_OFFER_MAX_BYTES, false),
    ENTRY(text, struct rdti_text, RDTI_TEXT_BYTES, RDTI_TEXT_BYTES, false),
    ENTRY(death, struct rdti_death, RDTI_DEATH_BYTES, RDTI_DEATH_BYTES, false),
    ENTRY(revoke, struct rdti_revoke, RDTI_REVOKE_BYTES, RDTI_REVOKE_BYTES, false),
    ENTRY(segment, struct rdti_segment, RDTI_SEGMENT_BYTES, RDTI_SEGMENT_BYTES, false),
    ENTRY(slot_announce, struct rdti_slot_announce, RDTI_SLOT_ANNOUNCE_BYTES,
          RDTI_SLOT_ANNOUNCE_BYTES, false),
    ENTRY(slot_gone, struct rdti_slot_gone, RDTI_SLOT_GONE_BYTES, RDTI_SLOT_GONE_BYTES, false),
    ENTRY(abort, struct rdti_abort, RDTI_ABORT_BYTES, RDTI_ABORT_BYTES, false),
    ENTRY(move, struct rdti_move, RDTI_MOVE_FIXED_BYTES,
          RDTI_MOVE_FIXED_BYTES + RDTI_OFFER_MAX_BYTES, false),
    ENTRY(message, struct rdti_message, RDTI_MESSAGE_HEAD_BYTES, RDTI_MESSAGE_HEAD_BYTES, true),
    ENTRY(rts, struct rdti_rts, RDTI_RTS_BYTES, RDTI_RTS_BYTES, false),
    ENTRY(place, struct rdti_place, RDTI_PLACE_BYTES, RDTI_PLACE_BYTES, false),
    ENTRY(nack, struct rdti_nack, RDTI_NACK_BYTES, RDTI_NACK_BYTES, false),
    ENTRY(sums, struct rdti_sums, RDTI_SUMS_FIXED_BYTES, RDTI_SUMS_BYTES_MAX, false),
    ENTRY(sums_get, struct rdti_sums_get, RDTI_SUMS_GET_BYTES, RDTI_SUMS_GET_BYTES, false),
    ENTRY(slot_header, struct rdti_slot_header, RDTI_SLOT_HEADER_BYTES, RDTI_SLOT_HEADER_BYTES,
          false),
    ENTRY(region, struct rdt_remote_region, RDT_REMOTE_REGION_BYTES, RDT_REMOTE_REGION_BYTES,
          false),
    ENTRY(verbs_offer, struct rdti_verbs_offer,
          RDTI_VERBS_OFFER_FIXED_BYTES + RDTI_VERBS_PORT_FIXED_BYTES + RDTI_VERBS_QP_BYTES,
          RDTI_OFFER_MAX_BYTES, false),
    ENTRY(verbs_words, struct rdti_verbs_words, RDTI_VERBS_WORDS_FIXED_BYTES,
          RDTI_LANE_WORDS_MAX_BYTES, false),
    ENTRY(founding_address, struct rdti_founding_address, RDTI_FOUNDING_ADDRESS_BYTES,
          RDTI_FOUNDING_ADDRESS_BYTES, false),
    ENTRY(founding_vote, struct rdti_founding_vote, RDTI_FOUNDING_VOTE_BYTES,
          RDTI_FOUNDING_VOTE_BYTES, false),
    ENTRY(costs, struct rdti_costs, RDTI_COSTS_BYTES, RDTI_COSTS_BYTES, false),
    ENTRY(card, struct rdti_card, RDTI_CARD_BYTES, RDTI_CARD_BYTES, false),
    ENTRY(told, struct rdti_told, RDTI_TOLD_BYTES, RDTI_TOLD_BYTES, false),
    ENTRY(placement, struct rdti_placement, RDTI_PLACEMENT_BRIEF_BYTES, RDTI_PLACEMENT_BYTES, true),
    ENTRY(persistent_record, struct rdti_persistent_record, RDTI_PERSISTENT_RECORD_BYTES,
          RDTI_PERSISTENT_RECORD_BYTES, false),
    ENTRY(persistent_vote, struct rdti_persistent_vote, RDTI_PERSISTENT_VOTE_BYTES,
          RDTI_PERSISTENT_VOTE_BYTES, false),
    ENTRY(persistent_start, struct rdti_persistent_start, RDTI_PERSISTENT_START_BYTES,
          RDTI_PERSISTENT_START_BYTES, false),
    ENTRY(ps_request, struct rdti_ps_request, RDTI_PS_HEAD_BYTES, RDTI_PS_HEAD_BYTES, false),
    ENTRY(ps_answer, struct rdti_ps_answer, RDTI_PS_HEAD_BYTES, RDTI_PS_HEAD_BYTES, false),
    ENTRY(ps_lease, struct rdti_ps_lease, RDTI_PS_LEASE_FIXED_BYTES,
          RDTI_PS_LEASE_FIXED_BYTES + RDTI_PS_MEMBERS_BYTES, false),
#undef ENTRY
};
/* clang-format on */

#define CODEC_COUNT (sizeof(codecs) / sizeof(codecs[0]))

static inline const struct codec *
codec_named(const char *name)
{
    for (size_t i = 0; i < CODEC_COUNT; i++) {
        if (strcmp(codecs[i].name, name) == 0)
            return &codecs[i];
    }
    FAIL("no codec is named %s", name);
}

/* A copy of exactly len_bytes, so that an address sanitizer sees a read after it. */
static inline uint8_t *
exact_copy(const uint8_t *bytes, size_t len_bytes)
{
    uint8_t *copy = malloc(len_bytes > 0 ? len_bytes : 1);

    CHECK_NOT_NULL(copy);
    if (len_bytes > 0)
        memcpy(copy, bytes, len_bytes);
    return copy;
}

/*
 * Decode len_bytes at `bytes`, from an allocation of that size, into *out. On failure the status is
 * one of the two that the wire may give, err says something, and *out is untouched; on success the
 * encoder gives the same bytes again. Returns the status.
 */
static inline rdt_status
decode_strictly(const struct codec *codec, const uint8_t *bytes, size_t len_bytes,
                union any_value *out)
{
    union any_value before;
    struct rdt_error err = {0};
    uint8_t again[WIRE_MAX_BYTES];
    uint8_t *exact = exact_copy(bytes, len_bytes);

    memset(out, 0xa5, sizeof(*out));
    memset(&before, 0xa5, sizeof(before));
    const rdt_status status = codec->decode(exact, len_bytes, out, &err);
    if (status == RDT_OK) {
        const size_t used = codec->encode(out, again);
        CHECK_MSG(used == len_bytes || (codec->is_prefix_enough && used < len_bytes),
                  "%s: %zu bytes became %zu", codec->name, len_bytes, used);
        test_check_mem_eq(__FILE__, __LINE__, codec->name, again, exact, used);
    } else {
        CHECK_MSG(status == RDT_EPROTO || status == RDT_EVERSION, "%s gave %d", codec->name,
                  (int)status);
        CHECK_INT_EQ(err.status, status);
        CHECK(strlen(err.message) > 10);
        CHECK_MEM_EQ(out, &before, sizeof(before));
        CHECK_INT_EQ(codec->decode(exact, len_bytes, out, NULL), status);
    }
    free(exact);
    return status;
}

static inline size_t
encode_random(const struct codec *codec, struct rng *rng, union any_value *value, uint8_t *wire)
{
    memset(value, 0, sizeof(*value));
    codec->fill(rng, value);
    const size_t len_bytes = codec->encode(value, wire);
    CHECK_MSG(len_bytes >= codec->least_bytes && len_bytes <= codec->most_bytes,
              "%s: %zu bytes, want %zu to %zu", codec->name, len_bytes, codec->least_bytes,
              codec->most_bytes);
    return len_bytes;
}

/* Random values come back the same, field by field. */
static inline void
check_round_trips(const char *name)
{
    const struct codec *codec = codec_named(name);
    struct rng rng = {.state = 1};
    union any_value value;
    union any_value back;
    uint8_t wire[WIRE_MAX_BYTES];

    for (int round = 0; round < 2000; round++) {
        const size_t len_bytes = encode_random(codec, &rng, &value, wire);
        CHECK_MSG(decode_strictly(codec, wire, len_bytes, &back) == RDT_OK, "%s, round %d", name,
                  round);
        memset(&back, 0, sizeof(back)); /* the gaps between fields, which nobody writes */
        CHECK_STATUS(codec->decode(wire, len_bytes, &back, NULL), RDT_OK);
        CHECK_MEM_EQ(&back, &value, codec->struct_bytes);
    }
}

static inline void
check_truncations(const char *name)
{
    const struct codec *codec = codec_named(name);
    struct rng rng = {.state = 2};
    union any_value value;
    union any_value out;
    uint8_t wire[WIRE_MAX_BYTES + 1];

    for (int round = 0; round < 4; round++) {
        const size_t len_bytes = encode_random(codec, &rng, &value, wire);
        for (size_t n = 0; n < len_bytes; n++)
            CHECK_INT_EQ(decode_strictly(codec, wire, n, &out), RDT_EPROTO);
        wire[len_bytes] = 0;
        CHECK_INT_EQ(decode_strictly(codec, wire, len_bytes + 1, &out),
                     codec->is_prefix_enough ? RDT_OK : RDT_EPROTO);
    }
}

/* Each flip gives another value (that encodes to the flipped bytes) or a clean failure. */
static inline void
check_bit_flips(const char *name)
{
    const struct codec *codec = codec_named(name);
    struct rng rng = {.state = 3};
    union any_value value;
    union any_value out;
    uint8_t wire[WIRE_MAX_BYTES];

    for (int round = 0; round < 3; round++) {
        const size_t len_bytes = encode_random(codec, &rng, &value, wire);
        for (size_t bit = 0; bit < 8 * len_bytes; bit++) {
            wire[bit / 8] ^= (uint8_t)(1u << bit % 8);
            (void)decode_strictly(codec, wire, len_bytes, &out);
            wire[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

#endif
