/* SPDX-License-Identifier: Apache-2.0
 * What a server answers to each wrong request: an error that says what is wrong, after which it is
 * as it was. No endpoint is attached: requests are put into the inbox, and answers read where they
 * would be sent from. */
#include "harness.h"

#include "ps/server/server_impl.h"
#include "wire/bytes.h"

enum { WORKERS = 2, SLOTS = 4, SLOT_BYTES = 1024, ROWS = 3000, DIM = 2, CHUNKS = 3 };

static rdt_context *ctx;
static rdt_ps_server *server;
static uint64_t sequences[WORKERS];

static void
open_replica(uint32_t mode, uint32_t is_backup)
{
    const struct rdt_context_opts context = {.struct_size = sizeof(context), .loopback_only = 1};
    const struct rdt_ps_server_opts opts = {.struct_size = sizeof(opts),
                                            .mode = mode,
                                            .servers = 2,
                                            .workers = WORKERS,
                                            .slots = SLOTS,
                                            .slot_bytes = SLOT_BYTES,
                                            .goes_on = 1,
                                            .is_backup = is_backup,
                                            .staged_max_bytes = 256};
    const struct rdt_ps_table_opts table = {.struct_size = sizeof(table),
                                            .dim = DIM,
                                            .rows = ROWS,
                                            .rule = {.struct_size = sizeof(table.rule),
                                                     .kind = RDT_PS_ADD}};
    struct rdt_remote_region rows;
    struct rdt_error err = {0};
    uint32_t id;

    CHECK_OK(rdt_context_open(&context, &ctx, &err), &err);
    CHECK_OK(rdt_ps_server_create(ctx, &opts, &server, &err), &err);
    CHECK_OK(rdt_ps_server_add_table(server, &table, &id, &rows, &err), &err);
    CHECK_OK(rdt_ps_server_add_queue(server, CHUNKS, &id, &err), &err);
}

static void
open_server(uint32_t mode)
{
    open_replica(mode, 0);
}

static void
close_server(void)
{
    struct rdt_error err = {0};

    rdt_ps_server_destroy(server);
    CHECK_OK(rdt_context_close(ctx, &err), &err);
}

/* Has the server carry out a request in a slot; whether it was answered, and how. */
static bool
ask(uint32_t worker, uint32_t slot, struct rdti_ps_request head, const void *payload,
    struct rdti_ps_answer *answer, char text[RDTI_PS_TEXT_BYTES])
{
    struct rdti_ps_client *client = &server->clients[worker];
    uint8_t *at =
        (uint8_t *)rdt_region_addr(client->inbox) + slot * rdti_ps_slot_stride(SLOT_BYTES);
    const uint8_t *said = (const uint8_t *)rdt_region_addr(client->answers) + RDTI_PS_TEXT_BYTES +
                          slot * rdti_ps_slot_stride(SLOT_BYTES);

    if (head.sequence == 0)
        head.sequence = ++sequences[worker];
    rdti_ps_request_encode(&head, at);
    if (head.payload_bytes > 0)
        memcpy(at + RDTI_PS_HEAD_BYTES, payload, head.payload_bytes);
    (void)pthread_mutex_lock(&server->lock);
    client->slots[slot].is_busy = true;
    rdti_ps_request_handle(server, worker, slot);
    const bool is_answered = !client->slots[slot].is_busy;
    (void)pthread_mutex_unlock(&server->lock);
    if (is_answered) {
        CHECK_STATUS(rdti_ps_answer_decode(said, RDTI_PS_HEAD_BYTES, SLOT_BYTES, answer, NULL),
                     RDT_OK);
        CHECK_UINT_EQ(answer->sequence, head.sequence);
        rdti_ps_answer_text(said + RDTI_PS_HEAD_BYTES, answer->payload_bytes, text);
    }
    return is_answered;
}

