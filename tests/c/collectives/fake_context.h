/* SPDX-License-Identifier: Apache-2.0
 * Contexts of a fake world: what they are set to, and tasks that they drive. For fake_group.h. */
#ifndef RDT_TESTS_COLLECTIVES_FAKE_CONTEXT_H
#define RDT_TESTS_COLLECTIVES_FAKE_CONTEXT_H

#include <sched.h>

#include "base/clock.h"
#include "collectives/fake_messages.h"
#include "harness.h"
#include "rdmatensor_ext.h"

uint32_t
rdt_context_verifies(const rdt_context *ctx)
{
    (void)ctx;
    return RDT_VERIFY_OFF;
}

uint32_t
rdt_context_linger(rdt_context *ctx, uint64_t since_ns, uint32_t look)
{
    const struct fake_world *world = ctx->world;

    (void)look;
    if (world->yield_ns > 0)
        (void)sched_yield(); /* cannot fail on Linux */
    return rdti_now_ns() - since_ns < world->spin_ns + world->yield_ns;
}

void
rdt_context_attend(rdt_context *ctx)
{
    (void)pthread_mutex_lock(&ctx->lock);
    ctx->attending++;
    (void)pthread_mutex_unlock(&ctx->lock);
}

void
rdt_context_unattend(rdt_context *ctx)
{
    (void)pthread_mutex_lock(&ctx->lock);
    CHECK_MSG(ctx->attending > 0, "not attended");
    ctx->attending--;
    (void)pthread_mutex_unlock(&ctx->lock);
}

/* ---- Tasks ---- */

void
rdt_context_count(rdt_context *ctx, const struct rdt_counters *more)
{
    (void)pthread_mutex_lock(&ctx->lock);
    ctx->counted.writes += more->writes;
    ctx->counted.moved_bytes += more->moved_bytes;
    ctx->counted.copied_bytes += more->copied_bytes;
    ctx->counted.control_messages += more->control_messages;
    ctx->counted.credits_alone += more->credits_alone;
    (void)pthread_mutex_unlock(&ctx->lock);
}

rdt_status
rdt_context_add_task(rdt_context *ctx, rdt_task_fn step, void *arg, struct rdt_error *err)
{
    (void)pthread_mutex_lock(&ctx->world->lock);
    const bool fails = fake_must_fail(ctx->world, FAKE_TASK);
    (void)pthread_mutex_unlock(&ctx->world->lock);
    if (fails)
        return fake_error(err, RDT_ENOMEM, "injected: task");
    (void)pthread_mutex_lock(&ctx->lock);
    CHECK(ctx->task_count < FAKE_TASKS_MAX);
    ctx->tasks[ctx->task_count].step = step;
    ctx->tasks[ctx->task_count++].arg = arg;
    (void)pthread_mutex_unlock(&ctx->lock);
    return RDT_OK;
}

/* One pass of the engine; nothing if another thread drives. */
static inline void
fake_drive(rdt_context *ctx)
{
    if (pthread_mutex_trylock(&ctx->engine) != 0)
        return;
    fake_world_tick(ctx->world);
    (void)pthread_mutex_lock(&ctx->lock);
    for (unsigned i = 0; i < ctx->task_count;) {
        const rdt_task_fn step = ctx->tasks[i].step;
        void *arg = ctx->tasks[i].arg;
        (void)pthread_mutex_unlock(&ctx->lock);
        const rdt_status status = step(arg);
        (void)pthread_mutex_lock(&ctx->lock);
        if (status == RDT_EAGAIN)
            i++;
        else
            ctx->tasks[i] = ctx->tasks[--ctx->task_count];
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    (void)pthread_mutex_unlock(&ctx->engine);
}

rdt_status
rdt_context_progress(rdt_context *ctx)
{
    fake_drive(ctx);
    return RDT_OK;
}

static inline unsigned
fake_task_count(rdt_context *ctx)
{
    (void)pthread_mutex_lock(&ctx->lock);
    const unsigned count = ctx->task_count;
    (void)pthread_mutex_unlock(&ctx->lock);
    return count;
}

#endif
