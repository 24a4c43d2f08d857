/* SPDX-License-Identifier: Apache-2.0
 *
 * tensors - one tensor into the other process's hands, in four ways over the same transport, so
 * that what zero copy gains, what addresses known beforehand gain and what the transport gains are
 * told apart. Half a round trip, as in `latency`: the tensor goes there and another comes back. Who
 * sends writes all of it before, and who receives reads all of it before answering: what was copied
 * out lies in the reader's cache then, what was written into a slot does not, and one side has to
 * fetch it; and what the receiver fetched from the sender's memory, the sender has to take back
 * before it can write there again.
 *
 *   slot        a static slot: its place is known, one write into it
 *   dynamic     a dynamic slot: description and address travel, the receiver reads
 *   copy        an RPC made for this transport: chunks are written into a private ring of the
 *               receiver's and copied out of it into the tensor while the next ones come
 *   serialised  the same, of messages that a tensor is first packed into: dtype, shape and bytes;
 *               the receiver parses them and copies out into the tensor that they describe
 *
 *   rdtperf tensors [--transport shm|tcp|verbs] [--size N] [--rounds N] [--count N] [--chunk N]
 *
 * Defaults: shm, 64 KiB, 5 rounds of 200 trips, a ring of 16 chunks, which have 64 KiB, and 1 MiB
 * over TCP: there the copying ways are fastest, of 16 KiB to 1 MiB. What arrives is compared in a
 * pass of its own, first. What is sent lies in the arena; what is copied out goes into memory that
 * was touched before: an RPC that allocates for each message is slower.
 */
#include <string.h>
#include <sys/mman.h>

#include "perf.h"

#define MAX_BYTES ((size_t)64 << 20)
#define CHUNKS UINT64_C(16) /* of a ring; half of them are one credit */
/* Before the bytes of a message: a line, so that they are as well aligned as without it. */
#define DESCRIPTION_BYTES 64
enum { NOTIFY_CHUNK = 1, NOTIFY_CREDIT };

/* The private ring of one direction, and what is known of the other's. */
struct ring {
    rdt_region *region; /* the peer writes into it */
    struct rdt_remote_region remote;
    rdt_region *staging; /* as large: what goes into chunk i is packed into its chunk i */
    uint64_t sent;
    uint64_t credited; /* of those that were sent */
    uint64_t arrived;
    uint64_t taken;
};

struct ends {
    struct pair *pair;
    const struct perf_options *options;
    rdt_region *source;
    char *made;      /* what is written into the source, again for each message */
    char *tensor;    /* what the copying ways deliver */
    const void *got; /* where the last tensor lies that came */
    uint64_t sum;    /* of what comes once verify() is over: the same each time */
    struct ring ring;
    rdt_slot *slots[2]; /* static, dynamic */
    rdt_slot_tx *peers_slots[2];
};

/* ---- Slots ------------------------------------------------------------------------------- */

static void
send_to_slot(struct ends *e, size_t which)
{
    const uint64_t dims[RDT_MAX_NDIM] = {e->options->len_bytes};
    rdt_transfer *transfer;
    struct rdt_error err;

    pair_check(rdt_slot_tx_put(e->peers_slots[which], rdt_region_addr(e->source), dims,
                               PAIR_TIMEOUT_NS, &transfer, &err),
               &err, "rdt_slot_tx_put");
    if (which == 0)
        pair_finish(transfer);
    else /* of a dynamic one the receiver has read it only once the answer is here */
        rdt_transfer_free(transfer);
}

static void
take_from_slot(struct ends *e, size_t which)
{
    struct rdt_slot_view view;
    struct rdt_error err;

    pair_check(rdt_slot_get(e->slots[which], PAIR_TIMEOUT_NS, &view, &err), &err, "rdt_slot_get");
    if (view.len_bytes != e->options->len_bytes)
        bench_fail("a slot has %llu bytes", (unsigned long long)view.len_bytes);
    e->got = view.addr;
}

static void
release_slot(struct ends *e, size_t which)
{
    struct rdt_error err;

    pair_check(rdt_slot_release(e->slots[which], &err), &err, "rdt_slot_release");
}

/* ---- Rings ------------------------------------------------------------------------------- */

static void
take_notification(struct ends *e)
{
    struct ring *ring = &e->ring;

    if (pair_wait_notify(e->pair) == NOTIFY_CHUNK)
        ring->arrived++;
    else
        ring->credited += CHUNKS / 2;
}

static void
post(struct ends *e, const void *src, size_t len_bytes, size_t dst_off, uint32_t notify,
     rdt_transfer **out)
{
    struct rdt_error err;

    pair_check(rdt_endpoint_write(e->pair->ep, src, len_bytes, &e->ring.remote, dst_off, notify,
                                  out, &err),
               &err, "rdt_endpoint_write");
}

