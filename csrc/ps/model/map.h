/* SPDX-License-Identifier: Apache-2.0
 * Which server holds which rows of a table, and where. Ids are spread over virtual partitions by
 * their lower bits, so that the frequent ids of a skewed distribution, which are often neighbours,
 * lie in different partitions. Workers and servers compute the same map. */
#ifndef RDTI_PS_MODEL_MAP_H
#define RDTI_PS_MODEL_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor_ps.h"

enum {
    RDTI_PS_PARTITIONS = RDT_PS_PARTITIONS,
    RDTI_PS_PARTITION_BITS = 10,
    RDTI_PS_SERVERS_MAX = 1024
};

struct rdti_ps_map {
    uint32_t version;
    uint32_t servers;
    bool is_hashed; /* ids are keys, of which partitions are chosen by their hash */
    uint64_t rows;  /* 0 for keys */
    uint16_t owner[RDTI_PS_PARTITIONS]; /* the server */
    uint64_t base[RDTI_PS_PARTITIONS];  /* the partition's first row there */
};

/* A table of keys sets is_hashed then, and has 0 rows.
 * RDT_EINVAL: more servers than RDTI_PS_SERVERS_MAX, or none, or more than 2^48 rows. */
rdt_status rdti_ps_map_init(struct rdti_ps_map *map, uint32_t servers, uint64_t rows,
                            struct rdt_error *err);
/* Rows on one server. */
uint64_t rdti_ps_map_rows(const struct rdti_ps_map *map, uint32_t server);
/* The partition's rows. */
uint64_t rdti_ps_map_partition_rows(const struct rdti_ps_map *map, uint32_t partition);

/* The finalizer of splitmix64, a bijection: neighbouring keys get distant hashes. */
static inline uint64_t
rdti_ps_map_hash(uint64_t key)
{
    key = (key ^ key >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    key = (key ^ key >> 27) * UINT64_C(0x94d049bb133111eb);
    return key ^ key >> 31;
}

static inline uint32_t
rdti_ps_map_owner(const struct rdti_ps_map *map, uint64_t id)
{
    return map->owner[(map->is_hashed ? rdti_ps_map_hash(id) : id) % RDTI_PS_PARTITIONS];
}

/* Index of the id's row on its server; id < rows. */
static inline uint64_t
rdti_ps_map_local(const struct rdti_ps_map *map, uint64_t id)
{
    return map->base[id % RDTI_PS_PARTITIONS] + (id >> RDTI_PS_PARTITION_BITS);
}

#endif
