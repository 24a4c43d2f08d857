/* SPDX-License-Identifier: Apache-2.0
 * Memory that devices know: how much of it, whose, and for what. On the sim. */
#include "../harness.h"

#include "base/error.h"
#include "transport/verbs/lane.h"
#include "transport/verbs/memory/memory.h"
#include "verbs_rig.h"

/* ---- Memlock -------------------------------------------------------------------------------- */

TEST(too_little_lockable_memory_comes_with_its_cure)
{
    const struct sim_config config = sim_default();
    struct rdt_error err;

    verbs_limit_memlock(65536);
    CHECK_INT_EQ(rdti_verbs_check_memlock(1 << 20, &err), RDT_ENOMEM);
    CHECK_STR_CONTAINS(err.message, "docker: --ulimit memlock=-1 --cap-add IPC_LOCK");
    CHECK_STR_CONTAINS(err.message, "LimitMEMLOCK=infinity");
    CHECK_STR_CONTAINS(err.message, "limits.conf");
    CHECK_INT_EQ(verbs_try_open(&config, &err), RDT_ENOMEM);
}

/* Enough to open, too little for what is to be reached: said by both sides, with the cure. */
TEST(too_little_lockable_memory_for_a_target_is_said_where_it_is_written)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op op;

    verbs_limit_memlock(8 << 20);
    config.memlock_bytes = 8 << 20;
    verbs_pair_open(&p, &config);
    verbs_write_and_check(&p, 1000, false);
    struct fake_region *region = fake_region(&p.b, 16 << 20);
    fake_write(&op, "12345678", 8, &region->remote, 0, 1);
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_ENOMEM);
    CHECK_STR_CONTAINS(op.error.message, "rank 1 cannot register the 16781312 bytes");
    CHECK_STR_CONTAINS(op.error.message, "RLIMIT_MEMLOCK is 8388608");
    CHECK_STR_CONTAINS(op.error.message, "docker: --ulimit memlock=-1 --cap-add IPC_LOCK");
    CHECK_STR_CONTAINS(op.error.message, "limits.conf");
    verbs_write_and_check(&p, 1000, false); /* the lane stands */
    verbs_pair_close(&p);
}

TEST(a_source_that_cannot_be_registered_is_copied_and_said)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    char text[1024];
    struct fake_op op;

    verbs_limit_memlock(8 << 20);
    config.memlock_bytes = 8 << 20;
    verbs_pair_open(&p, &config);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK(strstr(text, "sends copied") == NULL);
    struct fake_region *region = fake_region(&p.b, 1 << 20);
    uint8_t *src = fake_region(&p.a, 16 << 20)->addr;
    verbs_pattern(src, 1 << 20, 4);
    for (int i = 0; i < 3; i++) {
        fake_write(&op, src, 1 << 20, &region->remote, 0, 1);
        fake_must_start(&p.ab, &op);
        VERBS_PUMP(&p, fake_op_is_done(&op));
        CHECK_INT_EQ(op.status, RDT_OK);
    }
    CHECK_MEM_EQ(region->addr, src, 1 << 20);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "3 sends copied: 16781312 bytes cannot be locked");
    CHECK_STR_CONTAINS(text, "RLIMIT_MEMLOCK is 8388608");
    verbs_pair_close(&p);
}

/* ---- max_mr_size ---------------------------------------------------------------------------- */

/* A piece of the arena is registered as a whole or not at all: it is not split, the reason names
 * the setting that makes pieces smaller, and the lane stands. */
TEST(memory_longer_than_a_device_registers_is_refused_with_its_cure)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    char text[1024];
    struct fake_op op;

    config.max_mr_bytes = 8 << 20;
    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, 4096);
    const uint8_t *src = fake_region(&p.a, 16 << 20)->addr; /* a source: copied */
    fake_write(&op, src, 4096, &region->remote, 0, 1);
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_OK);
    CHECK_MEM_EQ(region->addr, src, 4096);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "1 sends copied: sim0 registers at most 8388608 bytes at a time, not "
                             "16781312: set a smaller arena_chunk_bytes");
    region = fake_region(&p.b, 16 << 20); /* a target: an error that names the peer */
    fake_write(&op, "12345678", 8, &region->remote, 0, 1);
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_EDEVICE);
    CHECK_STR_CONTAINS(op.error.message, "rank 1 cannot register the 16781312 bytes");
    verbs_write_and_check(&p, 1000, false); /* the lane stands */
    verbs_pair_close(&p);
}

