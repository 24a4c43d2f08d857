/* SPDX-License-Identifier: Apache-2.0
 * A server of a parameter server whose workers write any bytes into their slots. The first byte
 * says the mode, and whether the others go on without a worker; what follows are records:
 *
 *   kind u8: worker in bit 0, slot in bits 1 and 2, what in the rest | length u16 | the bytes
 *
 * After each record every slot in use waits for something, the count of staged bytes is right, and
 * memory next to the server's regions is as it was. */
#include "fuzz.h"

#include "ps/server/server_impl.h"
#include "wire/bytes.h"
#include "wire/codecs.h"

enum { WORKERS = 2, SLOTS = 4, SLOT_BYTES = 1024, RECORD_HEAD_BYTES = 3 };
enum { ROWS = 50, DIM = 3, CHUNKS = 5, GUARDS = 4, GUARD_BYTES = 4096, GUARD = 0x5a };
enum { WHAT_REQUEST = 0, WHAT_END, WHAT_PROGRAM, WHAT_COUNT };

static rdt_context *ctx;
static rdt_ps_server *server;
static rdt_region *guards[GUARDS];

static void
add_guard(uint32_t number)
{
    struct rdt_error err = {0};

    CHECK_OK(rdt_region_alloc(ctx, GUARD_BYTES, 0, &guards[number], &err), &err);
    memset(rdt_region_addr(guards[number]), GUARD, GUARD_BYTES);
}

static void
check_guards(void)
{
    for (uint32_t i = 0; i < GUARDS; i++) {
        const uint8_t *at = rdt_region_addr(guards[i]);
        for (uint32_t k = 0; k < GUARD_BYTES; k++)
            CHECK_MSG(at[k] == GUARD, "guard %u, byte %u", i, k);
    }
}

static void
add_table(uint32_t rule)
{
    const struct rdt_ps_table_opts opts = {.struct_size = sizeof(opts),
                                           .dim = DIM,
                                           .rows = ROWS,
                                           .rule = {.struct_size = sizeof(struct rdt_ps_rule),
                                                    .kind = rule,
                                                    .lr = 0.1,
                                                    .beta1 = 0.9,
                                                    .beta2 = 0.999,
                                                    .eps = 1e-8}};
    struct rdt_remote_region rows;
    struct rdt_error err = {0};
    uint32_t id;

    CHECK_OK(rdt_ps_server_add_table(server, &opts, &id, &rows, &err), &err);
}

static void
open_server(uint8_t how)
{
    const struct rdt_ps_server_opts opts = {.struct_size = sizeof(opts),
                                            .mode = RDT_PS_SYNC + how % 3,
                                            .staleness = how / 3 % 2,
                                            .servers = 1,
                                            .workers = WORKERS,
                                            .slots = SLOTS,
                                            .slot_bytes = SLOT_BYTES,
                                            .goes_on = how >> 7,
                                            .is_backup = how / 6 % 2,
                                            .staged_max_bytes = 16384};
    const struct rdt_ps_dense_opts dense = {.struct_size = sizeof(dense),
                                            .count = 7,
                                            .rule = {.struct_size = sizeof(dense.rule),
                                                     .kind = RDT_PS_SGD,
                                                     .lr = 0.1}};
    struct rdt_error err = {0};
    uint32_t id;

    add_guard(0);
    CHECK_OK(rdt_ps_server_create(ctx, &opts, &server, &err), &err);
    add_guard(1);
    add_table(RDT_PS_SGD);
    add_guard(2);
    add_table(RDT_PS_LAZY_ADAM);
    CHECK_OK(rdt_ps_server_add_dense(server, &dense, &id, &err), &err);
    CHECK_OK(rdt_ps_server_add_queue(server, CHUNKS, &id, &err), &err);
    add_guard(3);
}

