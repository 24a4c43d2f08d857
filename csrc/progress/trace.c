/* SPDX-License-Identifier: Apache-2.0
 * The ring of transfers, and a histogram of durations for each name. */
#include "progress/trace.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/system/cpu.h"

struct entry {
    atomic_flag lock; /* held for a few instructions: a spin is shorter than any sleep */
    struct rdt_trace_event event;
};

#define NAMES_MAX 32

/* Updated by the thread that ends a transfer. relaxed: statistics. */
struct histogram {
    char name[sizeof(((struct rdt_trace_histogram *)0)->name)];
    _Atomic uint64_t count;
    _Atomic uint64_t sum_ns;
    _Atomic uint64_t sum_bytes;
    _Atomic uint64_t buckets[RDT_TRACE_BUCKETS];
};

struct rdti_trace {
    _Atomic uint64_t begun;
    atomic_flag names_lock;      /* held to add a name; release of name_count publishes it */
    _Atomic uint32_t name_count; /* at most NAMES_MAX, of which the last is "other" */
    struct histogram histograms[NAMES_MAX];
    uint32_t capacity;
    struct entry entries[];
};

static void
trace_entry_lock(struct entry *entry)
{
    /* acquire/release pair of the entry's event */
    while (atomic_flag_test_and_set_explicit(&entry->lock, memory_order_acquire))
        rdti_cpu_relax();
}

static void
trace_entry_unlock(struct entry *entry)
{
    atomic_flag_clear_explicit(&entry->lock, memory_order_release);
}

/* Wall-clock time, as in traces of other tools on this machine. */
static uint64_t
trace_wall_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail: the clock exists */
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

struct rdti_trace *
rdti_trace_create(uint32_t capacity)
{
    struct rdti_trace *trace = calloc(1, sizeof(*trace) + capacity * sizeof(trace->entries[0]));

    if (trace == NULL)
        return NULL;
    trace->capacity = capacity;
    atomic_flag_clear(&trace->names_lock);
    for (uint32_t i = 0; i < capacity; i++)
        atomic_flag_clear(&trace->entries[i].lock);
    return trace;
}

void
rdti_trace_destroy(struct rdti_trace *trace)
{
    free(trace);
}

uint64_t
rdti_trace_begin(struct rdti_trace *trace, const char *name, int32_t peer_rank, uint64_t len_bytes)
{
    /* relaxed: each caller gets its own number; the entry's lock orders the rest */
    const uint64_t sequence = atomic_fetch_add_explicit(&trace->begun, 1, memory_order_relaxed) + 1;
    struct entry *entry = &trace->entries[sequence % trace->capacity];

    trace_entry_lock(entry);
    if (entry->event.sequence < sequence) { /* else a whole round has overtaken this thread */
        entry->event = (struct rdt_trace_event){
            .struct_size = sizeof(entry->event),
            .status = RDT_EAGAIN,
            .sequence = sequence,
            .start_ns = trace_wall_ns(),
            .len_bytes = len_bytes,
            .peer_rank = peer_rank,
        };
        (void)snprintf(entry->event.name, sizeof(entry->event.name), "%s", name);
    }
    trace_entry_unlock(entry);
    return sequence;
}

static struct histogram *
trace_find_name(struct rdti_trace *trace, const char *name)
{
    const uint32_t count = atomic_load_explicit(&trace->name_count, memory_order_acquire);

    for (uint32_t i = 0; i < count; i++)
        if (strcmp(trace->histograms[i].name, name) == 0)
            return &trace->histograms[i];
    return count == NAMES_MAX ? &trace->histograms[NAMES_MAX - 1] : NULL;
}

