/* SPDX-License-Identifier: Apache-2.0
 *
 * tensors - one tensor into the other process's memory, in four ways over the same transport, which
 * tell apart what zero copy gains, what addresses known beforehand gain and what the transport
 * gains. Half a round trip, as in `latency`: the tensor goes there and another comes back. The
 * sender writes all of it before, and the receiver reads all of it before it answers: what was
 * copied out lies in the reader's cache then, what was written into a slot does not.
 *
 *   slot        a static slot: its place is known, one write into it
 *   dynamic     a dynamic slot: description and address travel, the receiver reads
 *   copy        a tuned RPC: chunks are written into a ring of slots at the receiver, and copied
 *               out of it into the tensor while the next ones come
 *   serialised  the same of messages that the tensor is first packed into (copy_ring.h): dtype,
 *               shape and bytes, which the receiver checks before it copies them out
 *
 *   rdtperf tensors [--transport shm|tcp|verbs] [--size N] [--rounds N] [--count N] [--chunk N]
 *
 * A ring has 16 chunks of 64 KiB, or of 1 MiB over TCP: there the copying ways are fastest, of 16
 * KiB to 1 MiB. What arrives is compared in a pass of its own, first. What is sent lies in the
 * arena; what is copied out goes into memory that was touched before.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "copy_ring.h"
#include "perf.h"

#define MAX_BYTES ((size_t)64 << 20)
#define RING_SLOTS 8 /* of two buffers each */

enum { WAY_SLOT, WAY_DYNAMIC, WAY_COPY, WAY_SERIALISED, WAYS };

static const struct {
    const char *name;
    uint32_t kind;
    size_t slots;
    size_t heads_bytes; /* in addition to a chunk */
} kinds[WAYS] = {{"slot", RDT_SLOT_STATIC, 1, 0},
                 {"dynamic", RDT_SLOT_DYNAMIC, 1, 0},
                 {"copy", RDT_SLOT_BOUNDED, RING_SLOTS, 0},
                 {"serialised", RDT_SLOT_BOUNDED, RING_SLOTS, COPY_RING_HEADS_BYTES}};

static const struct copy_ring_calls calls = {.get = rdt_slot_get,
                                             .release = rdt_slot_release,
                                             .buffer = rdt_slot_tx_buffer,
                                             .post = rdt_slot_tx_post,
                                             .free = rdt_transfer_free};

/* One way's slots, and the peer's. */
struct channel {
    void *own[RING_SLOTS];
    void *peers[RING_SLOTS];
    uint64_t sent;
    uint64_t taken;
    struct copy_ring out;
    struct copy_ring in;
};

struct ends {
    struct pair *pair;
    const struct perf_options *options;
    rdt_region *source;
    char *made;      /* what is written into the source, again for each message */
    char *tensor;    /* what the copying ways deliver */
    const void *got; /* where the last tensor lies that came */
    uint64_t sum;    /* of what comes once verify() is over: the same each time */
    struct channel channels[WAYS];
};

/* ---- Sending and taking ---------------------------------------------------------------------- */

static void
put(struct ends *e, size_t way, const void *src, size_t len_bytes, bool is_last)
{
    struct channel *c = &e->channels[way];
    const uint64_t dims[RDT_MAX_NDIM] = {len_bytes};
    rdt_transfer *transfer;
    struct rdt_error err;

    pair_check(rdt_slot_tx_put(c->peers[c->sent++ % kinds[way].slots], src, dims, PAIR_TIMEOUT_NS,
                               &transfer, &err),
               &err, "rdt_slot_tx_put");
    if (is_last && way != WAY_DYNAMIC)
        pair_finish(transfer);
    else /* the receiver has it by the time that the answer is here */
        rdt_transfer_free(transfer);
}

static struct copy_ring_tensor
tensor_of(const struct ends *e, void *values)
{
    return (struct copy_ring_tensor){.values = values,
                                     .len_bytes = e->options->len_bytes,
                                     .ndim = 1,
                                     .dims = {e->options->len_bytes}};
}

/* Writes the source with ordinary stores, as a program that computes a tensor. */
static void
send_tensor(struct ends *e, size_t way)
{
    const size_t len_bytes = e->options->len_bytes;
    const uint64_t first = 0;
    char *src = rdt_region_addr(e->source);

    memcpy(src, e->made, len_bytes);
    if (way == WAY_SERIALISED) {
        const struct copy_ring_tensor tensor = tensor_of(e, src);

        if (copy_ring_send(&e->channels[way].out, &tensor, &first, 1) != 0)
            bench_fail("copy_ring_send: %s", e->channels[way].out.err.message);
        return;
    }
    const size_t most = way == WAY_COPY ? e->options->chunk_bytes : len_bytes;
    for (size_t done = 0, n; done < len_bytes; done += n) {
        n = len_bytes - done < most ? len_bytes - done : most;
        put(e, way, src + done, n, done + n == len_bytes);
    }
}

static struct rdt_slot_view
take(struct ends *e, size_t way)
{
    struct channel *c = &e->channels[way];
    struct rdt_slot_view view;
    struct rdt_error err;

    pair_check(rdt_slot_get(c->own[c->taken % kinds[way].slots], PAIR_TIMEOUT_NS, &view, &err),
               &err, "rdt_slot_get");
    return view;
}

