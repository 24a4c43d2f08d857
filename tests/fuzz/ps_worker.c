/* SPDX-License-Identifier: Apache-2.0
 * A worker of a parameter server whose server writes any bytes into the outbox. The first byte is
 * the operation in flight; what follows are records:
 *
 *   notification u8: a slot, or the end from 0x80 on | length u16 | the bytes there
 *
 * The caller's memory holds what an answer of the right size says, or is as it was, and each
 * answer is taken once. */
#include "fuzz.h"

#include "ps/model/description.h"
#include "ps/worker/worker_impl.h"
#include "wire/bytes.h"
#include "wire/codecs.h"

enum { SLOTS = 4, SLOT_BYTES = 1024, RECORD_HEAD_BYTES = 3, ROWS = 50, DIM = 3, IDS = 7 };
enum { ANSWER_BYTES = 100 };

static rdt_context *ctx;

/* Exact allocations, so that an address sanitizer sees a write after them. */
struct victim {
    rdt_ps_worker *worker;
    float *out;
    uint8_t *answer;
    uint64_t len_bytes;
    uint64_t chunk;
    uint32_t is_stale;
};

static void
open_worker(struct victim *v)
{
    const struct rdt_ps_worker_opts opts = {.struct_size = sizeof(opts),
                                            .mode = RDT_PS_SYNC,
                                            .servers = 1,
                                            .slots = SLOTS,
                                            .slot_bytes = SLOT_BYTES};
    const struct rdt_ps_table_opts table = {.struct_size = sizeof(table),
                                            .dim = DIM,
                                            .rows = ROWS,
                                            .rule = {.struct_size = sizeof(table.rule),
                                                     .kind = RDT_PS_SGD,
                                                     .lr = 0.1}};
    const struct rdt_remote_region rows = {.len_bytes = ROWS * rdti_ps_row_stride(DIM)};
    const uint32_t id = 0;
    struct rdt_error err = {0};
    uint32_t number;

    CHECK_OK(rdt_ps_worker_create(ctx, &opts, &v->worker, &err), &err);
    CHECK_OK(rdt_ps_worker_add_table(v->worker, &table, &id, &rows, &number, &err), &err);
    v->out = calloc(IDS * DIM, sizeof(*v->out));
    v->answer = calloc(ANSWER_BYTES, 1);
    v->worker->order = calloc(IDS, sizeof(*v->worker->order));
    CHECK(v->out != NULL && v->answer != NULL && v->worker->order != NULL);
    for (uint64_t i = 0; i < IDS; i++)
        v->worker->order[i] = IDS - 1 - i;
}

static void
close_worker(struct victim *v)
{
    rdt_ps_worker_destroy(v->worker);
    free(v->out);
    free(v->answer);
}

/* An operation with a request in each slot but the last; one more push is in flight. */
static void
begin(struct victim *v, uint32_t purpose)
{
    struct rdti_ps_conn *conn = &v->worker->conns[0];

    v->worker->op = (struct rdti_ps_operation){.purpose = purpose,
                                               .view = v->worker->views[0],
                                               .out = v->out,
                                               .answer = v->answer,
                                               .cap = ANSWER_BYTES,
                                               .len_out = &v->len_bytes,
                                               .chunk_out = &v->chunk,
                                               .stale_out = &v->is_stale,
                                               .asked_ns = 1};
    for (uint32_t i = 0; i < SLOTS - 1; i++) {
        const bool is_push = i == SLOTS - 2 || purpose == RDTI_PS_FOR_PUSH;
        conn->slots[i] =
            (struct rdti_ps_worker_slot){.purpose = is_push ? RDTI_PS_FOR_PUSH : purpose,
                                         .sequence = i + 1,
                                         .first = i * (IDS / 2),
                                         .count = i == 0 ? IDS / 2 : IDS - IDS / 2};
        conn->in_flight++;
        if (is_push)
            conn->pushes++;
        else if (purpose != RDTI_PS_FOR_HOLDERS)
            conn->of_operation++;
    }
}

static void
check_worker(const struct victim *v, uint32_t in_flight_before, rdt_status status)
{
    const struct rdti_ps_conn *conn = &v->worker->conns[0];
    uint32_t busy = 0;
    uint32_t questions = 0;

    for (uint32_t i = 0; i < SLOTS; i++) {
        busy += conn->slots[i].purpose != RDTI_PS_FREE;
        questions += conn->slots[i].purpose == RDTI_PS_FOR_HOLDERS;
    }
    CHECK_UINT_EQ(conn->in_flight, busy);
    CHECK_UINT_EQ(conn->of_operation + conn->pushes + questions, busy);
    CHECK(memchr(v->worker->holders, 0, sizeof(v->worker->holders)) != NULL);
    CHECK(conn->in_flight + (status == RDT_OK) == in_flight_before);
    CHECK(v->len_bytes <= ANSWER_BYTES);
    CHECK(v->is_stale <= 1 && v->worker->members_bytes <= RDTI_PS_MEMBERS_BYTES);
}

