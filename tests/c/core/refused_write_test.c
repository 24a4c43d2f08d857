/* SPDX-License-Identifier: Apache-2.0
 * A lane refuses a write after it took it. What comes after it in the mailbox or in a slot would
 * be taken for it: the connection ends with the refusal, and nobody is called dead or wrong. */
#include "group_rig.h"

#define MESSAGE_BYTES 512 /* more than a head holds, and than goes inline */

/* Small writes from memory that no device knows need it registered, or a stage. */
static void
refuse_stage(void)
{
    sim_fail_named("reg_mr", 0, 2, ENOMEM);
}

/* How a receive, or a wait, ends here: by the peer's word, which names what it lacks. */
static void
check_told(rdt_status status, const struct rdt_error *err)
{
    CHECK_STATUS(status, RDT_EPEER);
    CHECK_INT_EQ(err->peer_rank, 0);
    CHECK_MSG(strstr(err->message, "died") == NULL, "%s", err->message);
    CHECK_STR_CONTAINS(err->message, "rank 0 closed the connection");
}

TEST_TIMEOUT(no_message_takes_the_place_of_a_refused_one, 60)
{
    uint8_t sent[2][MESSAGE_BYTES];
    uint8_t got[2][MESSAGE_BYTES];
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_transfer *receives[2];
    struct rig rig;

    rig_open(&rig, 2, RDT_TRANSPORT_VERBS);
    for (uint32_t i = 0; i < 2; i++)
        (void)rig_ready(rig.group[i], 1 - i);
    for (uint32_t i = 0; i < 2; i++) {
        rig_fill(sent[i], MESSAGE_BYTES, i);
        receives[i] = rig_recv(&rig, 1, 0, i, got[i], MESSAGE_BYTES);
    }
    refuse_stage();
    for (uint32_t i = 0; i < 2; i++) {
        rdt_transfer *t = NULL;
        if (rdt_group_send(rig.group[0], 1, i, sent[i], MESSAGE_BYTES, NULL, &t, &err) == RDT_OK)
            (void)rig_end(t, &err); /* buffered; or the connection has ended */
    }
    for (uint32_t i = 0; i < 2; i++)
        check_told(rig_end(receives[i], &err), &err);
    CHECK_STR_EQ(sim_failed_call(), "reg_mr");
    rig_close(&rig);
}

TEST_TIMEOUT(no_tensor_of_a_slot_takes_the_place_of_a_refused_one, 60)
{
    static const struct rdt_tensor_desc desc = {.struct_size = sizeof(desc),
                                                .kind = RDT_SLOT_STATIC,
                                                .dtype = RDT_U8,
                                                .ndim = 1,
                                                .dims = {MESSAGE_BYTES}};
    uint8_t tensor[MESSAGE_BYTES] = {7};
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    struct rdt_slot_view view;
    rdt_endpoint *ep[2];
    rdt_slot_tx *tx = NULL;
    rdt_slot *slot = NULL;
    struct rig rig;

    rig_open(&rig, 2, RDT_TRANSPORT_VERBS);
    for (uint32_t i = 0; i < 2; i++)
        ep[i] = rig_ready(rig.group[i], 1 - i);
    CHECK_OK(rdt_slot_create(ep[1], "t", &desc, &slot, &err), &err);
    CHECK_OK(rdt_slot_tx_open(ep[0], "t", &desc, rig_patience_ns(), &tx, &err), &err);
    refuse_stage();
    for (uint32_t i = 0; i < 2; i++) {
        rdt_transfer *t = NULL;
        rdt_status status = rdt_slot_tx_put(tx, tensor, NULL, rig_patience_ns(), &t, &err);
        if (status == RDT_OK)
            status = rig_end(t, &err);
        CHECK_STATUS(status, RDT_ENOMEM);
    }
    check_told(rdt_slot_get(slot, rig_patience_ns(), &view, &err), &err);
    CHECK_STR_EQ(sim_failed_call(), "reg_mr");
    rdt_slot_tx_destroy(tx);
    rdt_slot_destroy(slot);
    rig_close(&rig);
}

TEST_MAIN()
