/* SPDX-License-Identifier: Apache-2.0
 * A ready tcp lane whose peer sends any bytes, in pieces of the length that the first byte says:
 * nothing outside the region changes, every operation of ours ends once, nothing stays pinned. */
#include "fuzz.h"

#include "transport/fake_victim.h"
#include "wire/notify.h"

enum { PIECES_MAX = 64 };

static struct fake_victim victim;

static void
add_writes(struct fake_script *s, uint32_t generation)
{
    struct rdti_stream_head write = {.op = RDTI_STREAM_WRITE,
                                     .flags = RDTI_STREAM_NOTIFY,
                                     .value = rdti_notify_user(3),
                                     .index = 1,
                                     .generation = generation,
                                     .len_bytes = 100,
                                     .off_bytes = 17};

    fake_script_add(s, write, 100);
    write.flags = RDTI_STREAM_MORE;
    write.value = 0;
    fake_script_add(s, write, 100);
    write.flags = RDTI_STREAM_ACK_NOW;
    fake_script_add(s, write, 100);
    write.generation++;
    fake_script_add(s, write, 100);
    write.op = RDTI_STREAM_WRITE_INLINE;
    write.generation = generation;
    write.flags = RDTI_STREAM_NOTIFY;
    write.value = rdti_notify_user(4);
    write.len_bytes = 5;
    fake_script_add(s, write, 0);
}

static void
add_list(struct fake_script *s, uint32_t generation)
{
    const struct rdti_stream_entry entries[2] = {{0, 10}, {FAKE_VICTIM_REGION_BYTES - 5, 5}};

    fake_script_add(s,
                    (struct rdti_stream_head){.op = RDTI_STREAM_WRITE_LIST,
                                              .flags = RDTI_STREAM_NOTIFY,
                                              .aux = 2,
                                              .value = rdti_notify_user(7),
                                              .index = 1,
                                              .generation = generation,
                                              .len_bytes = 15},
                    0);
    for (int i = 0; i < 2; i++) {
        rdti_stream_entry_encode(&entries[i], s->bytes + s->len_bytes);
        s->len_bytes += RDTI_STREAM_ENTRY_BYTES;
    }
    memset(s->bytes + s->len_bytes, 0x5a, 15);
    s->len_bytes += 15;
}

/* Answers to the victim's two writes and its read, and a read of ours. */
static void
add_answers(struct fake_script *s, uint32_t generation)
{
    fake_script_add(s, (struct rdti_stream_head){.op = RDTI_STREAM_ACK, .ack = 1}, 0);
    fake_script_add(s,
                    (struct rdti_stream_head){.op = RDTI_STREAM_READ_DATA,
                                              .ack = 1,
                                              .len_bytes = FAKE_VICTIM_READ_BYTES},
                    FAKE_VICTIM_READ_BYTES);
    fake_script_add(
        s, (struct rdti_stream_head){.op = RDTI_STREAM_REFUSED, .ack = 2, .aux = -RDT_ESTALE}, 0);
    fake_script_add(s,
                    (struct rdti_stream_head){.op = RDTI_STREAM_READ_REQUEST,
                                              .ack = 2,
                                              .index = 1,
                                              .generation = generation,
                                              .len_bytes = 400,
                                              .off_bytes = 96},
                    0);
    fake_script_add(
        s, (struct rdti_stream_head){.op = RDTI_STREAM_READ_REFUSED, .ack = 2, .aux = -RDT_ESTALE},
        0);
}

static void
write_seeds(const char *dir)
{
    static void (*const parts[])(struct fake_script *, uint32_t) = {add_writes, add_list,
                                                                    add_answers};
    static const uint8_t pieces[] = {0, 1, 33};
    const uint32_t generation = victim.region->remote.generation;
    struct fake_script *s = calloc(1, sizeof(*s));
    unsigned count = 0;

    CHECK_NOT_NULL(s);
    for (unsigned which = 1; which < 8; which++) {
        s->bytes[0] = pieces[which % 3];
        s->len_bytes = 1;
        for (unsigned i = 0; i < 3; i++)
            if ((which >> i & 1) != 0)
                parts[i](s, generation);
        fuzz_write_seed(dir, count++, s->bytes, s->len_bytes);
    }
    free(s);
}

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *seeds = fuzz_option(*argc, *argv, "seeds");

    if (fuzz_option(*argc, *argv, "list") != NULL) {
        puts("tcp_lane");
        exit(0);
    }
    rdt_log_set_level(RDT_LOG_ERROR);
    fake_victim_open(&victim);
    if (seeds != NULL)
        write_seeds(seeds);
    fake_victim_end_lane(&victim);
    if (seeds != NULL) {
        fake_victim_close(&victim);
        exit(0);
    }
    return 0;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    const size_t least = (size - 1 + PIECES_MAX - 1) / PIECES_MAX;
    const size_t wanted = data[0] == 0 ? size - 1 : data[0];
    const size_t piece = wanted > least ? wanted : least;

    fake_victim_lane(&victim);
    fake_victim_start_ops(&victim);
    for (size_t at = 1; at < size; at += piece) {
        fake_victim_send(&victim, data + at, size - at < piece ? size - at : piece);
        fake_victim_pump(&victim);
    }
    fake_victim_end_lane(&victim);
    fake_victim_check_ops(&victim);
    return 0;
}
