/* SPDX-License-Identifier: Apache-2.0
 * A member that says it is another: refused where it can be told, before anything is sent to it. */
#include "core/prey_rig.h"

static void
check_claims(struct prey *prey_at, enum rdti_message_kind kind)
{
    struct prey prey = *prey_at;
    rdt_group *group = prey.rig.group[0];
    struct rdti_message head = plain(&prey, kind);

    head.source = 2;
    REFUSED(&head, NULL, 0, "as member 2 of group 'world', which is another process");
    CHECK(group->scope.members[2].ep == NULL);
    head.source = 0;
    REFUSED(&head, NULL, 0, "cannot be it");
    head.source = 3;
    REFUSED(&head, NULL, 0, "cannot be it");
    head.source = UINT16_MAX;
    REFUSED(&head, NULL, 0, "cannot be it");
    /* Known by its address, whatever its rank. */
    group->scope.members[2].has_uuid = true;
    memset(group->scope.members[2].uuid, 0xab, RDT_UUID_BYTES);
    head.source = 2;
    REFUSED(&head, NULL, 0, "which is another process");
    CHECK(group->scope.members[2].ep == NULL);
    group->scope.members[2].has_uuid = false;
    head.source = 1;
    IGNORED(&head, NULL, 0);
}

TEST(a_member_that_says_it_is_another_is_refused)
{
    struct prey prey;

    prey_make_of(&prey, 3, RDT_TRANSPORT_SHM);
    check_claims(&prey, RDTI_MESSAGE_CREDIT);
    check_claims(&prey, RDTI_MESSAGE_EAGER);
    prey_free(&prey);
}

/* It may have another number there: who it is nobody can tell. */
TEST(ranks_of_another_job_are_not_compared)
{
    struct prey prey;
    char other[] = "another job";

    prey_make_of(&prey, 3, RDT_TRANSPORT_SHM);
    rdt_group *group = prey.rig.group[0];
    char *own = group->job_id;
    struct rdti_message head = plain(&prey, RDTI_MESSAGE_CREDIT);
    head.source = 2;
    group->job_id = other;
    IGNORED(&head, NULL, 0);
    group->job_id = own;
    CHECK(group->scope.members[2].ep == prey.m->ep);
    prey_free(&prey);
}

TEST(a_member_of_a_group_that_comes_later_is_refused_then)
{
    struct rig rig;
    struct rdt_error err = {0};

    rig_open(&rig, 3, RDT_TRANSPORT_SHM);
    rdt_endpoint *ep = rig_ready(rig.group[0], 1);
    rdt_group *there = rig_group(&rig, 1, "late");
    rdti_engine_enter(rig.ctx[0]->engine);
    CHECK_OK(rdti_group_on_interest(rdti_mailbox_of(ep), there->scope.id, 2, &err), &err);
    rdti_engine_leave(rig.ctx[0]->engine);
    rdt_group *late = rig_group(&rig, 0, "late");
    CHECK(!rig_holds(late, 2));
    rdti_engine_enter(rig.ctx[0]->engine);
    CHECK_STATUS(rdti_endpoint_error(ep, &err), RDT_EPROTO);
    rdti_engine_leave(rig.ctx[0]->engine);
    CHECK_STR_CONTAINS(err.message, "as member 2 of group 'late', which is another process");
    rdt_group_destroy(late);
    rdt_group_destroy(there);
    rig_close(&rig);
}

TEST_MAIN()