/* ---- Keys ----------------------------------------------------------------------------------- */

static void
check_grant(struct verbs_pair *p, uint32_t segment, const struct rdt_remote_region *region,
            uint32_t generation, rdt_status want)
{
    const struct rdti_verbs_words get = {.kind = RDTI_VERBS_KEY_GET,
                                         .access = RDTI_VERBS_MAY_WRITE,
                                         .segment = segment,
                                         .index = region->index,
                                         .generation = generation};
    struct rdti_verbs_words key;
    struct rdt_error err;
    const rdt_status status = rdti_verbs_grant(p->b.state, &get, &key, &err);

    CHECK_MSG(status == want, "%s, not %s", rdt_status_name(status), rdt_status_name(want));
    if (want == RDT_ESTALE)
        CHECK_INT_EQ(key.refusal, RDTI_VERBS_REGION_OVER);
}

/* A key is for a region that was exported, in the piece where it lies. */
TEST(keys_are_given_for_exported_regions_only)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;

    verbs_pair_open(&p, &config);
    const uint32_t private_piece = fake_segment(&p.b, 1 << 20); /* nothing in it is exported */
    struct fake_region *region = fake_region(&p.b, 4096);
    struct fake_region *other = fake_region_in(&p.b, region->remote.segment, 0, 64);
    const uint32_t generation = region->remote.generation;
    check_grant(&p, private_piece, &region->remote, generation, RDT_EPROTO);
    check_grant(&p, 60, &region->remote, generation, RDT_EPROTO);
    check_grant(&p, region->remote.segment, &region->remote, generation + 1, RDT_ESTALE);
    check_grant(&p, region->remote.segment, &region->remote, generation, RDT_OK);
    fake_region_revoke(&p.b, region);
    check_grant(&p, region->remote.segment, &region->remote, generation, RDT_ESTALE);
    check_grant(&p, region->remote.segment, &other->remote, other->remote.generation, RDT_OK);
    verbs_pair_close(&p);
}

/* The refusal of a region that is over is not one of its piece. */
TEST(a_piece_is_asked_for_again_behind_a_refusal)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op ops[2];
    struct rdt_error err;

    verbs_pair_open(&p, &config);
    struct fake_region *over = fake_region(&p.b, 4096);
    struct fake_region *next = fake_region_in(&p.b, over->remote.segment, 64, 64);
    fake_region_revoke(&p.b, over);
    fake_write(&ops[0], "12345678", 8, &over->remote, 0, 1);
    fake_write(&ops[1], "abcdefgh", 8, &next->remote, 0, 2);
    for (int i = 0; i < 2; i++)
        CHECK_OK(fake_start(&p.ab, &ops[i], &err), &err);
    VERBS_PUMP(&p, fake_op_is_done(&ops[1]));
    CHECK_INT_EQ(ops[0].status, RDT_ESTALE);
    CHECK_INT_EQ(ops[1].status, RDT_OK);
    CHECK_MEM_EQ(next->addr, "abcdefgh", 8);
    verbs_pair_close(&p);
}

/* Two peers may describe one region differently; what is registered is what the owner has. */
TEST(the_length_of_a_region_is_its_owners)
{
    const struct sim_config config = sim_default();
    static uint8_t memory[8192];
    struct verbs_pair p;
    struct fake_op op;

    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region_private(&p.b, memory, sizeof(memory));
    struct rdt_remote_region shorter = region->remote;
    shorter.len_bytes = 100;
    fake_write(&op, "12345678", 8, &shorter, 0, 1);
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_OK);
    fake_write(&op, "abcdefgh", 8, &region->remote, sizeof(memory) - 8, 2);
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_OK);
    CHECK_MEM_EQ(memory + sizeof(memory) - 8, "abcdefgh", 8);
    verbs_pair_close(&p);
}

/* ---- Ranges that are forged ----------------------------------------------------------------- */

static void
check_forged(struct verbs_pair *p, const struct rdt_remote_region *forged, bool is_read)
{
    uint8_t local[8] = "12345678";
    struct rdt_error err;
    struct fake_op op;

    if (is_read)
        fake_read(&op, local, sizeof(local), forged, 0);
    else
        fake_write(&op, local, sizeof(local), forged, 0, 1);
    rdt_status status = fake_start(&p->ab, &op, &err);
    if (status == RDT_OK) {
        VERBS_PUMP(p, fake_op_is_done(&op));
        status = op.status;
    }
    CHECK_MSG(status == RDT_ERANGE, "%s: %s", rdt_status_name(status), op.error.message);
    CHECK_MEM_EQ(local, "12345678", sizeof(local));
    CHECK_UINT_EQ(p->ba.notify_count, 1);
}

