/* SPDX-License-Identifier: Apache-2.0
 * Send and receive between members, over each transport, on real contexts. */
#include "core/group_rig.h"

/* Zero, inlined, around the edges of units, of the small ring, of eager and rendezvous. */
static const uint64_t sizes[] = {0,     1,      8,       9,       63,     64,    65,
                                 960,   961,    1024,    4096,    16384,  16385, 65472,
                                 65473, 262144, 1048576, 1048577, 3000001};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define LARGEST_BYTES 3000001

static void
exchange_every_size(uint32_t transport, bool is_receive_first, bool is_in_arena)
{
    struct rig rig;
    struct rdt_error err = {0};
    rdt_region *region[2] = {NULL, NULL};
    uint8_t *src = malloc(LARGEST_BYTES);
    uint8_t *dst = malloc(LARGEST_BYTES);

    rig_open(&rig, 2, transport);
    if (is_in_arena) {
        for (int i = 0; i < 2; i++)
            CHECK_OK(rdt_region_alloc(rig.ctx[i], LARGEST_BYTES, 0, &region[i], &err), &err);
        free(src);
        free(dst);
        src = rdt_region_addr(region[0]);
        dst = rdt_region_addr(region[1]);
    }
    for (size_t i = 0; i < SIZES; i++) {
        rdt_transfer *recv = NULL;
        rdt_transfer *send;
        rig_fill(src, sizes[i], i + 1);
        memset(dst, 0xa5, sizes[i]);
        if (is_receive_first)
            recv = rig_recv(&rig, 1, 0, 7, dst, LARGEST_BYTES);
        send = rig_send(&rig, 0, 1, 7, src, sizes[i]);
        if (!is_receive_first)
            recv = rig_recv(&rig, 1, 0, 7, dst, sizes[i]);
        CHECK_OK(rdt_transfer_wait(recv, 10 * RIG_SECOND, &err), &err);
        CHECK_UINT_EQ(rdt_transfer_len_bytes(recv), sizes[i]);
        CHECK_INT_EQ(rdt_transfer_source(recv), 0);
        rdt_transfer_free(recv);
        CHECK_OK(rig_end(send, &err), &err);
        CHECK_MEM_EQ(dst, src, sizes[i]);
    }
    if (is_in_arena) {
        rdt_region_free(region[0], NULL, NULL);
        rdt_region_free(region[1], NULL, NULL);
    } else {
        free(src);
        free(dst);
    }
    rig_close(&rig);
}

TEST(every_size_over_shm_receive_first)
{
    exchange_every_size(RDT_TRANSPORT_SHM, true, false);
}

TEST(every_size_over_shm_send_first)
{
    exchange_every_size(RDT_TRANSPORT_SHM, false, false);
}

TEST(every_size_over_shm_in_the_arena)
{
    exchange_every_size(RDT_TRANSPORT_SHM, true, true);
}

TEST(every_size_over_tcp_receive_first)
{
    exchange_every_size(RDT_TRANSPORT_TCP, true, false);
}

TEST(every_size_over_tcp_send_first)
{
    exchange_every_size(RDT_TRANSPORT_TCP, false, false);
}

TEST(every_size_over_tcp_in_the_arena)
{
    exchange_every_size(RDT_TRANSPORT_TCP, true, true);
}

TEST_MAIN()
