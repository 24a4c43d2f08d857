/* SPDX-License-Identifier: Apache-2.0
 * The bodies of regions and their table, shared by region.c and region_export.c only. */
#ifndef RDTI_MEMORY_REGION_IMPL_H
#define RDTI_MEMORY_REGION_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/error.h"
#include "base/list.h"
#include "memory/interval_tree.h"
#include "memory/region.h"

enum rdti_region_state { RDTI_REGION_PRIVATE, RDTI_REGION_EXPORTED, RDTI_REGION_QUARANTINE };

/* The table's lock guards the fields from `state` on; the others are immutable. */
struct rdt_region {
    struct rdti_regions *regions;
    void *addr;
    uint64_t len_bytes;
    bool is_in_arena; /* else registered: memory of the caller */
    uint32_t segment; /* RDT_SEGMENT_NONE for registered memory */
    uint64_t segment_off;
    bool is_lent;          /* never in `live` */
    struct rdti_span span; /* in `live`, until it is freed */
    struct rdti_list link; /* in `quarantine` */
    enum rdti_region_state state;
    uint32_t index;         /* 0 while PRIVATE */
    uint32_t generation;    /* of its export */
    uint64_t exported_as;   /* its number among all exports */
    uint32_t pins;          /* targets in use */
    uint32_t pending_count; /* peers that have not acknowledged */
    bool is_revoking;       /* on_revoke() runs and may still raise pending_count */
    void (*drained)(void *arg);
    void *drained_arg;
    struct rdti_deferred deferred;
};

struct rdti_region_entry {
    rdt_region *region;  /* EXPORTED or in QUARANTINE; NULL: the index is free */
    uint32_t generation; /* private copy, which no peer can write */
    uint32_t next_free;  /* 0: the last */
};

struct rdti_regions {
    struct rdti_arena *arena;
    struct rdti_engine *engine; /* NULL: no caller holds an engine's lock */
    uint8_t uuid[RDT_UUID_BYTES];
    void (*on_revoke)(void *arg, uint32_t index, uint32_t generation);
    void *revoke_arg;
    rdti_region_gone_fn on_gone; /* NULL: not set */
    void *gone_arg;
    _Atomic uint32_t ending_count; /* out of the table, and not freed yet */
    int fd;                        /* of the table of generations */
    _Atomic uint32_t *table;       /* mapped; entries below next_index are in memory */
    pthread_mutex_t lock;          /* guards all below; never held during calls to other modules */
    struct rdti_span_tree live;
    struct rdti_list quarantine;
    struct rdti_region_entry *entries;
    uint32_t entry_cap;
    uint32_t next_index; /* one more than the highest index ever used */
    uint64_t export_count;
    uint32_t first_free; /* oldest first, so that generations last longest */
    uint32_t last_free;
    struct rdti_region_stats stats;
};

/* Locked. Only transitions of the table of states in region.h. */
void rdti_region_become(rdt_region *region, enum rdti_region_state state);

static inline rdt_status
rdti_regions_forked(const char *call, struct rdt_error *err)
{
    return rdti_error_set(err, RDT_EFORKED, 0,
                          "%s: this is a forked child; memory of its parent's arena may be read "
                          "here, and nothing else: spawn the process instead",
                          call);
}

#endif
