/* SPDX-License-Identifier: Apache-2.0
 * Large messages into memory whose pages are not there: they come by a call for many, however the
 * receiver gets the bytes on one host. */
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/group_rig.h"
#include "message/mailbox_impl.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum {
    LARGE_BYTES = 24 << 20, /* more than a slice of what is read where it is mapped */
    SMALL_BYTES = 8 << 20,
    DST_OFF_BYTES = 64, /* as torch's tensors lie in their pages */
};

static _Atomic(uint8_t *) dst_pages; /* progress threads ask for other memory meanwhile */
static atomic_ullong asked_bytes;    /* within them */

/* In place of the C library's, which makes the same call. */
int
madvise(void *addr, size_t len, int advice)
{
    const uint8_t *first = addr;
    const uint8_t *pages = dst_pages;

    if (advice == MADV_POPULATE_WRITE && pages != NULL && first >= pages &&
        first < pages + LARGE_BYTES)
        atomic_fetch_add(&asked_bytes, len);
    return (int)syscall(SYS_madvise, addr, len, advice);
}

static void
map_new(void)
{
    dst_pages =
        mmap(NULL, LARGE_BYTES + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(dst_pages != MAP_FAILED);
    (void)madvise(dst_pages, LARGE_BYTES, MADV_NOHUGEPAGE); /* where there are any */
    atomic_store(&asked_bytes, 0);
}

/* How many bytes the receiver of one message asks for. */
static uint64_t
asked_for(struct rig *rig, const uint8_t *src, uint64_t len_bytes)
{
    struct rdt_error err = {0};

    map_new();
    rdt_transfer *send = rig_send(rig, 0, 1, 7, src, len_bytes);
    rdt_transfer *recv = rig_recv(rig, 1, 0, 7, dst_pages + DST_OFF_BYTES, len_bytes);
    CHECK_OK(rig_end(recv, &err), &err);
    CHECK_OK(rig_end(send, &err), &err);
    CHECK_MEM_EQ(dst_pages + DST_OFF_BYTES, src, len_bytes);
    (void)munmap(dst_pages, LARGE_BYTES + 4096);
    return atomic_load(&asked_bytes);
}

/* Pages that two pieces share come with the first, and a last piece may be short: a twentieth. */
static void
check_asks(struct rig *rig, uint8_t *src)
{
    rig_fill(src, LARGE_BYTES, 3);
    CHECK_UINT_EQ(asked_for(rig, src, SMALL_BYTES), 0);
    CHECK_UINT_LE(LARGE_BYTES / 20 * 19, asked_for(rig, src, LARGE_BYTES));
}

TEST(pages_come_by_calls_where_the_kernel_reads_the_sender)
{
    struct rig rig;
    uint8_t *src = malloc(LARGE_BYTES);

    CHECK_NOT_NULL(src);
    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    check_asks(&rig, src);
    rig_close(&rig);
    free(src);
}

TEST(pages_come_by_calls_where_the_source_is_mapped)
{
    struct rig rig;
    struct rdt_error err = {0};
    rdt_region *region = NULL;

    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    CHECK_OK(rdt_region_alloc(rig.ctx[0], LARGE_BYTES, 0, &region, &err), &err);
    check_asks(&rig, rdt_region_addr(region));
    rdt_region_free(region, NULL, NULL);
    rig_close(&rig);
}

TEST(pages_come_by_calls_where_all_goes_through_a_buffer)
{
    struct rig rig;
    uint8_t *src = malloc(LARGE_BYTES);

    CHECK_NOT_NULL(src);
    rig_open(&rig, 2, RDT_TRANSPORT_SHM);
    rdti_mailbox_of(rig_ready(rig.group[1], 0))->process_reach = RDTI_REACH_NO;
    check_asks(&rig, src);
    rig_close(&rig);
    free(src);
}

TEST_MAIN()