/* A new name takes the next place; all names that find no place share the last one. */
static struct histogram *
trace_histogram_of(struct rdti_trace *trace, const char *name)
{
    struct histogram *found = trace_find_name(trace, name);

    if (found != NULL)
        return found;
    while (atomic_flag_test_and_set_explicit(&trace->names_lock, memory_order_acquire))
        rdti_cpu_relax();
    found = trace_find_name(trace, name); /* another thread may have added it */
    if (found == NULL) {
        const uint32_t count = atomic_load_explicit(&trace->name_count, memory_order_relaxed);
        found = &trace->histograms[count];
        (void)snprintf(found->name, sizeof(found->name), "%s",
                       count == NAMES_MAX - 1 ? "other" : name);
        atomic_store_explicit(&trace->name_count, count + 1, memory_order_release);
    }
    atomic_flag_clear_explicit(&trace->names_lock, memory_order_release);
    return found;
}

static void
trace_count_in(struct histogram *histogram, uint64_t took_ns, uint64_t len_bytes)
{
    uint32_t bucket = 0;

    while (bucket < RDT_TRACE_BUCKETS - 1 && took_ns > UINT64_C(1000) << bucket)
        bucket++;
    (void)atomic_fetch_add_explicit(&histogram->count, 1, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&histogram->sum_ns, took_ns, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&histogram->sum_bytes, len_bytes, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&histogram->buckets[bucket], 1, memory_order_relaxed);
}

void
rdti_trace_end(struct rdti_trace *trace, uint64_t sequence, rdt_status status, uint64_t len_bytes)
{
    struct entry *entry = &trace->entries[sequence % trace->capacity];

    struct rdt_trace_event ended = {0};

    trace_entry_lock(entry);
    if (entry->event.sequence == sequence) {
        /* The wall clock may have been set back meanwhile. */
        const uint64_t now_ns = trace_wall_ns();
        entry->event.end_ns = now_ns > entry->event.start_ns ? now_ns : entry->event.start_ns;
        entry->event.status = status;
        if (len_bytes > 0)
            entry->event.len_bytes = len_bytes;
        ended = entry->event;
    }
    trace_entry_unlock(entry);
    if (ended.sequence != 0)
        trace_count_in(trace_histogram_of(trace, ended.name), ended.end_ns - ended.start_ns,
                       ended.len_bytes);
}

rdt_status
rdti_trace_histogram(const struct rdti_trace *trace, uint32_t index,
                     struct rdt_trace_histogram *out)
{
    if (index >= atomic_load_explicit(&trace->name_count, memory_order_acquire))
        return RDT_ERANGE;
    const struct histogram *from = &trace->histograms[index];
    *out = (struct rdt_trace_histogram){
        .struct_size = sizeof(*out),
        .count = atomic_load_explicit(&from->count, memory_order_relaxed),
        .sum_ns = atomic_load_explicit(&from->sum_ns, memory_order_relaxed),
        .sum_bytes = atomic_load_explicit(&from->sum_bytes, memory_order_relaxed),
    };
    memcpy(out->name, from->name, sizeof(out->name));
    for (uint32_t i = 0; i < RDT_TRACE_BUCKETS; i++)
        out->buckets[i] = atomic_load_explicit(&from->buckets[i], memory_order_relaxed);
    return RDT_OK;
}

uint32_t
rdti_trace_read(struct rdti_trace *trace, uint64_t first, struct rdt_trace_event *events,
                uint32_t cap, uint64_t *next_out)
{
    const uint64_t begun = atomic_load_explicit(&trace->begun, memory_order_relaxed);
    uint64_t sequence = first > 0 ? first : 1;
    uint32_t count = 0;

    if (begun > trace->capacity && sequence <= begun - trace->capacity)
        sequence = begun - trace->capacity + 1;
    for (; sequence <= begun && count < cap; sequence++) {
        struct entry *entry = &trace->entries[sequence % trace->capacity];
        trace_entry_lock(entry);
        /* Skips an entry that is not yet filled or that a later transfer has taken. */
        if (entry->event.sequence == sequence)
            events[count++] = entry->event;
        trace_entry_unlock(entry);
    }
    *next_out = sequence;
    return count;
}
