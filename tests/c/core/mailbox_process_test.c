/* SPDX-License-Identifier: Apache-2.0
 * Messages out of the private memory of a process, where its number is no longer the peer's. */
#include "core/prey_rig.h"

/* The peer was looked at and has ended since; its number is another's, who has memory there. */
TEST(memory_of_a_process_that_has_the_peers_number)
{
    static uint64_t others = 7; /* where the peer's canary was */
    static uint8_t foreign[ROOM_BYTES];
    struct prey prey;
    struct rdt_error err;
    uint8_t body[RDTI_RTS_BYTES];

    prey_make(&prey);
    const struct rdti_rts rts = {.has_process = 1,
                                 .pid = (uint32_t)getpid(),
                                 .addr = (uintptr_t)foreign,
                                 .canary_addr = (uintptr_t)&others,
                                 .canary = 0x1234};
    prey.m->process_reach = RDTI_REACH_YES;
    prey.m->peer_pid = rts.pid;
    prey.m->peer_canary_addr = rts.canary_addr;
    prey.m->peer_canary = rts.canary;
    rdti_rts_encode(&rts, body);
    struct rdti_message head = plain(&prey, RDTI_MESSAGE_RTS);
    head.tag = 1;
    head.len_bytes = ROOM_BYTES;
    IGNORED(&head, body, sizeof(body));
    CHECK_STATUS(rdt_transfer_test(prey.posted, &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "another process has this number");
    prey_free(&prey);
}

TEST_MAIN()
