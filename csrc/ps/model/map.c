/* SPDX-License-Identifier: Apache-2.0
 * Partitions and their servers. */
#include "ps/model/map.h"

#include "base/error.h"

#define ROWS_MAX (UINT64_C(1) << 48)

uint64_t
rdti_ps_map_partition_rows(const struct rdti_ps_map *map, uint32_t partition)
{
    if (partition >= map->rows)
        return 0;
    return (map->rows - partition + RDTI_PS_PARTITIONS - 1) / RDTI_PS_PARTITIONS;
}

rdt_status
rdti_ps_map_init(struct rdti_ps_map *map, uint32_t servers, uint64_t rows, struct rdt_error *err)
{
    uint64_t used[RDTI_PS_SERVERS_MAX] = {0};

    if (servers == 0 || servers > RDTI_PS_SERVERS_MAX)
        return rdti_error_set(err, RDT_EINVAL, 0, "%u servers: 1 to %d are possible", servers,
                              RDTI_PS_SERVERS_MAX);
    if (rows > ROWS_MAX)
        return rdti_error_set(err, RDT_EINVAL, 0, "%llu rows exceed 2^48",
                              (unsigned long long)rows);
    map->version = 1;
    map->servers = servers;
    map->rows = rows;
    for (uint32_t partition = 0; partition < RDTI_PS_PARTITIONS; partition++) {
        const uint32_t owner = partition % servers;
        map->owner[partition] = (uint16_t)owner;
        map->base[partition] = used[owner];
        used[owner] += rdti_ps_map_partition_rows(map, partition);
    }
    return RDT_OK;
}

uint64_t
rdti_ps_map_rows(const struct rdti_ps_map *map, uint32_t server)
{
    uint64_t rows = 0;

    for (uint32_t partition = 0; partition < RDTI_PS_PARTITIONS; partition++)
        if (map->owner[partition] == server)
            rows += rdti_ps_map_partition_rows(map, partition);
    return rows;
}
