/* SPDX-License-Identifier: Apache-2.0
 * Transfers of a fake world, and its mailbox. For fake_group.h. */
#ifndef RDT_TESTS_COLLECTIVES_FAKE_MESSAGES_H
#define RDT_TESTS_COLLECTIVES_FAKE_MESSAGES_H

#include <stdlib.h>
#include <string.h>

#include "collectives/fake_world.h"
#include "harness.h"
#include "rdmatensor_ext.h"

/* ---- Transfers ---- */

static inline rdt_transfer *
fake_transfer_new(struct fake_world *world)
{
    rdt_transfer *t = calloc(1, sizeof(*t));

    CHECK_NOT_NULL(t);
    t->world = world;
    t->refs = 2;
    world->live_transfers++;
    return t;
}

static inline void
fake_transfer_drop(rdt_transfer *t)
{
    CHECK(t->refs > 0);
    if (--t->refs > 0)
        return;
    t->world->live_transfers--;
    free(t);
}

static inline void
fake_transfer_end(rdt_transfer *t, rdt_status status, const struct rdt_error *err)
{
    CHECK_MSG(!t->is_done, "a transfer ended twice");
    t->is_done = true;
    t->status = status;
    if (err != NULL)
        t->error = *err;
    fake_transfer_drop(t);
}

rdt_status
rdt_transfer_test(rdt_transfer *t, struct rdt_error *err)
{
    (void)pthread_mutex_lock(&t->world->lock);
    const rdt_status status = t->is_done ? t->status : RDT_EAGAIN;
    if (t->is_done && status != RDT_OK && err != NULL)
        *err = t->error;
    (void)pthread_mutex_unlock(&t->world->lock);
    return status;
}

uint64_t
rdt_transfer_len_bytes(const rdt_transfer *t)
{
    return t->len_bytes;
}

rdt_status
rdt_transfer_create(rdt_context *ctx, rdt_transfer **out, struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    (void)pthread_mutex_lock(&ctx->world->lock);
    if (fake_must_fail(ctx->world, FAKE_CREATE))
        status = fake_error(err, RDT_ENOMEM, "injected: create");
    else
        *out = fake_transfer_new(ctx->world);
    (void)pthread_mutex_unlock(&ctx->world->lock);
    return status;
}

void
rdt_transfer_finish(rdt_transfer *t, rdt_status status, const struct rdt_error *err)
{
    struct fake_world *world = t->world;

    (void)pthread_mutex_lock(&world->lock);
    fake_transfer_end(t, status, err);
    (void)pthread_mutex_unlock(&world->lock);
}

void
rdt_transfer_free(rdt_transfer *t)
{
    if (t == NULL)
        return;
    struct fake_world *world = t->world;
    (void)pthread_mutex_lock(&world->lock);
    fake_transfer_drop(t);
    (void)pthread_mutex_unlock(&world->lock);
}

/* Nobody asks here. */
void
rdt_transfer_explain(rdt_transfer *t, void (*explain)(void *arg, struct rdt_error *err), void *arg)
{
    (void)t;
    (void)explain;
    (void)arg;
}

/* Nothing is traced here. */
void
rdt_transfer_trace(rdt_transfer *t, const char *name, int32_t peer_rank, uint64_t len_bytes)
{
    (void)t;
    (void)name;
    (void)peer_rank;
    (void)len_bytes;
}

/* ---- Mailbox ---- */

static inline struct fake_message *
fake_message_find(struct fake_world *world, uint32_t src, uint32_t dst, uint64_t tag,
                  bool wants_send)
{
    for (struct fake_message *m = world->messages; m != NULL; m = m->next)
        if (m->src == src && m->dst == dst && m->tag == tag && !m->is_doomed &&
            (wants_send ? m->is_sent && !m->is_received : m->is_received && !m->is_sent))
            return m;
    return NULL;
}

static inline struct fake_message *
fake_message_add(struct fake_world *world, uint32_t src, uint32_t dst, uint64_t tag)
{
    struct fake_message **end = &world->messages;
    struct fake_message *m = calloc(1, sizeof(*m));

    CHECK_NOT_NULL(m);
    while (*end != NULL)
        end = &(*end)->next;
    *end = m;
    m->src = src;
    m->dst = dst;
    m->tag = tag;
    m->ticks = (unsigned)(fake_random(&world->random) % (FAKE_TICKS_MAX + 1));
    return m;
}

/* With the world locked. */
static inline void
fake_note_posted(rdt_group *group, char what)
{
    char *posted = group->world->posted[group->rank];
    const size_t len = strlen(posted);

    if (len < FAKE_POSTED_MAX)
        posted[len] = what;
}

uint32_t
rdt_group_is_told(rdt_group *group, uint32_t dst, uint64_t tag, uint64_t len_bytes)
{
    struct fake_world *world = group->world;

    CHECK(dst < world->size && dst != group->rank);
    (void)pthread_mutex_lock(&world->lock);
    const struct fake_message *m = fake_message_find(world, group->rank, dst, tag, false);
    const bool is_told = world->has_streams && m != NULL && m->recv_bytes == len_bytes;
    (void)pthread_mutex_unlock(&world->lock);
    return is_told ? 1 : 0;
}