static void
refused(struct rdti_ps_request head, const void *payload, rdt_status status, const char *words)
{
    const struct rdt_ps_server_counters before = server->counters;
    struct rdti_ps_answer answer = {0};
    char text[RDTI_PS_TEXT_BYTES] = "";

    CHECK(ask(0, 0, head, payload, &answer, text));
    CHECK_MSG(answer.status == (int32_t)status, "%d: %s", answer.status, text);
    CHECK_STR_CONTAINS(text, words);
    CHECK_UINT_EQ(server->counters.refused, before.refused + 1);
    CHECK_UINT_EQ(server->counters.staged_bytes, before.staged_bytes);
    CHECK_UINT_EQ(server->counters.applied_rows, before.applied_rows);
    CHECK_UINT_EQ(server->counters.ticks, before.ticks);
}

static const struct rdti_ps_request pull = {.op = RDTI_PS_OP_PULL,
                                            .map_version = 1,
                                            .count = 1,
                                            .payload_bytes = 8};
static const struct rdti_ps_request push = {.op = RDTI_PS_OP_PUSH,
                                            .map_version = 1,
                                            .count = 1,
                                            .payload_bytes = 16};
static const struct rdti_ps_request tick = {
    .op = RDTI_PS_OP_TICK, .count = 1, .payload_bytes = 4, .clock = 1, .lr_scale = 1.0};

/* An id, its row of ones, and room for more. */
static const uint8_t *
row_of(uint64_t id)
{
    static uint8_t bytes[SLOT_BYTES];

    rdti_put_u64(bytes, id);
    for (uint32_t i = 0; i < DIM; i++)
        rdti_put_u32(bytes + 8 + 4 * i, 0x3f800000);
    return bytes;
}

TEST(requests_for_rows_that_are_wrong_are_refused)
{
    struct rdti_ps_request head;

    open_server(RDT_PS_ASYNC);
    for (int is_push = 0; is_push < 2; is_push++) {
        const struct rdti_ps_request right = is_push ? push : pull;
        head = right;
        head.table = 1;
        refused(head, row_of(0), RDT_EINVAL, "table 1 does not exist");
        head.table = UINT32_MAX;
        refused(head, row_of(0), RDT_EINVAL, "does not exist");
        head = right;
        head.map_version = 2;
        refused(head, row_of(0), RDT_ESTALE,
                "the map of table 0 has version 1, and the worker has version 2");
        refused(right, row_of(ROWS), RDT_EINVAL, "id 3000 is not from 0 to 2999");
        refused(right, row_of(UINT64_MAX), RDT_EINVAL, "is not from 0 to 2999");
        refused(right, row_of(1), RDT_EINVAL, "on server 1, not on server 0");
    }
    head = push;
    head.payload_bytes = 20;
    refused(head, row_of(0), RDT_EPROTO, "a request for 1 rows has 20 B, not 16 B");
    head = pull;
    head.count = SLOT_BYTES / 8;
    head.payload_bytes = SLOT_BYTES;
    CHECK(head.count * DIM * sizeof(float) <= SLOT_BYTES); /* each answer fits this dim */
    head = push;
    head.count = 20;
    head.payload_bytes = 20 * 16;
    refused(head, row_of(0), RDT_ENOMEM, "call clock() after each step");
    close_server();
}

TEST(ticks_and_leases_that_are_wrong_are_refused)
{
    struct rdti_ps_request head = tick;
    uint8_t table[4] = {1};

    open_server(RDT_PS_ASYNC);
    refused(tick, table, RDT_EINVAL, "names table 1");
    table[3] = 0x80;
    refused(tick, table, RDT_EINVAL, "names table 2147483649");
    memset(table, 0, sizeof(table));
    head.clock = 2;
    refused(head, table, RDT_EPROTO, "worker 0 ticked to 2 after 0");
    head.clock = 1;
    head.queue = 2;
    refused(head, table, RDT_EINVAL, "chunk 0 of queue 2 does not exist");
    head.queue = 1;
    head.chunk = CHUNKS;
    refused(head, table, RDT_EINVAL, "chunk 3 of queue 1 does not exist");
    head = tick;
    head.payload_bytes = 4 + 2; /* more members than there are workers */
    refused(head, (uint8_t[8]){0}, RDT_EPROTO, "has 6 B, not 5 B");
    refused((struct rdti_ps_request){.op = RDTI_PS_OP_LEASE, .queue = 2}, NULL, RDT_EINVAL,
            "queue 2 does not exist");
    close_server();
}