/* Little-endian, seven bits a byte, as protobuf writes numbers. */
static size_t
put_number(uint8_t *at, uint64_t value)
{
    size_t n = 0;

    for (; value >= 0x80; value >>= 7)
        at[n++] = (uint8_t)(value | 0x80);
    at[n++] = (uint8_t)value;
    return n;
}

static size_t
get_number(const uint8_t *at, uint64_t *value_out)
{
    uint64_t value = 0;
    size_t n = 0;

    do
        value |= (uint64_t)(at[n] & 0x7f) << (7 * n);
    while ((at[n++] & 0x80) != 0 && n < 9);
    *value_out = value;
    return n;
}

static void
describe(uint8_t at[DESCRIPTION_BYTES], size_t len_bytes)
{
    size_t n = put_number(at, RDT_U8);

    n += put_number(at + n, 1); /* dims */
    n += put_number(at + n, len_bytes);
    (void)put_number(at + n, len_bytes); /* bytes that follow */
}

/* What is described has to be the tensor. */
static void
parse(const struct ends *e, const uint8_t *at)
{
    uint64_t fields[4];
    size_t n = 0;

    for (size_t i = 0; i < 4; i++)
        n += get_number(at + n, &fields[i]);
    if (fields[0] != RDT_U8 || fields[1] != 1 || fields[2] != fields[3] ||
        fields[3] != e->options->len_bytes)
        bench_fail("a message describes another tensor");
}

/* Chunk i of a message lies at the same place in the ring and in the staging. */
static size_t
chunk_off(const struct perf_options *options, uint64_t number)
{
    return (size_t)(number % CHUNKS) * (DESCRIPTION_BYTES + options->chunk_bytes);
}

/* The first chunk of a message takes its description with it. */
static const char *
pack(struct ends *e, const char *src, size_t len_bytes, size_t off, bool is_first)
{
    char *message = (char *)rdt_region_addr(e->ring.staging) + off;

    if (is_first)
        describe((uint8_t *)message, e->options->len_bytes);
    memcpy(message + DESCRIPTION_BYTES, src, len_bytes);
    return is_first ? message : message + DESCRIPTION_BYTES;
}

static void
send_through_ring(struct ends *e, bool is_packed)
{
    const struct perf_options *options = e->options;
    const char *src = rdt_region_addr(e->source);
    struct ring *ring = &e->ring;
    rdt_transfer *transfer = NULL;

    for (size_t done = 0, n; done < options->len_bytes; done += n) {
        const size_t left = options->len_bytes - done;
        const bool has_description = is_packed && done == 0;

        n = left < options->chunk_bytes ? left : options->chunk_bytes;
        while (ring->sent - ring->credited == CHUNKS)
            take_notification(e);
        const size_t off = chunk_off(options, ring->sent++);
        const char *from = is_packed ? pack(e, src + done, n, off, has_description) : src + done;
        const size_t before = has_description ? DESCRIPTION_BYTES : 0;

        post(e, from, before + n, off + DESCRIPTION_BYTES - before, NOTIFY_CHUNK,
             left == n ? &transfer : NULL);
    }
    pair_finish(transfer);
}

static void
take_from_ring(struct ends *e, bool is_packed)
{
    const struct perf_options *options = e->options;
    struct ring *ring = &e->ring;

    for (size_t done = 0, n; done < options->len_bytes; done += n) {
        const size_t left = options->len_bytes - done;

        n = left < options->chunk_bytes ? left : options->chunk_bytes;
        while (ring->arrived == ring->taken)
            take_notification(e);
        const uint8_t *at =
            (const uint8_t *)rdt_region_addr(ring->region) + chunk_off(options, ring->taken++);

        if (is_packed && done == 0)
            parse(e, at);
        memcpy(e->tensor + done, at + DESCRIPTION_BYTES, n);
        if (ring->taken % (CHUNKS / 2) == 0)
            post(e, NULL, 0, 0, NOTIFY_CREDIT, NULL);
    }
    e->got = e->tensor;
}

/* ---- Ways -------------------------------------------------------------------------------- */

enum { WAY_SLOT, WAY_DYNAMIC, WAY_COPY, WAY_SERIALISED, WAYS };

static const char *const way_names[WAYS] = {"slot", "dynamic", "copy", "serialised"};

/* Writes the source as who computes a tensor would, with ordinary stores. */
static void
send_tensor(struct ends *e, size_t way)
{
    memcpy(rdt_region_addr(e->source), e->made, e->options->len_bytes);
    if (way <= WAY_DYNAMIC)
        send_to_slot(e, way);
    else
        send_through_ring(e, way == WAY_SERIALISED);
}

static void
take_tensor(struct ends *e, size_t way)
{
    if (way <= WAY_DYNAMIC)
        take_from_slot(e, way);
    else
        take_from_ring(e, way == WAY_SERIALISED);
}

