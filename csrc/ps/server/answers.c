/* SPDX-License-Identifier: Apache-2.0
 * What a server writes to its workers. */
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "ps/server/server_impl.h"

/* The bytes of a slot of the outbox, with its head, as they will be written. */
static uint8_t *
answers_slot(rdt_ps_server *server, uint32_t worker, uint32_t slot)
{
    return (uint8_t *)rdt_region_addr(server->clients[worker].answers) + RDTI_PS_TEXT_BYTES +
           slot * rdti_ps_slot_stride(server->opts.slot_bytes);
}

uint8_t *
rdti_ps_answer_payload(rdt_ps_server *server, uint32_t worker, uint32_t slot)
{
    return answers_slot(server, worker, slot) + RDTI_PS_HEAD_BYTES;
}

/* The source stays as it is until the peer uses the slot again, which it does after it has read
 * the answer; so no handle is needed. */
static void
answers_write(rdt_ps_server *server, uint32_t worker, uint64_t off, uint64_t len_bytes,
              uint32_t notify)
{
    struct rdti_ps_client *client = &server->clients[worker];
    struct rdt_error err;

    if (client->ep == NULL || client->is_dead || client->has_left)
        return;
    rdti_error_init(&err, RDT_RANK_UNKNOWN);
    if (rdt_endpoint_write(client->ep, (uint8_t *)rdt_region_addr(client->answers) + off, len_bytes,
                           &client->outbox, off, notify, NULL, &err) != RDT_OK)
        rdti_ps_arrivals_end(server, worker, &err);
}

void
rdti_ps_answer_result(rdt_ps_server *server, uint32_t worker, uint32_t slot, rdt_status status,
                      uint32_t payload_bytes)
{
    struct rdti_ps_client *client = &server->clients[worker];
    uint8_t *head = answers_slot(server, worker, slot);
    const struct rdti_ps_answer answer = {
        .status = status,
        .payload_bytes = payload_bytes,
        .sequence = client->slots[slot].sequence,
        .clock = rdti_ps_clocks_least(&server->clocks),
    };

    rdti_ps_answer_encode(&answer, head);
    client->slots[slot].is_taken = false;
    rdti_ps_arrivals_release(server, worker, slot); /* before the peer can use it again */
    answers_write(server, worker,
                  RDTI_PS_TEXT_BYTES + slot * rdti_ps_slot_stride(server->opts.slot_bytes),
                  (uint64_t)RDTI_PS_HEAD_BYTES + payload_bytes, slot);
}

void
rdti_ps_answer_send(rdt_ps_server *server, uint32_t worker, uint32_t slot, uint32_t payload_bytes)
{
    rdti_ps_answer_result(server, worker, slot, RDT_OK, payload_bytes);
}

void
rdti_ps_answer_error(rdt_ps_server *server, uint32_t worker, uint32_t slot, rdt_status status,
                     const char *text)
{
    size_t length = strlen(text);

    if (length > server->opts.slot_bytes)
        length = server->opts.slot_bytes;
    memcpy(rdti_ps_answer_payload(server, worker, slot), text, length);
    server->counters.refused++;
    rdti_ps_answer_result(server, worker, slot, status, (uint32_t)length);
}

void
rdti_ps_answer_end(rdt_ps_server *server, uint32_t worker, const char *message)
{
    char *text = rdt_region_addr(server->clients[worker].answers);

    memset(text, 0, RDTI_PS_TEXT_BYTES);
    rdti_text_copy(text, RDTI_PS_TEXT_BYTES, message);
    answers_write(server, worker, 0, RDTI_PS_TEXT_BYTES, RDTI_PS_NOTIFY_FAILED);
}

void
rdti_ps_answer_failure(rdt_ps_server *server)
{
    for (uint32_t worker = 0; worker < server->opts.workers; worker++)
        rdti_ps_answer_end(server, worker, server->failure.message);
}
