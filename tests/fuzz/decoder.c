/* SPDX-License-Identifier: Apache-2.0
 * Every decoder of bytes from a peer: those of csrc/wire, and the shm transport's offer and ring.
 * Whatever comes in is refused with a reason and an untouched output, or is a value whose encoding
 * is what came in. --target=NAME, of those that --list prints. */
#include "fuzz.h"

#include "transport/shm/offer.h"
#include "transport/shm/ring.h"
#include "wire/codecs.h"
#include "wire/group/sparse.h"
#include "wire/endpoint/stream.h"

enum { SEEDS = 24, STREAMS = 4 };

/* A decoder that the table of codecs.h has not: it has no struct of its own, or needs to be told
 * more than bytes. seed() writes an input, of at most WIRE_MAX_BYTES. */
struct extra {
    const char *name;
    void (*run)(const uint8_t *data, size_t size);
    size_t (*seed)(struct rng *rng, uint8_t *out);
};

static const struct codec *codec;
static const struct extra *extra;

/* ---- Heads --------------------------------------------------------------------------------- */

static void
run_opening(const uint8_t *data, size_t size)
{
    uint16_t version = 7;
    uint16_t total = 7;

    if (size != RDTI_OPENING_HEAD_BYTES)
        return;
    if (rdti_opening_parse(data, &version, &total) == RDTI_OPENING_GARBAGE)
        CHECK(version == 7 && total == 7);
    else
        CHECK(total >= RDTI_OPENING_HEAD_BYTES && total <= RDTI_OPENING_MAX_BYTES);
}

static size_t
seed_opening(struct rng *rng, uint8_t *out)
{
    union any_value value;
    uint8_t wire[WIRE_MAX_BYTES];

    (void)encode_random(codec_named(rng_below(rng, 2) == 0 ? "hello" : "join"), rng, &value, wire);
    memcpy(out, wire, RDTI_OPENING_HEAD_BYTES);
    return RDTI_OPENING_HEAD_BYTES;
}

static void
run_answer(const uint8_t *data, size_t size)
{
    uint16_t total = 7;

    if (size != RDTI_OPENING_HEAD_BYTES)
        return;
    if (rdti_answer_parse(data, &total) == RDTI_ANSWER_GARBAGE)
        CHECK_UINT_EQ(total, 7);
    else
        CHECK(total >= RDTI_OPENING_HEAD_BYTES && total <= RDTI_OPENING_MAX_BYTES);
}

static size_t
seed_answer(struct rng *rng, uint8_t *out)
{
    union any_value value;
    uint8_t wire[WIRE_MAX_BYTES];

    (void)encode_random(codec_named(rng_below(rng, 2) == 0 ? "challenge" : "reject"), rng, &value,
                        wire);
    memcpy(out, wire, RDTI_OPENING_HEAD_BYTES);
    return RDTI_OPENING_HEAD_BYTES;
}

static void
run_frame_head(const uint8_t *data, size_t size)
{
    uint8_t again[RDTI_FRAME_HEAD_BYTES];
    struct rdt_error err = {0};
    uint16_t type = 0;
    uint32_t len_bytes = 0;

    if (size != RDTI_FRAME_HEAD_BYTES)
        return;
    if (rdti_frame_head_decode(data, &type, &len_bytes, &err) != RDT_OK) {
        CHECK(err.status == RDT_EPROTO && err.message[0] != '\0');
        return;
    }
    CHECK(len_bytes <= RDTI_FRAME_PAYLOAD_MAX);
    rdti_frame_head_encode(type, len_bytes, again);
    CHECK_MEM_EQ(again, data, sizeof(again));
}

static size_t
seed_frame_head(struct rng *rng, uint8_t *out)
{
    const uint16_t type = (uint16_t)(RDTI_FRAME_PATH + rng_below(rng, RDTI_FRAME_LAST));

    rdti_frame_head_encode(type, rng_below(rng, RDTI_FRAME_PAYLOAD_MAX + 1), out);
    return RDTI_FRAME_HEAD_BYTES;
}