/* Every slot in use is a call, a tick or a lease, and each of these is in a slot in use. */
static void
check_slots(void)
{
    for (uint32_t worker = 0; worker < WORKERS; worker++) {
        const struct rdti_ps_client *client = &server->clients[worker];
        uint32_t waits = client->is_over || client->has_left ? UINT32_MAX : 0;
        for (uint32_t i = 0; i < server->calls_count; i++) {
            const struct rdti_ps_arrival *call =
                &server->calls[(server->calls_first + i) % server->arrivals_room];
            if (call->worker == worker)
                waits |= 1u << call->slot;
        }
        if (client->has_tick)
            waits |= 1u << client->tick_slot;
        if (client->has_lease_request)
            waits |= 1u << client->lease_slot;
        for (uint32_t slot = 0; slot < SLOTS; slot++)
            CHECK_MSG(!client->slots[slot].is_busy || client->slots[slot].is_taken ||
                          (waits >> slot & 1) != 0 || server->failure.status != RDT_OK,
                      "worker %u, slot %u: neither answered nor waiting", worker, slot);
    }
}

static void
check_server(void)
{
    uint64_t staged = 0;

    for (uint32_t worker = 0; worker < WORKERS; worker++)
        staged += server->clients[worker].stage.used_bytes;
    CHECK_UINT_EQ(server->counters.staged_bytes, staged);
    check_slots();
    check_guards();
}

/* As the task of the engine would: a slot that is in use is refused. */
static void
request(uint32_t worker, uint32_t slot, const uint8_t *bytes, size_t len_bytes)
{
    struct rdti_ps_client *client = &server->clients[worker];
    uint8_t *at =
        (uint8_t *)rdt_region_addr(client->inbox) + slot * rdti_ps_slot_stride(SLOT_BYTES);

    if (client->is_over || client->slots[slot].is_busy)
        return;
    memcpy(at, bytes,
           len_bytes < RDTI_PS_HEAD_BYTES + SLOT_BYTES ? len_bytes
                                                       : RDTI_PS_HEAD_BYTES + SLOT_BYTES);
    client->slots[slot].is_busy = true;
    rdti_ps_request_handle(server, worker, slot);
}

static void
end_worker(uint32_t worker)
{
    struct rdti_ps_client *client = &server->clients[worker];

    if (client->is_over)
        return;
    client->is_over = true;
    rdti_ps_request_end(server, worker);
}

/* The program takes a call, and answers it. */
static void
answer_call(void)
{
    uint8_t buffer[SLOT_BYTES];
    struct rdt_ps_call call;

    if (rdt_ps_server_take(server, RDT_NO_WAIT, buffer, sizeof(buffer), &call, NULL) != RDT_OK)
        return;
    CHECK(call.len_bytes <= SLOT_BYTES);
    (void)rdt_ps_server_answer(server, &call, RDT_OK, buffer, call.len_bytes, NULL);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    open_server(data[0]);
    data++;
    size--;
    while (size >= RECORD_HEAD_BYTES) {
        const uint32_t worker = data[0] & 1;
        const uint32_t slot = data[0] >> 1 & 3;
        const uint32_t what = data[0] >> 3;
        const size_t wanted = rdti_get_u16(data + 1);
        const size_t len_bytes =
            wanted < size - RECORD_HEAD_BYTES ? wanted : size - RECORD_HEAD_BYTES;
        if (what % WHAT_COUNT == WHAT_PROGRAM)
            answer_call();
        (void)pthread_mutex_lock(&server->lock);
        if (what % WHAT_COUNT == WHAT_REQUEST)
            request(worker, slot, data + RECORD_HEAD_BYTES, len_bytes);
        else if (what % WHAT_COUNT == WHAT_END)
            end_worker(worker);
        check_server();
        (void)pthread_mutex_unlock(&server->lock);
        data += RECORD_HEAD_BYTES + len_bytes;
        size -= RECORD_HEAD_BYTES + len_bytes;
    }
    rdt_ps_server_destroy(server);
    for (uint32_t i = 0; i < GUARDS; i++)
        rdt_region_free(guards[i], NULL, NULL);
    return 0;
}

/* ---- Seeds --------------------------------------------------------------------------------- */

struct script {
    uint8_t bytes[4096];
    size_t len_bytes;
    uint64_t sequences[WORKERS];
};

