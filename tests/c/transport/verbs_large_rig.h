/* SPDX-License-Identifier: Apache-2.0
 * Memory that takes long to register, on the sim, which holds such registrations back: for tests of
 * one pair of lanes. */
#ifndef RDTI_TESTS_VERBS_LARGE_RIG_H
#define RDTI_TESTS_VERBS_LARGE_RIG_H

#include <sys/mman.h>

#include "../harness.h"
#include "transport/verbs/lane.h"
#include "verbs_rig.h"

#define LARGE_BYTES (RDTI_VERBS_REGISTER_NOW_BYTES + (UINT64_C(1) << 20))

/* Not of the arena, and touched nowhere but at its ends. */
static inline uint8_t *
map_large(void)
{
    uint8_t *at = mmap(NULL, LARGE_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    CHECK(at != MAP_FAILED);
    return at;
}

static inline void
unmap_large(uint8_t *at)
{
    CHECK_INT_EQ(munmap(at, LARGE_BYTES), 0);
}

static inline void
pump_a_little(struct verbs_pair *p)
{
    for (int i = 0; i < 200; i++) {
        (void)fake_pump(&p->a);
        (void)fake_pump(&p->b);
    }
}

/* b registers `region` for a's write, and is held back. */
static inline void
hold_target(struct verbs_pair *p, struct fake_region *region, struct fake_op *op)
{
    sim_hold_mrs(LARGE_BYTES);
    fake_write(op, "12345678", 8, &region->remote, region->remote.len_bytes - 8, 7);
    fake_must_start(&p->ab, op);
    VERBS_PUMP(p, sim_held_mrs() == 1);
}

/* From b, whose registration is held, to a, and from a over another lane. */
static inline void
check_others_move(struct verbs_pair *p)
{
    struct fake_region *target = fake_region(&p->a, 4096);
    struct fake_link ab2;
    struct fake_link ba2;
    struct fake_op op;

    for (int i = 0; i < 10; i++) {
        fake_write(&op, "abcdefgh", 8, &target->remote, 0, 1);
        fake_must_start(&p->ba, &op);
        VERBS_PUMP(p, fake_op_is_done(&op));
        CHECK_INT_EQ(op.status, RDT_OK);
    }
    fake_connect(&p->a, &ab2, &p->b, &ba2, NULL);
    struct fake_region *other = fake_region(&p->b, 100000);
    fake_read(&op, fake_region(&p->a, 100000)->addr, 100000, &other->remote, 0);
    fake_must_start(&ab2, &op);
    VERBS_PUMP(p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_OK);
    fake_disconnect(&ab2, &ba2);
}

#endif