/* ---- Streams: the first byte is the number of the stream ------------------------------------- */

static void
run_stream_head(const uint8_t *data, size_t size)
{
    uint8_t again[RDTI_STREAM_HEAD_BYTES];
    struct rdti_stream_head out = {.op = 77};
    struct rdt_error err = {0};

    if (size == 0)
        return;
    uint8_t *exact = exact_copy(data + 1, size - 1);
    if (rdti_stream_head_decode(exact, size - 1, data[0] % STREAMS, STREAMS, &out, &err) !=
        RDT_OK) {
        CHECK(err.status == RDT_EPROTO && err.message[0] != '\0');
        CHECK_INT_EQ(out.op, 77);
    } else {
        rdti_stream_head_encode(&out, again);
        CHECK_MEM_EQ(again, exact, sizeof(again));
    }
    free(exact);
}

static size_t
seed_stream_head(struct rng *rng, uint8_t *out)
{
    struct rdti_stream_head head = {.op = (uint8_t)(RDTI_STREAM_READY + rng_below(rng, 9))};

    out[0] = 0;
    head.flags = (uint8_t)rng_below(rng, 16);
    head.index = head.op == RDTI_STREAM_ACK ? 0 : rng_u32(rng);
    head.generation = rng_u32(rng);
    head.value = rng_u32(rng);
    head.ack = rng_u32(rng);
    head.len_bytes = rng_below(rng, 9);
    head.off_bytes = rng_u32(rng);
    head.aux =
        (uint16_t)(head.op == RDTI_STREAM_WRITE_INLINE ? head.len_bytes : rng_below(rng, 20));
    rdti_stream_head_encode(&head, out + 1);
    return 1 + RDTI_STREAM_HEAD_BYTES;
}

/* u32 total, then the entries; how many follows from the size. */
static void
run_stream_list(const uint8_t *data, size_t size)
{
    struct rdti_stream_entry entries[RDTI_STREAM_LIST_MAX];
    struct rdt_error err = {0};
    uint64_t lo = 0;
    uint64_t hi = 0;
    uint64_t sum = 0;

    if (size < 4)
        return;
    const uint32_t total = rdti_get_u32(data);
    const uint32_t count = (uint32_t)((size - 4) / RDTI_STREAM_ENTRY_BYTES);
    uint8_t *exact = exact_copy(data + 4, size - 4);
    if (count <= RDTI_STREAM_LIST_MAX &&
        rdti_stream_list_decode(exact, size - 4, count, total, entries, &lo, &hi, &err) == RDT_OK) {
        for (uint32_t i = 0; i < count; i++) {
            CHECK(entries[i].len_bytes > 0 && entries[i].off_bytes >= lo);
            CHECK(entries[i].off_bytes + entries[i].len_bytes > entries[i].off_bytes);
            CHECK(entries[i].off_bytes + entries[i].len_bytes <= hi);
            sum += entries[i].len_bytes;
        }
        CHECK_UINT_EQ(sum, total);
    }
    free(exact);
}

static size_t
seed_stream_list(struct rng *rng, uint8_t *out)
{
    const uint32_t count = 1 + rng_below(rng, 6);
    uint32_t total = 0;

    for (uint32_t i = 0; i < count; i++) {
        const struct rdti_stream_entry entry = {.off_bytes = rng_u64(rng) >> 1,
                                                .len_bytes = 1 + rng_below(rng, 5000)};
        rdti_stream_entry_encode(&entry, out + 4 + i * RDTI_STREAM_ENTRY_BYTES);
        total += entry.len_bytes;
    }
    rdti_put_u32(out, total);
    return 4 + count * RDTI_STREAM_ENTRY_BYTES;
}