/* Where a notification's bytes lie. */
static size_t
place(uint8_t notification, size_t *room)
{
    if (notification >= 0x80) {
        *room = RDTI_PS_TEXT_BYTES;
        return 0;
    }
    *room = RDTI_PS_HEAD_BYTES + SLOT_BYTES;
    return RDTI_PS_TEXT_BYTES + notification % SLOTS * rdti_ps_slot_stride(SLOT_BYTES);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct victim v = {0};
    struct rdt_error err = {0};
    rdt_status status = RDT_OK;

    if (size < 1)
        return 0;
    open_worker(&v);
    begin(&v, RDTI_PS_FOR_PUSH + data[0] % RDTI_PS_FOR_HOLDERS);
    data++;
    size--;
    while (size >= RECORD_HEAD_BYTES && status == RDT_OK) {
        struct rdti_ps_conn *conn = &v.worker->conns[0];
        const uint32_t before = conn->in_flight;
        const size_t wanted = rdti_get_u16(data + 1);
        const size_t len_bytes =
            wanted < size - RECORD_HEAD_BYTES ? wanted : size - RECORD_HEAD_BYTES;
        size_t room;
        const size_t at = place(data[0], &room);
        memcpy((uint8_t *)rdt_region_addr(conn->outbox) + at, data + RECORD_HEAD_BYTES,
               len_bytes < room ? len_bytes : room);
        status = rdti_ps_conn_take(v.worker, 0,
                                   data[0] >= 0x80 ? RDTI_PS_NOTIFY_FAILED : data[0] % SLOTS, &err);
        CHECK(status == RDT_OK ||
              ((status == RDT_EPROTO || status == RDT_EPEER) && err.message[0] != '\0'));
        check_worker(&v, before, status);
        data += RECORD_HEAD_BYTES + len_bytes;
        size -= RECORD_HEAD_BYTES + len_bytes;
    }
    close_worker(&v);
    return 0;
}

/* ---- Seeds --------------------------------------------------------------------------------- */

static size_t
seed_answer(uint8_t *at, uint32_t slot, int32_t status, const void *payload, uint32_t payload_bytes)
{
    const struct rdti_ps_answer head = {.status = status,
                                        .payload_bytes = payload_bytes,
                                        .sequence = slot + 1};

    at[0] = (uint8_t)slot;
    rdti_put_u16(at + 1, (uint16_t)(RDTI_PS_HEAD_BYTES + payload_bytes));
    rdti_ps_answer_encode(&head, at + RECORD_HEAD_BYTES);
    memcpy(at + RECORD_HEAD_BYTES + RDTI_PS_HEAD_BYTES, payload, payload_bytes);
    return RECORD_HEAD_BYTES + RDTI_PS_HEAD_BYTES + payload_bytes;
}

/* The right payload of a request's answer. */
static size_t
seed_payload(uint32_t purpose, uint32_t slot, uint8_t *payload)
{
    const struct rdti_ps_lease lease = {.chunk = 3,
                                        .is_stale = 1,
                                        .members_bytes = 1,
                                        .members = {3}};

    if (slot == SLOTS - 2) /* a push */
        return 0;
    if (purpose == RDTI_PS_FOR_PULL)
        return (slot == 0 ? IDS / 2 : IDS - IDS / 2) * DIM * sizeof(float);
    if (purpose == RDTI_PS_FOR_LEASE)
        return rdti_ps_lease_encode(&lease, payload);
    return purpose == RDTI_PS_FOR_CALL ? ANSWER_BYTES : 0;
}

static void
write_seeds(const char *dir)
{
    uint8_t bytes[4096];
    uint8_t payload[RDTI_PS_LEASE_FIXED_BYTES + RDTI_PS_MEMBERS_BYTES] = {0};

    for (uint32_t which = 0; which < 2 * RDTI_PS_FOR_HOLDERS; which++) {
        const bool is_refused = which % 2 != 0;
        size_t len = 1;
        bytes[0] = (uint8_t)(which / 2);
        for (uint32_t slot = 0; slot < SLOTS - 1; slot++) {
            const size_t len_bytes = seed_payload(RDTI_PS_FOR_PUSH + which / 2, slot, payload);
            len += is_refused
                       ? seed_answer(bytes + len, slot, RDT_EINVAL, "no", 2)
                       : seed_answer(bytes + len, slot, RDT_OK, payload, (uint32_t)len_bytes);
        }
        memcpy(bytes + len, "\x80\x05\0worker", 9);
        fuzz_write_seed(dir, which, bytes, len + 9);
    }
}

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const struct rdt_context_opts opts = {.struct_size = sizeof(opts), .loopback_only = 1};
    const char *seeds = fuzz_option(*argc, *argv, "seeds");
    struct rdt_error err = {0};

    if (fuzz_option(*argc, *argv, "list") != NULL) {
        puts("ps_worker");
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