TEST(what_comes_before_an_answer_is_refused)
{
    const uint8_t table[4] = {0};
    struct rdti_ps_answer answer;
    char text[RDTI_PS_TEXT_BYTES];

    open_server(RDT_PS_SYNC);
    CHECK(!ask(0, 1, tick, table, &answer, text)); /* it waits for worker 1 */
    refused(push, row_of(0), RDT_EBUSY, "a push before the last tick was answered");
    refused(tick, table, RDT_EBUSY, "a tick before the last one was answered");
    refused((struct rdti_ps_request){.op = RDTI_PS_OP_LEASE, .queue = 1}, NULL, RDT_EBUSY,
            "a lease before the last tick was answered");
    CHECK(ask(0, 2, (struct rdti_ps_request){.op = RDTI_PS_OP_HOLDERS}, NULL, &answer, text));
    CHECK_STR_EQ(text, "worker 1 has not ended step 1 by clock()");
    CHECK(ask(1, 0, tick, table, &answer, text));
    CHECK_INT_EQ(answer.status, RDT_OK);
    CHECK(ask(0, 2, (struct rdti_ps_request){.op = RDTI_PS_OP_HOLDERS}, NULL, &answer, text));
    CHECK_STR_EQ(text, "");
    CHECK(ask(0, 0, (struct rdti_ps_request){.op = RDTI_PS_OP_LEAVE}, NULL, &answer, text));
    CHECK_INT_EQ(answer.status, RDT_OK);
    refused(pull, row_of(0), RDT_EPROTO, "worker 0 has left");
    close_server();
}

TEST(a_push_counts_once_and_a_refused_one_voids_its_step)
{
    struct rdti_ps_request again = push;
    struct rdti_ps_request next = tick;
    const uint8_t table[4] = {0};
    struct rdti_ps_answer answer;
    char text[RDTI_PS_TEXT_BYTES];
    float rows[DIM];

    open_server(RDT_PS_ASYNC);
    CHECK(ask(0, 0, push, row_of(4), &answer, text));
    again.sequence = sequences[0]; /* a replay */
    CHECK(ask(0, 0, again, row_of(4), &answer, text));
    CHECK_UINT_EQ(server->counters.replays, 1);
    CHECK(ask(0, 0, tick, table, &answer, text));
    CHECK(ask(0, 0, push, row_of(4), &answer, text));
    refused(push, row_of(ROWS), RDT_EINVAL, "id 3000");
    next.clock = 2;
    CHECK(ask(0, 0, next, table, &answer, text)); /* without either push */
    CHECK(ask(0, 0, pull, row_of(4), &answer, text));
    CHECK_UINT_EQ(answer.payload_bytes, sizeof(rows));
    memcpy(rows,
           (const uint8_t *)rdt_region_addr(server->clients[0].answers) + RDTI_PS_TEXT_BYTES +
               RDTI_PS_HEAD_BYTES,
           sizeof(rows));
    CHECK(rows[0] == 1.0f && rows[1] == 1.0f);
    CHECK_UINT_EQ(server->counters.staged_bytes, 0);
    close_server();
}