static void
run_stream_offer(const uint8_t *data, size_t size)
{
    uint8_t again[RDTI_STREAM_OFFER_BYTES];
    uint8_t *exact = exact_copy(data, size);
    uint16_t streams = 0;

    if (rdti_stream_offer_decode(exact, size, &streams, NULL) == RDT_OK) {
        CHECK(streams >= 1 && streams <= RDTI_STREAM_STREAMS_MAX);
        rdti_stream_offer_encode(streams, again);
        CHECK_MEM_EQ(again, exact, sizeof(again));
    } else {
        CHECK_INT_EQ(streams, 0);
    }
    free(exact);
}

static size_t
seed_stream_offer(struct rng *rng, uint8_t *out)
{
    rdti_stream_offer_encode((uint16_t)(1 + rng_below(rng, RDTI_STREAM_STREAMS_MAX)), out);
    return RDTI_STREAM_OFFER_BYTES;
}

/* ---- Notifications, and the offer of shm ----------------------------------------------------- */

static void
run_notify(const uint8_t *data, size_t size)
{
    uint32_t value = 7;
    uint32_t epoch = 7;

    if (size != 4)
        return;
    const uint32_t word = rdti_get_u32(data);
    switch (rdti_notify_parse(word, &value, &epoch)) {
    case RDTI_NOTIFY_IS_SLOT:
        CHECK(value <= RDTI_SLOT_ID_MAX && rdti_notify_slot(value, epoch) == word);
        break;
    case RDTI_NOTIFY_IS_STREAM:
        CHECK(value <= RDTI_STREAM_ID_MAX && rdti_notify_stream(value, epoch) == word);
        break;
    case RDTI_NOTIFY_IS_CREDIT:
        CHECK(value <= RDTI_SLOT_ID_MAX && rdti_notify_credit(value) == word);
        break;
    case RDTI_NOTIFY_IS_USER:
        CHECK_HEX_EQ(rdti_notify_user(value), word);
        break;
    case RDTI_NOTIFY_IS_MESSAGE:
        CHECK_HEX_EQ(word, RDTI_NOTIFY_MESSAGE);
        break;
    case RDTI_NOTIFY_IS_PROBE:
        CHECK_HEX_EQ(word, RDTI_NOTIFY_PROBE);
        break;
    case RDTI_NOTIFY_IS_INVALID:
        break;
    }
}

static size_t
seed_notify(struct rng *rng, uint8_t *out)
{
    const uint32_t words[] = {rdti_notify_slot(rng_below(rng, RDTI_SLOT_ID_MAX), rng_u32(rng)),
                              rdti_notify_credit(rng_below(rng, RDTI_SLOT_ID_MAX)),
                              rdti_notify_user(rng_below(rng, 1 << 18)), RDTI_NOTIFY_MESSAGE,
                              RDTI_NOTIFY_PROBE};

    rdti_put_u32(out, words[rng_below(rng, sizeof(words) / sizeof(words[0]))]);
    return 4;
}

/* The first byte is the number of descriptors. */
static void
run_shm_offer(const uint8_t *data, size_t size)
{
    struct rdti_offer offer = {0};
    struct rdti_offer again = {0};
    struct shm_offer out = {.pid = 77};

    if (size < 1 || size - 1 > sizeof(offer.bytes))
        return;
    offer.fd_count = data[0] % (RDTI_OFFER_MAX_FDS + 1);
    offer.len_bytes = (uint32_t)(size - 1);
    memcpy(offer.bytes, data + 1, size - 1);
    if (rdti_shm_offer_decode(&offer, 3, &out, NULL) != RDT_OK) {
        CHECK_INT_EQ(out.pid, 77);
        return;
    }
    rdti_shm_offer_encode(&out, &again);
    CHECK_UINT_EQ(again.len_bytes, offer.len_bytes);
    CHECK_MEM_EQ(again.bytes, offer.bytes, again.len_bytes);
}