static void
release(struct ends *e, size_t way)
{
    struct channel *c = &e->channels[way];
    struct rdt_error err;

    pair_check(rdt_slot_release(c->own[c->taken++ % kinds[way].slots], &err), &err,
               "rdt_slot_release");
}

static void
take_tensor(struct ends *e, size_t way)
{
    const size_t len_bytes = e->options->len_bytes;

    e->got = e->tensor;
    if (way == WAY_SERIALISED) {
        const struct copy_ring_tensor tensor = tensor_of(e, e->tensor);

        if (copy_ring_receive(&e->channels[way].in, &tensor, 1, len_bytes) != 0)
            bench_fail("copy_ring_receive: %s", e->channels[way].in.err.message);
        return;
    }
    for (size_t done = 0; done < len_bytes;) {
        const struct rdt_slot_view view = take(e, way);

        if (view.len_bytes > len_bytes - done)
            bench_fail("a slot has %llu bytes", (unsigned long long)view.len_bytes);
        if (way == WAY_COPY) {
            memcpy(e->tensor + done, view.addr, view.len_bytes);
            release(e, way);
        } else { /* released once it was read */
            e->got = view.addr;
        }
        done += view.len_bytes;
    }
}

static void
release_tensor(struct ends *e, size_t way)
{
    if (way <= WAY_DYNAMIC)
        release(e, way);
}

/* ---- Set-up ---------------------------------------------------------------------------------- */

static void
open_channel(struct ends *e, size_t way)
{
    const size_t chunk_bytes = e->options->chunk_bytes;
    struct channel *c = &e->channels[way];
    struct rdt_tensor_desc desc = {.struct_size = sizeof(desc),
                                   .kind = kinds[way].kind,
                                   .dtype = RDT_U8,
                                   .ndim = 1};
    struct rdt_error err;
    rdt_slot_tx *tx;
    rdt_slot *slot;
    char name[32];

    if (way == WAY_SLOT)
        desc.dims[0] = e->options->len_bytes;
    else if (way != WAY_DYNAMIC)
        desc.dims[0] = chunk_bytes + kinds[way].heads_bytes;
    for (size_t i = 0; i < kinds[way].slots; i++) {
        (void)snprintf(name, sizeof(name), "%s %zu", kinds[way].name, i);
        pair_check(rdt_slot_create(e->pair->ep, name, &desc, &slot, &err), &err, "rdt_slot_create");
        pair_check(rdt_slot_tx_open(e->pair->ep, name, &desc, PAIR_TIMEOUT_NS, &tx, &err), &err,
                   "rdt_slot_tx_open");
        c->own[i] = slot;
        c->peers[i] = tx;
    }
    c->out = c->in = (struct copy_ring){.calls = &calls,
                                        .slots = c->peers,
                                        .slots_count = RING_SLOTS,
                                        .piece_bytes = chunk_bytes,
                                        .timeout_ns = PAIR_TIMEOUT_NS};
    c->in.slots = c->own;
}

static void
close_ends(struct ends *e)
{
    pair_barrier(e->pair); /* nothing is on its way any more */
    for (size_t way = 0; way < WAYS; way++) {
        for (size_t i = 0; i < kinds[way].slots; i++) {
            rdt_slot_tx_destroy(e->channels[way].peers[i]);
            rdt_slot_destroy(e->channels[way].own[i]);
        }
    }
    rdt_region_free(e->source, NULL, NULL);
    (void)munmap(e->made, e->options->len_bytes);
    (void)munmap(e->tensor, e->options->len_bytes);
}

/* ---- Turns ----------------------------------------------------------------------------------- */

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

    for (uint64_t seed = 0; seed < 2 * WAYS; seed++) {
        const size_t way = seed / 2;

        if (e->pair->side == (int)(seed % 2)) {
            bench_fill(e->made, len_bytes, seed);
            send_tensor(e, way);
        } else {
            take_tensor(e, way);
            bench_verify(e->got, len_bytes, seed, kinds[way].name);
            e->sum = bench_sum(e->got, len_bytes);
            release_tensor(e, way);
        }
        pair_barrier(e->pair);
    }
}

static void
run_side(struct pair *p)
{
    const struct perf_options *options = p->arg;
    struct ends e = {.pair = p,
                     .options = options,
                     .made = bench_map(options->len_bytes, MAP_PRIVATE),
                     .tensor = bench_map(options->len_bytes, MAP_PRIVATE)};
    struct perf_way ways[WAYS];
    const struct perf_loop loop = {.ways = ways,
                                   .ways_count = WAYS,
                                   .ends = &e,
                                   .sample = PERF_TRIP,
                                   .item_bytes = 2.0 * (double)options->len_bytes};
    struct rdt_error err;

    pair_check(rdt_region_alloc(p->ctx, options->len_bytes, RDT_REGION_ZERO, &e.source, &err), &err,
               "rdt_region_alloc");
    for (size_t way = 0; way < WAYS; way++) {
        ways[way] = (struct perf_way){.name = kinds[way].name, .run = run_trips, .number = way};
        open_channel(&e, way);
    }
    pair_barrier(p);
    verify(&e);
    perf_measure(p, options, &loop);
    close_ends(&e);
}

void
perf_tensors(const struct perf_options *options)
{
    if (options->chunk_bytes % COPY_RING_ALIGN != 0 || options->chunk_bytes > MAX_BYTES)
        bench_fail("--chunk is a multiple of %d up to %zu", COPY_RING_ALIGN, MAX_BYTES);
    perf_run(options, run_side, run_side);
}