TEST(a_backup_is_read_after_a_switch_by_the_new_map)
{
    const struct rdti_ps_request lease = {.op = RDTI_PS_OP_LEASE, .queue = 1};
    const struct rdti_ps_request to_backup = {.op = RDTI_PS_OP_SWITCH};
    struct rdti_ps_request head;
    struct rdti_ps_answer answer;
    char text[RDTI_PS_TEXT_BYTES];

    open_replica(RDT_PS_ASYNC, 1);
    refused(pull, row_of(0), RDT_ESTALE,
            "this is the backup of server 0, and worker 0 has not switched to it");
    refused(lease, NULL, RDT_ESTALE, "worker 0 has not switched to it");
    CHECK(ask(0, 0, push, row_of(0), &answer, text));
    CHECK_INT_EQ(answer.status, RDT_OK);
    CHECK(ask(0, 0, to_backup, NULL, &answer, text));
    CHECK_INT_EQ(answer.status, RDT_OK);
    CHECK_UINT_EQ(server->counters.switches, 1);
    for (int is_push = 0; is_push < 2; is_push++) {
        head = is_push ? push : pull;
        refused(head, row_of(0), RDT_ESTALE,
                "the map of table 0 has version 2, and the worker has version 1");
        head.map_version = 2;
        CHECK(ask(0, 0, head, row_of(0), &answer, text));
        CHECK_INT_EQ(answer.status, RDT_OK);
    }
    CHECK(ask(1, 0, push, row_of(0), &answer, text)); /* worker 1 has not switched yet */
    CHECK_INT_EQ(answer.status, RDT_OK);
    close_server();
    open_server(RDT_PS_ASYNC);
    refused(to_backup, NULL, RDT_EPROTO, "server 0 is not a backup");
    close_server();
}

TEST(a_dense_model_has_no_rule_of_the_program)
{
    const struct rdt_ps_dense_opts opts = {.struct_size = sizeof(opts),
                                           .count = 4,
                                           .rule = {.struct_size = sizeof(opts.rule),
                                                    .kind = RDT_PS_CUSTOM}};
    struct rdt_error err = {0};
    uint32_t id;

    open_server(RDT_PS_ASYNC);
    CHECK_STATUS(rdt_ps_server_add_dense(server, &opts, &id, &err), RDT_EINVAL);
    CHECK_STR_CONTAINS(err.message, "which is for rows");
    close_server();
}

TEST(a_replica_takes_what_the_other_one_has_leased)
{
    struct rdti_ps_request take = {.op = RDTI_PS_OP_TAKE, .queue = 1, .chunk = CHUNKS};
    struct rdti_ps_request lease = {.op = RDTI_PS_OP_LEASE, .queue = 1};
    struct rdti_ps_answer answer;
    struct rdti_ps_lease leased;
    char text[RDTI_PS_TEXT_BYTES];

    open_replica(RDT_PS_ASYNC, 1);
    refused(take, NULL, RDT_EINVAL, "chunk 3 of queue 1 does not exist");
    take.queue = 2;
    refused(take, NULL, RDT_EINVAL, "queue 2 does not exist");
    take.queue = 1;
    take.chunk = 1;
    CHECK(ask(0, 0, take, NULL, &answer, text));
    CHECK_INT_EQ(answer.status, RDT_OK);
    CHECK(ask(1, 0, (struct rdti_ps_request){.op = RDTI_PS_OP_SWITCH}, NULL, &answer, text));
    for (uint64_t chunk = 0; chunk < CHUNKS; chunk += 2) { /* all but the one that was taken */
        CHECK(ask(1, 0, lease, NULL, &answer, text));
        CHECK_INT_EQ(rdti_ps_lease_decode((const uint8_t *)rdt_region_addr(
                                              server->clients[1].answers) +
                                              RDTI_PS_TEXT_BYTES + RDTI_PS_HEAD_BYTES,
                                          answer.payload_bytes, &leased, NULL),
                     RDT_OK);
        CHECK_UINT_EQ(leased.chunk, chunk);
    }
    CHECK(!ask(1, 0, lease, NULL, &answer, text)); /* it waits for worker 0's */
    close_server();
}

TEST(bytes_that_are_no_request_end_the_worker)
{
    struct rdti_ps_client *client;

    open_server(RDT_PS_ASYNC);
    client = &server->clients[1];
    memset(rdt_region_addr(client->inbox), 0xa5, RDTI_PS_HEAD_BYTES);
    (void)pthread_mutex_lock(&server->lock);
    client->slots[0].is_busy = true;
    rdti_ps_request_handle(server, 1, 0);
    CHECK(client->is_over);
    CHECK_STR_CONTAINS(client->end.message, "request: it does not begin as one of rdmatensor");
    CHECK_STR_CONTAINS((const char *)rdt_region_addr(client->answers), "does not begin");
    (void)pthread_mutex_unlock(&server->lock);
    close_server();
}

TEST_MAIN()