static size_t
seed_shm_offer(struct rng *rng, uint8_t *out)
{
    struct shm_offer in = {.pid = rng_u32(rng), .nonce_addr = rng_u64(rng)};
    struct rdti_offer offer = {0};

    rng_bytes(rng, in.nonce, sizeof(in.nonce));
    rdti_shm_offer_encode(&in, &offer);
    out[0] = SHM_FD_COUNT;
    memcpy(out + 1, offer.bytes, offer.len_bytes);
    return 1 + offer.len_bytes;
}

/* Records of a place in the ring, from where the receiver looks on, and a word that comes to stand
 * there. */
enum { RING_RECORD_BYTES = 1 + 8 };

static void
run_shm_ring(const uint8_t *data, size_t size)
{
    static struct shm_ring ring;
    struct shm_cursor cursor = {0};
    uint32_t count = 0;
    uint32_t value = 0;

    memset(&ring, 0, sizeof(ring));
    for (; size >= RING_RECORD_BYTES; data += RING_RECORD_BYTES, size -= RING_RECORD_BYTES) {
        const uint64_t stored = rdti_get_u64(data + 1);
        atomic_store(&ring.entries[(cursor.slot + data[0]) % SHM_RING_ENTRIES].word, stored);
        const uint64_t word = atomic_load(&ring.entries[count % SHM_RING_ENTRIES].word);
        const enum shm_taken taken = shm_ring_take(&ring, &cursor, &value);
        if (taken == SHM_TAKEN) {
            count++;
            CHECK_HEX_EQ(word, (uint64_t)count << 32 | value);
        }
        CHECK_UINT_EQ(cursor.sequence, count);
        CHECK_UINT_EQ(cursor.slot, count % SHM_RING_ENTRIES);
        if (taken == SHM_BROKEN)
            return; /* the lane ends */
    }
}

static size_t
seed_shm_ring(struct rng *rng, uint8_t *out)
{
    const uint32_t count = rng_below(rng, 3 * SHM_RING_ENTRIES);

    for (uint32_t i = 0; i < count; i++) {
        out[i * RING_RECORD_BYTES] = 0;
        rdti_put_u64(out + i * RING_RECORD_BYTES + 1,
                     (uint64_t)(i + 1) << 32 | (uint32_t)rng_next(rng));
    }
    return count * RING_RECORD_BYTES;
}
_Static_assert(3 * SHM_RING_ENTRIES * RING_RECORD_BYTES <= WIRE_MAX_BYTES, "see struct extra");

/* ---- Sparse tensors: the number of dimensions, their sizes, entries, and indices ------------ */

enum { SPARSE_DIMS_MAX = 4, SPARSE_SIZE_MAX = 8 };

/* What torch does with them, for which they must lead inside. */
static void
count_entries(const int64_t *indices, size_t stride, size_t count, const int64_t *sizes,
              size_t dims, size_t most)
{
    uint8_t *table = calloc(most > 0 ? most : 1, 1);

    CHECK_NOT_NULL(table);
    for (size_t i = 0; i < count; i++) {
        int64_t at = 0;
        for (size_t row = 0; row < dims; row++)
            at = at * sizes[row] + indices[row * stride + i];
        table[at]++;
    }
    free(table);
}

static void
run_sparse(const uint8_t *data, size_t size)
{
    int64_t sizes[SPARSE_DIMS_MAX];
    size_t most = 1;

    if (size < 1 + SPARSE_DIMS_MAX + 8)
        return;
    const size_t dims = 1 + data[0] % SPARSE_DIMS_MAX;
    for (size_t i = 0; i < dims; i++) {
        sizes[i] = data[1 + i] % (SPARSE_SIZE_MAX + 1);
        most *= (size_t)sizes[i];
    }
    const int64_t said = (int64_t)rdti_get_u64(data + 1 + SPARSE_DIMS_MAX);
    CHECK_INT_EQ(rdti_sparse_count_fits(said, sizes, dims),
                 said >= 0 && (uint64_t)said <= most ? 1 : 0);
    const size_t stride = (size - 1 - SPARSE_DIMS_MAX - 8) / 8 / dims;
    const size_t count = stride > 0 ? (uint64_t)said % (stride + 1) : 0;
    int64_t *indices = calloc(stride * dims + 1, sizeof(*indices));
    CHECK_NOT_NULL(indices);
    bool is_inside = true;
    for (size_t i = 0; i < stride * dims; i++) {
        indices[i] = (int64_t)rdti_get_u64(data + 1 + SPARSE_DIMS_MAX + 8 + 8 * i);
        if (i % stride < count && (indices[i] < 0 || indices[i] >= sizes[i / stride]))
            is_inside = false;
    }
    const bool fits = rdti_sparse_indices_fit(indices, stride, count, sizes, dims);
    CHECK_INT_EQ(fits, is_inside);
    if (fits)
        count_entries(indices, stride, count, sizes, dims, most);
    free(indices);
}

