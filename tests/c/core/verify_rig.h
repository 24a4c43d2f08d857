/* SPDX-License-Identifier: Apache-2.0
 * Contexts that verify, and paths between them that corrupt.
 *
 * A path is made to corrupt by putting another table in the place of its transport's: it hands a
 * changed copy of the bytes to the lane, behind the back of whoever summed them. */
#ifndef RDTI_TESTS_VERIFY_RIG_H
#define RDTI_TESTS_VERIFY_RIG_H

#include <stdlib.h>
#include <string.h>

#include "endpoint/endpoint_impl.h"
#include "pair_rig.h"

#define S RIG_S

static const uint32_t transports[] = {RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP, RDT_TRANSPORT_VERBS};
static const char *const names[] = {"shm", "tcp", "verbs"};

/* ---- A path that corrupts ---------------------------------------------------------------- */

static struct rdti_transport real;
static struct rdti_transport evil;
static _Atomic uint64_t evil_from_bytes; /* only what is at least so long */
static _Atomic uint64_t evil_off;        /* the byte of it that is changed */
static _Atomic uint32_t evil_done;
static struct rdt_block evil_blocks[2];
static uint8_t *evil_bytes;

/* Heads are shorter than what they stand before. */
static inline uint32_t
longest(const struct rdti_op *op)
{
    return op->block_count == 2 && op->blocks[1].len_bytes > op->blocks[0].len_bytes ? 1 : 0;
}

static inline bool
is_chosen(const struct rdti_op *op)
{
    if (op->block_count < 1 || op->block_count > 2)
        return false;
    const uint64_t len_bytes = op->blocks[longest(op)].len_bytes;
    return len_bytes >= evil_from_bytes && evil_off < len_bytes &&
           atomic_fetch_add(&evil_done, 1) == 0;
}

static inline rdt_status
evil_write(struct rdti_lane *lane, struct rdti_op *op, struct rdt_error *err)
{
    if (is_chosen(op)) {
        struct rdt_block *block = &evil_blocks[longest(op)];
        memcpy(evil_blocks, op->blocks, sizeof(evil_blocks[0]) * op->block_count);
        evil_bytes = malloc(block->len_bytes);
        memcpy(evil_bytes, block->src, block->len_bytes);
        evil_bytes[evil_off] ^= 0x10;
        block->src = evil_bytes;
        op->blocks = evil_blocks;
    }
    return real.write(lane, op, err);
}

static void (*evil_complete)(struct rdti_op *op, rdt_status status, const struct rdt_error *err);

static inline void
on_evil_read(struct rdti_op *op, rdt_status status, const struct rdt_error *err)
{
    ((uint8_t *)(uintptr_t)op->block.src)[evil_off] ^= 0x10;
    op->complete = evil_complete;
    op->complete(op, status, err);
}

static inline rdt_status
evil_read(struct rdti_lane *lane, struct rdti_op *op, struct rdt_error *err)
{
    if (is_chosen(op)) {
        evil_complete = op->complete;
        op->complete = on_evil_read;
    }
    return real.read(lane, op, err);
}

/* The next payload of at least so many bytes that goes over this endpoint has one bit changed. */
static inline void
corrupt_next(rdt_endpoint *ep, uint64_t from_bytes, uint64_t off)
{
    rdti_engine_enter(ep->ctx->engine);
    if (ep->lane->transport != &evil)
        real = *ep->lane->transport;
    evil = real;
    evil.write = evil_write;
    evil.read = evil_read;
    evil_from_bytes = from_bytes;
    evil_off = off;
    evil_done = 0;
    ep->lane->transport = &evil;
    rdti_engine_leave(ep->ctx->engine);
}

/* ---- Pairs that verify ------------------------------------------------------------------- */

static inline rdt_context *
make(uint32_t transport, uint32_t verify, int32_t rank)
{
    struct rdt_error err = {0};
    rdt_context *ctx = NULL;
    const struct rdt_context_opts opts = {
        .struct_size = sizeof(opts),
        .force_transport = transport,
        .loopback_only = 1,
        .timeout_ns = 20 * S,
        .arena_chunk_bytes = 1 << 20,
        .verify = verify,
    };

    if (transport == RDT_TRANSPORT_VERBS)
        sim_use();
    CHECK_OK(rdt_context_open(&opts, &ctx, &err), &err);
    CHECK_OK(rdt_context_add_job(ctx, "job", (const uint8_t *)"secret", 6, 1, rank, &err), &err);
    return ctx;
}

static inline void
open_pair(struct pair *pair, uint32_t transport)
{
    struct rdt_error err = {0};

    for (int i = 0; i < 2; i++)
        pair->ctx[i] = make(transport, RDT_VERIFY_CRC32C, i);
    for (int i = 0; i < 2; i++)
        endpoint_make(pair->ctx[i], pair->ctx[1 - i], 1 - i, &pair->ep[i]);
    for (int i = 0; i < 2; i++)
        CHECK_OK(rdt_endpoint_wait_ready(pair->ep[i], 10 * S, &err), &err);
}

static inline struct rdt_counters
counters_of(rdt_context *ctx)
{
    struct rdt_counters counters = {.struct_size = sizeof(counters)};

    rdt_context_counters(ctx, &counters);
    return counters;
}

static inline uint8_t *
noise(uint64_t len_bytes, uint32_t seed)
{
    uint8_t *bytes = malloc(len_bytes);

    for (uint64_t i = 0; i < len_bytes; i++) {
        seed = seed * 1664525 + 1013904223;
        bytes[i] = (uint8_t)(seed >> 24);
    }
    return bytes;
}

/* The error says all of these. */
static inline void
check_names(const struct rdt_error *err, const char *subject, const char *path, const char *where)
{
    if (strstr(err->message, subject) == NULL || strstr(err->message, where) == NULL)
        fprintf(stderr, "wanted '%s' and '%s': %s\n", subject, where, err->message);
    CHECK_INT_EQ(err->status, RDT_ECORRUPT);
    CHECK(strstr(err->message, subject) != NULL);
    CHECK(strstr(err->message, path) != NULL);
    CHECK(strstr(err->message, where) != NULL);
    CHECK(strstr(err->message, "rank ") != NULL);
}

static inline void export(rdt_context *ctx, uint64_t len_bytes, rdt_region **region,
                          struct rdt_remote_region *remote)
{
    struct rdt_error err = {0};

    CHECK_OK(rdt_region_alloc(ctx, len_bytes, RDT_REGION_ZERO, region, &err), &err);
    CHECK_OK(rdt_region_export(*region, remote, &err), &err);
}

static inline void
check_done(rdt_transfer *t)
{
    struct rdt_error err = {0};

    CHECK_OK(rdt_transfer_wait(t, 15 * S, &err), &err);
    rdt_transfer_free(t);
}

static inline rdt_status
take(rdt_endpoint *ep, uint32_t want, struct rdt_error *err)
{
    uint32_t got = 0;
    const rdt_status status = rdt_endpoint_wait_notify(ep, 15 * S, &got, err);

    if (status == RDT_OK)
        CHECK_UINT_EQ(got, want);
    return status;
}

#endif