static void
say(struct script *s, uint32_t worker, uint32_t slot, struct rdti_ps_request head,
    const void *payload)
{
    uint8_t *at = s->bytes + s->len_bytes;

    head.sequence = ++s->sequences[worker];
    at[0] = (uint8_t)(worker | slot << 1);
    rdti_put_u16(at + 1, (uint16_t)(RDTI_PS_HEAD_BYTES + head.payload_bytes));
    rdti_ps_request_encode(&head, at + RECORD_HEAD_BYTES);
    if (head.payload_bytes > 0)
        memcpy(at + RECORD_HEAD_BYTES + RDTI_PS_HEAD_BYTES, payload, head.payload_bytes);
    s->len_bytes += RECORD_HEAD_BYTES + RDTI_PS_HEAD_BYTES + head.payload_bytes;
}

/* A step of a worker: a push, a pull and a tick. */
static void
say_step(struct script *s, uint32_t worker, uint64_t clock, uint64_t chunk)
{
    uint8_t rows[2 * (8 + DIM * 4)] = {0};
    uint8_t tables[8] = {0};

    rdti_put_u64(rows, worker + clock);
    rdti_put_u64(rows + 8, 3);
    rdti_put_u32(rows + 16, 0x3f800000);
    rdti_put_u32(tables, (uint32_t)clock % 2);
    rdti_put_u32(tables + 4, RDTI_PS_IS_DENSE);
    say(s, worker, 0,
        (struct rdti_ps_request){.op = RDTI_PS_OP_PUSH,
                                 .flags = RDTI_PS_FLAG_UNIQUE,
                                 .table = (uint32_t)clock % 2,
                                 .map_version = 1,
                                 .count = 2,
                                 .payload_bytes = sizeof(rows)},
        rows);
    say(s, worker, 1,
        (struct rdti_ps_request){
            .op = RDTI_PS_OP_PULL, .map_version = 1, .count = 2, .payload_bytes = 16},
        rows);
    say(s, worker, 2,
        (struct rdti_ps_request){.op = RDTI_PS_OP_TICK,
                                 .count = 2,
                                 .payload_bytes = 8,
                                 .clock = clock,
                                 .lr_scale = 1.0,
                                 .queue = chunk > 0 ? 1 : 0,
                                 .chunk = chunk},
        tables);
}

static void
write_seeds(const char *dir)
{
    for (unsigned how = 0; how < 12; how++) {
        struct script *s = calloc(1, sizeof(*s));
        CHECK_NOT_NULL(s);
        s->bytes[0] = (uint8_t)(how | (how & 1) << 7);
        s->len_bytes = 1;
        for (uint32_t worker = 0; worker < WORKERS; worker++)
            say(s, worker, 3, (struct rdti_ps_request){.op = RDTI_PS_OP_LEASE, .queue = 1}, NULL);
        for (uint64_t clock = 1; clock <= 2; clock++)
            for (uint32_t worker = 0; worker < WORKERS; worker++)
                say_step(s, worker, clock, worker);
        say(s, 0, 0, (struct rdti_ps_request){.op = RDTI_PS_OP_CALL, .payload_bytes = 2}, "{}");
        s->bytes[s->len_bytes] = WHAT_PROGRAM << 3;
        s->len_bytes += RECORD_HEAD_BYTES;
        say(s, 0, 1, (struct rdti_ps_request){.op = RDTI_PS_OP_VALUES}, NULL);
        say(s, 1, 1, (struct rdti_ps_request){.op = RDTI_PS_OP_TAKE, .queue = 1, .chunk = 1}, NULL);
        say(s, 1, 1, (struct rdti_ps_request){.op = RDTI_PS_OP_SWITCH}, NULL);
        say(s, 0, 2, (struct rdti_ps_request){.op = RDTI_PS_OP_LEAVE}, NULL);
        s->bytes[s->len_bytes] = 1 | WHAT_END << 3;
        s->len_bytes += RECORD_HEAD_BYTES;
        fuzz_write_seed(dir, how, s->bytes, s->len_bytes);
        free(s);
    }
}

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const struct rdt_context_opts opts = {.struct_size = sizeof(opts), .loopback_only = 1};
    const char *seeds = fuzz_option(*argc, *argv, "seeds");
    struct rdt_error err = {0};

    if (fuzz_option(*argc, *argv, "list") != NULL) {
        puts("ps_server");
        exit(0);
    }
    if (seeds != NULL) {
        write_seeds(seeds);
        exit(0);
    }
    rdt_log_set_level(RDT_LOG_ERROR);
    CHECK_OK(rdt_context_open(&opts, &ctx, &err), &err);
    return 0;
}