/* Whoever has a description may write another into it: past the end of the piece, before its begin,
 * and where nothing is. Before the key is here, and after it. */
TEST(a_forged_range_reaches_nothing)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op op;

    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, 4096);
    struct fake_region *other = fake_region(&p.b, 4096); /* of a piece of its own */
    verbs_pattern(other->addr, 4096, 4);
    fake_write(&op, "abcdefgh", 8, &region->remote, 0, 1);
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op) && p.ba.notify_count == 1);
    for (int is_read = 0; is_read < 2; is_read++) {
        struct rdt_remote_region forged = region->remote;

        forged.len_bytes = UINT64_C(1) << 40; /* longer than its piece */
        check_forged(&p, &forged, is_read == 1);
        forged = region->remote;
        forged.segment_off = UINT64_C(1) << 40; /* behind its piece */
        check_forged(&p, &forged, is_read == 1);
        forged.segment_off = UINT64_MAX - 7; /* before it */
        check_forged(&p, &forged, is_read == 1);
        /* From its own piece to where another lies. */
        forged.segment_off =
            region->remote.segment_off + (uintptr_t)other->addr - (uintptr_t)region->addr;
        check_forged(&p, &forged, is_read == 1);
    }
    for (uint32_t i = 0; i < 4096; i++)
        CHECK_INT_EQ(region->addr[i], i < 8 ? 'a' + (int)i : 0);
    uint8_t want[4096];
    verbs_pattern(want, sizeof(want), 4);
    CHECK_MEM_EQ(other->addr, want, sizeof(want));
    verbs_write_and_check(&p, 100, false); /* the lane stands */
    verbs_pair_close(&p);
}

/* Use a key for what it was not given for, as a peer that lies would: the device refuses, whatever
 * the peer's library does. */
static void
check_key_refuses(uint8_t access, enum ibv_wr_opcode opcode)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;

    verbs_pair_open(&p, &config);
    verbs_write_and_check(&p, 100, false);
    const struct rdt_remote_region *target = &fake_region(&p.b, 4096)->remote;
    struct rdti_verbs_words get = {.kind = RDTI_VERBS_KEY_GET,
                                   .access = RDTI_VERBS_MAY_WRITE,
                                   .segment = target->segment,
                                   .index = target->index,
                                   .generation = target->generation};
    struct rdti_verbs_words keys[3] = {0}; /* by access */
    struct rdt_error err;
    for (get.access = RDTI_VERBS_MAY_WRITE; get.access <= RDTI_VERBS_MAY_READ; get.access++)
        CHECK_OK(rdti_verbs_grant(p.b.state, &get, &keys[get.access], &err), &err);
    CHECK(keys[RDTI_VERBS_MAY_WRITE].rkeys[0] != keys[RDTI_VERBS_MAY_READ].rkeys[0]);
    struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)p.ab.lane;
    struct fake_region *mine = fake_region(&p.a, 100);
    struct ibv_sge sge = {.addr = (uintptr_t)mine->addr, .length = 100};
    CHECK_INT_EQ(rdti_verbs_own_key(p.a.state, mine->addr, 100, 0, &sge.lkey), RDT_OK);
    struct ibv_send_wr wr = {.opcode = opcode,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr_id = rdti_verbs_wr_id(RDTI_VERBS_WR_TX, 0, 0)};
    struct ibv_send_wr *bad;
    wr.wr.rdma.remote_addr = keys[access].base;
    wr.wr.rdma.rkey = keys[access].rkeys[0];
    CHECK_INT_EQ(lane->verbs->ops->post_send(lane->qps[0]->qp, &wr, &bad), 0);
    VERBS_PUMP(&p, p.ab.error_count == 1);
    CHECK_INT_EQ(p.ab.error.wc_status, IBV_WC_REM_ACCESS_ERR);
    verbs_pair_close(&p);
}

TEST(a_key_for_writing_cannot_read)
{
    check_key_refuses(RDTI_VERBS_MAY_WRITE, IBV_WR_RDMA_READ);
}

TEST(a_key_for_reading_cannot_write)
{
    check_key_refuses(RDTI_VERBS_MAY_READ, IBV_WR_RDMA_WRITE);
}

TEST_MAIN()
