/* SPDX-License-Identifier: Apache-2.0
 * Registering gigabytes takes seconds, during which nothing else may stall. A thread of the
 * transport registers and deregisters such memory, without holding a lock meanwhile.
 *
 * An entry that it has to work on is in one of two lists:
 *   ends: is_over (a region) -> deregistered and freed, then() is called
 *   jobs: wanted kinds       -> made, or failed with an error that the driver reports to waiters
 * Ends come first: a transfer may wait only for them, and a registration takes seconds. From
 * is_busy until the entry is in neither state only this thread may free it. A region that ends
 * while it is being registered leaves the table at once, and its bytes are given back after both.
 *
 * Waiters: ops of this side are not cut (tx.c), and are pushed when a result is announced; after a
 * failure for any purpose they are copied for a while. Requests of peers are wishes, which the
 * driver then answers. A lane that ends removes its wishes. Receives and sends that lent memory end
 * with then(), after the thread's current work. Only close() blocks a thread. */
#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "transport/verbs/memory/registrar.h"
#include "transport/verbs/memory/memory.h"

/* ---- The thread ----------------------------------------------------------------------------- */

/* mr_lock is not held. */
static void
registrar_announce(struct rdti_verbs *verbs)
{
    const uint64_t one = 1;

    /* release: pairs with rdti_verbs_take_news() in wish.c */
    atomic_store_explicit(&verbs->has_news, true, memory_order_release);
    (void)!write(verbs->host->event_fd, &one, sizeof(one)); /* EAGAIN: it is readable already */
}

/* mr_lock is held. */
static void
registrar_line_up(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory)
{
    rdti_list_remove(&memory->job);
    rdti_list_append(memory->is_over ? &verbs->ends : &verbs->jobs, &memory->job);
}

/* The same; released meanwhile. */
static void
registrar_make(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory)
{
    const uint32_t kind = (uint32_t)__builtin_ctz(memory->wanted);
    struct ibv_mr *mrs[RDTI_VERBS_PORTS_MAX] = {0};
    struct rdt_error why;
    rdt_status status;
    uint32_t nics;

    memory->is_busy = true;
    do { /* repeated if a device was removed meanwhile: the others do not need it */
        nics = rdti_verbs_nics_left(verbs);
        (void)pthread_mutex_unlock(&verbs->mr_lock);
        status = rdti_verbs_register_kind(verbs, memory, kind, nics, mrs, &why);
        (void)pthread_mutex_lock(&verbs->mr_lock);
    } while (status != RDT_OK && nics != rdti_verbs_nics_left(verbs));
    memory->is_busy = false;
    memory->wanted &= ~(1u << kind);
    if (status == RDT_OK) {
        memcpy(memory->mrs[kind], mrs, sizeof(mrs));
        memory->made |= 1u << kind;
    } else {
        memory->error = why;
        memory->failed |= 1u << kind;
    }
    if (memory->is_over || memory->wanted != 0)
        registrar_line_up(verbs, memory);
}

/* The same. */
static void
registrar_end(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory)
{
    void (*const then)(void *arg) = memory->then;
    void *const arg = memory->then_arg;

    (void)pthread_mutex_unlock(&verbs->mr_lock);
    rdti_verbs_free_memory(verbs, memory);
    then(arg);
    (void)pthread_mutex_lock(&verbs->mr_lock);
}

/* The same. NULL: it may leave. */
static struct rdti_verbs_memory *
registrar_take_work(struct rdti_verbs *verbs)
{
    for (;;) {
        struct rdti_list *node = rdti_list_take_first(&verbs->ends);
        if (node == NULL && !verbs->is_registrar_leaving) /* else no job has a waiter any more */
            node = rdti_list_take_first(&verbs->jobs);
        if (node != NULL)
            return RDTI_CONTAINER(node, struct rdti_verbs_memory, job);
        if (verbs->is_registrar_leaving)
            return NULL;
        (void)pthread_cond_wait(&verbs->job_cond, &verbs->mr_lock);
    }
}

static void *
registrar_main(void *arg)
{
    struct rdti_verbs *verbs = arg;
    struct rdti_verbs_memory *memory;

    (void)pthread_setname_np(pthread_self(), "rdmatensor-reg");
    (void)pthread_mutex_lock(&verbs->mr_lock);
    while ((memory = registrar_take_work(verbs)) != NULL) {
        if (memory->is_over)
            registrar_end(verbs, memory);
        else
            registrar_make(verbs, memory);
        (void)pthread_mutex_unlock(&verbs->mr_lock);
        registrar_announce(verbs);
        (void)pthread_mutex_lock(&verbs->mr_lock);
    }
    (void)pthread_mutex_unlock(&verbs->mr_lock);
    return NULL;
}

/* mr_lock is held. */
static rdt_status
registrar_start(struct rdti_verbs *verbs, struct rdt_error *err)
{
    sigset_t all;
    sigset_t before;

    if (verbs->has_registrar)
        return RDT_OK;
    /* Signals belong to the user's threads. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int code = pthread_create(&verbs->registrar, NULL, registrar_main, verbs);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0)
        return rdti_error_set(err, RDT_EDEVICE, code,
                              "pthread_create of the thread that registers large memory");
    verbs->has_registrar = true;
    return RDT_OK;
}

void
rdti_verbs_close_registrar(struct rdti_verbs *verbs)
{
    (void)pthread_mutex_lock(&verbs->mr_lock);
    const bool has_registrar = verbs->has_registrar;
    verbs->is_registrar_leaving = true;
    (void)pthread_cond_signal(&verbs->job_cond);
    (void)pthread_mutex_unlock(&verbs->mr_lock);
    if (has_registrar)
        (void)pthread_join(verbs->registrar, NULL);
}

/* ---- Jobs ----------------------------------------------------------------------------------- */

static void
registrar_add_job(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory)
{
    if (memory->is_busy) /* the thread queues it again after its current work */
        return;
    registrar_line_up(verbs, memory);
    (void)pthread_cond_signal(&verbs->job_cond);
}

rdt_status
rdti_verbs_register_later(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory, uint32_t kind,
                          struct rdt_error *err)
{
    const rdt_status status = registrar_start(verbs, err);

    if (status != RDT_OK)
        return status;
    memory->wanted |= 1u << kind;
    registrar_add_job(verbs, memory);
    return RDT_EAGAIN;
}

void
rdti_verbs_end_later(struct rdti_verbs *verbs, struct rdti_verbs_memory *memory,
                     void (*then)(void *arg), void *arg)
{
    assert(verbs->has_registrar); /* the thread registered it, or is registering it */
    rdti_list_remove(&memory->link);
    memory->is_over = true;
    memory->then = then;
    memory->then_arg = arg;
    registrar_add_job(verbs, memory);
}
