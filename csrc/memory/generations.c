/* SPDX-License-Identifier: Apache-2.0
 * The table of generations. */
#include "memory/generations.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory/memfd.h"
#include "memory/region.h"

#define TABLE_BYTES (((uint64_t)RDTI_REGION_INDEX_MAX + 1) * sizeof(uint32_t))
#define GENERATIONS_STEP_BYTES ((uint64_t)RDTI_GENERATIONS_STEP * sizeof(uint32_t))

rdt_status
rdti_generations_open(int *fd_out, _Atomic uint32_t **table_out, struct rdt_error *err)
{
    int fd = -1;
    void *table = NULL;
    rdt_status status = rdti_memfd_create("rdmatensor-generations", TABLE_BYTES, 0, &fd, err);

    if (status != RDT_OK)
        return status;
    status = rdti_memfd_map(fd, "the table of generations", TABLE_BYTES, PROT_READ | PROT_WRITE,
                            &table, err);
    if (status != RDT_OK)
        goto err_close;
    const int sys_errno = rdti_generations_populate(fd, table, 0);

    if (sys_errno != 0) {
        status = rdti_error_set(err, RDT_ENOMEM, sys_errno, "populating the table of generations");
        goto err_unmap;
    }
    /* A forked child does not use it, and must not be able to corrupt it. */
    if (madvise(table, TABLE_BYTES, MADV_DONTFORK) != 0) {
        status = rdti_error_set(err, RDT_EDEVICE, errno, "madvise(MADV_DONTFORK)");
        goto err_unmap;
    }
    status = rdti_memfd_seal(fd, true, err);
    if (status != RDT_OK)
        goto err_unmap;
    *fd_out = fd;
    *table_out = table;
    return RDT_OK;

err_unmap:
    (void)munmap(table, TABLE_BYTES);
err_close:
    (void)close(fd);
    return status;
}

int
rdti_generations_populate(int fd, _Atomic uint32_t *table, uint32_t index)
{
    const uint64_t off = (uint64_t)index * sizeof(uint32_t);

    return rdti_memfd_populate(fd, off, (char *)(void *)table + off, GENERATIONS_STEP_BYTES);
}

void
rdti_generations_close(int fd, _Atomic uint32_t *table)
{
    (void)munmap((void *)table, TABLE_BYTES);
    (void)close(fd);
}