static void
release_tensor(struct ends *e, size_t way)
{
    if (way <= WAY_DYNAMIC)
        release_slot(e, way);
}

/* Both sides are ready to take, and have what they send to. */
static void
open_ends(struct ends *e, struct pair *p)
{
    const struct perf_options *options = p->arg;
    const size_t ring_bytes =
        chunk_off(options, CHUNKS - 1) + DESCRIPTION_BYTES + options->chunk_bytes;
    struct rdt_tensor_desc desc = {.struct_size = sizeof(desc), .dtype = RDT_U8, .ndim = 1};
    struct rdt_error err;

    *e = (struct ends){.pair = p, .options = options};
    const struct perf_regions regions = perf_swap_regions(p, ring_bytes);
    e->ring.region = regions.own;
    e->ring.remote = regions.other;
    pair_check(rdt_region_alloc(p->ctx, ring_bytes, RDT_REGION_ZERO, &e->ring.staging, &err), &err,
               "rdt_region_alloc");
    pair_check(rdt_region_alloc(p->ctx, options->len_bytes, RDT_REGION_ZERO, &e->source, &err),
               &err, "rdt_region_alloc");
    e->made = bench_map(options->len_bytes, MAP_PRIVATE);
    e->tensor = bench_map(options->len_bytes, MAP_PRIVATE);
    for (size_t i = 0; i <= WAY_DYNAMIC; i++) {
        desc.kind = i == WAY_SLOT ? RDT_SLOT_STATIC : RDT_SLOT_DYNAMIC;
        desc.dims[0] = i == WAY_SLOT ? options->len_bytes : 0;
        pair_check(rdt_slot_create(p->ep, way_names[i], &desc, &e->slots[i], &err), &err,
                   "rdt_slot_create");
        pair_check(rdt_slot_tx_open(p->ep, way_names[i], &desc, PAIR_TIMEOUT_NS, &e->peers_slots[i],
                                    &err),
                   &err, "rdt_slot_tx_open");
    }
    pair_barrier(p);
}

static void
close_ends(struct ends *e)
{
    pair_barrier(e->pair); /* nothing is on its way any more */
    for (size_t i = 0; i <= WAY_DYNAMIC; i++) {
        rdt_slot_tx_destroy(e->peers_slots[i]);
        rdt_slot_destroy(e->slots[i]);
    }
    rdt_region_free(e->ring.region, NULL, NULL);
    rdt_region_free(e->ring.staging, NULL, NULL);
    rdt_region_free(e->source, NULL, NULL);
    (void)munmap(e->made, e->options->len_bytes);
    (void)munmap(e->tensor, e->options->len_bytes);
}

static uint64_t
run_trips(void *ends, const struct perf_way *way, uint64_t n)
{
    struct ends *e = ends;

    for (; n > 0; n--) {
        if (e->pair->side == 0)
            send_tensor(e, way->number);
        take_tensor(e, way->number);
        if (bench_sum(e->got, e->options->len_bytes) != e->sum)
            bench_fail("%s: another tensor came than was sent", way->name);
        release_tensor(e, way->number);
        if (e->pair->side == 1)
            send_tensor(e, way->number);
    }
    return 0;
}

/* A tensor each way, compared; both sides. The receiver's is another one each time. */
static void
verify(struct ends *e)
{
    const size_t len_bytes = e->options->len_bytes;

    for (size_t way = 0; way < WAYS; way++) {
        for (int k = 0; k < 2; k++) {
            const uint64_t seed = 2 * way + (uint64_t)k;

            if (e->pair->side == k) {
                bench_fill(e->made, len_bytes, seed);
                send_tensor(e, way);
                pair_barrier(e->pair);
                continue;
            }
            take_tensor(e, way);
            bench_verify(e->got, len_bytes, seed, way_names[way]);
            e->sum = bench_sum(e->got, len_bytes);
            release_tensor(e, way);
            pair_barrier(e->pair);
        }
    }
}

static void
run_side(struct pair *p)
{
    const struct perf_options *options = p->arg;
    struct perf_way ways[WAYS];
    struct ends e;
    const struct perf_loop loop = {.ways = ways,
                                   .ways_count = WAYS,
                                   .ends = &e,
                                   .sample = PERF_TRIP,
                                   .item_bytes = 2.0 * (double)options->len_bytes};

    for (size_t way = 0; way < WAYS; way++)
        ways[way] = (struct perf_way){.name = way_names[way], .run = run_trips, .number = way};
    open_ends(&e, p);
    verify(&e);
    perf_measure(p, options, &loop);
    close_ends(&e);
}

void
perf_tensors(const struct perf_options *options)
{
    if (options->chunk_bytes % DESCRIPTION_BYTES != 0 || options->chunk_bytes > MAX_BYTES)
        bench_fail("--chunk is a multiple of %d up to %zu", DESCRIPTION_BYTES, MAX_BYTES);
    perf_run(options, run_side, run_side);
}