static size_t
seed_sparse(struct rng *rng, uint8_t *out)
{
    const uint32_t dims = 1 + rng_below(rng, SPARSE_DIMS_MAX);
    const uint32_t stride = rng_below(rng, 8);
    uint8_t *at = out + 1 + SPARSE_DIMS_MAX;

    memset(out, 0, 1 + SPARSE_DIMS_MAX);
    out[0] = (uint8_t)(dims - 1);
    for (uint32_t i = 0; i < dims; i++)
        out[1 + i] = (uint8_t)(1 + rng_below(rng, SPARSE_SIZE_MAX));
    rdti_put_u64(at, rng_below(rng, stride + 1));
    at += 8;
    for (uint32_t i = 0; i < dims * stride; i++, at += 8)
        rdti_put_u64(at, rng_below(rng, out[1 + i / stride]));
    return (size_t)(at - out);
}

static const struct extra extras[] = {
    {"opening", run_opening, seed_opening},
    {"answer", run_answer, seed_answer},
    {"frame_head", run_frame_head, seed_frame_head},
    {"stream_head", run_stream_head, seed_stream_head},
    {"stream_list", run_stream_list, seed_stream_list},
    {"stream_offer", run_stream_offer, seed_stream_offer},
    {"notify", run_notify, seed_notify},
    {"shm_offer", run_shm_offer, seed_shm_offer},
    {"shm_ring", run_shm_ring, seed_shm_ring},
    {"sparse", run_sparse, seed_sparse},
};
#define EXTRA_COUNT (sizeof(extras) / sizeof(extras[0]))

/* ---- The program ----------------------------------------------------------------------------- */

static void
list_targets(void)
{
    for (size_t i = 0; i < CODEC_COUNT; i++)
        puts(codecs[i].name);
    for (size_t i = 0; i < EXTRA_COUNT; i++)
        puts(extras[i].name);
}

static void
write_seeds(const char *dir)
{
    struct rng rng = {.state = 0x5eed};
    uint8_t wire[WIRE_MAX_BYTES];
    union any_value value;

    for (unsigned i = 0; i < SEEDS; i++) {
        const size_t len_bytes =
            codec != NULL ? encode_random(codec, &rng, &value, wire) : extra->seed(&rng, wire);
        fuzz_write_seed(dir, i, wire, len_bytes);
    }
}

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *name = fuzz_option(*argc, *argv, "target");
    const char *seeds = fuzz_option(*argc, *argv, "seeds");

    if (fuzz_option(*argc, *argv, "list") != NULL) {
        list_targets();
        exit(0);
    }
    CHECK_MSG(name != NULL, "which decoder? --target=NAME, see --list");
    for (size_t i = 0; i < EXTRA_COUNT; i++)
        extra = strcmp(extras[i].name, name) == 0 ? &extras[i] : extra;
    if (extra == NULL)
        codec = codec_named(name);
    if (seeds != NULL) {
        write_seeds(seeds);
        exit(0);
    }
    return 0;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    union any_value out;

    if (extra != NULL)
        extra->run(data, size);
    else if (size <= WIRE_MAX_BYTES)
        (void)decode_strictly(codec, data, size, &out);
    return 0;
}