rdt_status
rdt_group_send(rdt_group *group, uint32_t dst, uint64_t tag, const void *src, uint64_t len_bytes,
               const struct rdt_message_desc *desc, rdt_transfer **out, struct rdt_error *err)
{
    struct fake_world *world = group->world;
    rdt_status status = RDT_OK;

    CHECK(dst < world->size && dst != group->rank && desc != NULL);
    (void)pthread_mutex_lock(&world->lock);
    if (world->broken.status != RDT_OK) {
        status = fake_error(err, (rdt_status)world->broken.status, "%s", world->broken.message);
    } else if (fake_must_fail(world, FAKE_SEND)) {
        status = fake_error(err, RDT_EDEVICE, "injected: send");
    } else {
        struct fake_message *m = fake_message_find(world, group->rank, dst, tag, false);
        if (m == NULL)
            m = fake_message_add(world, group->rank, dst, tag);
        fake_note_posted(group, 's');
        world->sent_bytes[group->rank][dst] += len_bytes;
        if (len_bytes > 0 && (world->shortest_bytes == 0 || len_bytes < world->shortest_bytes))
            world->shortest_bytes = len_bytes;
        m->is_sent = true;
        m->from = src;
        m->send_bytes = len_bytes;
        m->send_desc = *desc;
        rdt_transfer *t = fake_transfer_new(world);
        if (fake_random(&world->random) % 2 == 0) {
            m->buffered = malloc(len_bytes + 1);
            CHECK_NOT_NULL(m->buffered);
            if (len_bytes > 0)
                memcpy(m->buffered, src, len_bytes);
            m->from = m->buffered;
            fake_transfer_end(t, RDT_OK, NULL);
        } else {
            m->send = t;
        }
        *out = t;
    }
    (void)pthread_mutex_unlock(&world->lock);
    return status;
}

rdt_status
rdt_group_recv(rdt_group *group, uint32_t src, uint64_t tag, void *dst, uint64_t cap_bytes,
               const struct rdt_message_desc *desc, rdt_transfer **out, struct rdt_error *err)
{
    struct fake_world *world = group->world;
    rdt_status status = RDT_OK;

    CHECK(src < world->size && src != group->rank && desc != NULL);
    (void)pthread_mutex_lock(&world->lock);
    if (world->broken.status != RDT_OK) {
        status = fake_error(err, (rdt_status)world->broken.status, "%s", world->broken.message);
    } else if (fake_must_fail(world, FAKE_RECV)) {
        status = fake_error(err, RDT_EDEVICE, "injected: recv");
    } else {
        struct fake_message *m = fake_message_find(world, src, group->rank, tag, true);
        if (m == NULL)
            m = fake_message_add(world, src, group->rank, tag);
        fake_note_posted(group, 'r');
        m->is_received = true;
        m->to = dst;
        m->recv_bytes = cap_bytes;
        m->recv_desc = *desc;
        m->recv = fake_transfer_new(world);
        *out = m->recv;
    }
    (void)pthread_mutex_unlock(&world->lock);
    return status;
}

static inline void
fake_message_lie(const struct fake_lie *lie, struct fake_message *m, uint64_t len_bytes)
{
    if (m->is_received && m->src == lie->src && m->tag == lie->tag && lie->off_bytes < len_bytes)
        ((uint8_t *)m->to)[lie->off_bytes] ^= lie->bits;
}

#define FAKE_CALL_WORDS "operation %u of %llu, dtype %u, reduction %u"

static inline rdt_status
fake_mismatch(const struct rdt_message_desc *theirs, const struct rdt_message_desc *ours,
              struct rdt_error *err)
{
    return fake_error(err, RDT_EMISMATCH,
                      "it calls " FAKE_CALL_WORDS ", root %u; we call " FAKE_CALL_WORDS ", root %u",
                      theirs->op, (unsigned long long)theirs->count, theirs->dtype,
                      theirs->reduce_op, theirs->root, ours->op, (unsigned long long)ours->count,
                      ours->dtype, ours->reduce_op, ours->root);
}

/* The end of a message that is doomed or has both sides. */
static inline void
fake_message_end(struct fake_world *world, struct fake_message *m)
{
    struct rdt_error err = world->broken;
    rdt_status status = m->is_doomed ? (rdt_status)world->broken.status : RDT_OK;
    const uint64_t len_bytes = m->send_bytes < m->recv_bytes ? m->send_bytes : m->recv_bytes;

    /* Bytes move also if it ends badly: until the end they may. */
    if (m->is_sent && m->is_received && len_bytes > 0)
        memcpy(m->to, m->from, len_bytes);
    fake_message_lie(&world->lie, m, len_bytes);
    if (!m->is_doomed && fake_must_fail(world, FAKE_DELIVERY))
        status = fake_error(&err, RDT_EPEER, "injected: delivery");
    if (m->send != NULL)
        fake_transfer_end(m->send, status, &err);
    if (status == RDT_OK && memcmp(&m->send_desc, &m->recv_desc, sizeof(m->send_desc)) != 0)
        status = fake_mismatch(&m->send_desc, &m->recv_desc, &err);
    if (m->recv != NULL) {
        m->recv->len_bytes = len_bytes;
        fake_transfer_end(m->recv, status, &err);
    }
    free(m->buffered);
    free(m);
}

static inline void
fake_world_tick(struct fake_world *world)
{
    (void)pthread_mutex_lock(&world->lock);
    for (struct fake_message **at = &world->messages; *at != NULL;) {
        struct fake_message *m = *at;
        if (!(m->is_doomed || (m->is_sent && m->is_received)) || m->ticks-- > 0) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        fake_message_end(world, m);
    }
    (void)pthread_mutex_unlock(&world->lock);
}

#endif
