/* SPDX-License-Identifier: Apache-2.0
 * A connection to a real context, from the first byte on: its doors, the handshake, the frames of
 * the side channel, a lane's stream and the mailbox after it. The first byte says how far an
 * honest set-up goes before the input is heard, over which socket, and whether payloads are summed;
 * what follows are records:
 *
 *   kind u8 | length u16, little endian, cut to what is left | the bytes
 *
 * Nothing crashes or leaks, and afterwards the context holds nothing of the peer and lets
 * honest ones in. */
#include "support/liar.h"

#include <sanitizer/lsan_interface.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "transport/shm/offer.h"
#include "wire/codecs.h"
#include "wire/notify.h"
#include "wire/endpoint/stream.h"

enum {
    KIND_RAW = 0, /* bytes on the first socket; up to RDTI_FRAME_LAST: a frame of that type */
    KIND_DATA = RDTI_FRAME_LAST + 1, /* bytes on the stream */
    KIND_MESSAGE,                    /* into the mailbox ring, with its notification */
    KIND_NOTIFY,                     /* u32 notification, then bytes into the ring */
    KIND_DESCRIPTORS,                /* u8 type, then the payload: a frame with four descriptors */
    KIND_PUMP,
    KIND_SHUTDOWN, /* nothing more comes on the first socket */
    KIND_COUNT
};
enum { OPENS_SUMMED = 0x40, OPENS_UNIX = 0x80 }; /* of the first byte; below: the stage */
/* The inputs of tests/fuzz/corpus hold these numbers. */
_Static_assert(KIND_DATA == 17, "another frame: seed it below, and re-key corpus/connection.hex");

/* Deaths are remembered: a context that meets a new peer in every input grows. */
#define INPUTS_PER_CONTEXT 500
#define RECORD_HEAD_BYTES 3
#define FDS_MAX 1024 /* a leak begins with the lowest that are free */
/* Of the set-up of a path, which a machine that stands still for seconds must not end. */
#define SETUP_NS UINT64_C(30000000000)

static rdt_context *contexts[2]; /* the second sums payloads */
static uint64_t input_number;
static uint32_t fds_before;

/* Sockets, memory, events: libFuzzer opens pipes to a symbolizer when it likes. */
static uint32_t
count_our_fds(void)
{
    char target[64];
    char path[64];
    uint32_t count = 0;

    for (int fd = 0; fd < FDS_MAX; fd++) {
        (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        const ssize_t len = readlink(path, target, sizeof(target) - 1);
        target[len > 0 ? len : 0] = '\0';
        count += strncmp(target, "socket:", 7) == 0 || strncmp(target, "anon_inode:", 11) == 0 ||
                 strncmp(target, "/memfd:", 7) == 0;
    }
    return count;
}

static void
open_contexts(void)
{
    struct rdt_error err = {0};

    fds_before = count_our_fds();
    for (int i = 0; i < 2; i++) {
        const struct rdt_context_opts opts = {.struct_size = sizeof(opts),
                                              .loopback_only = 1,
                                              .tcp_streams = 1,
                                              .timeout_ns = SETUP_NS,
                                              .verify = i == 1 ? RDT_VERIFY_CRC32C : RDT_VERIFY_OFF,
                                              .arena_chunk_bytes = 1 << 20};
        CHECK_OK(rdt_context_open(&opts, &contexts[i], &err), &err);
        CHECK_OK(rdt_context_add_job(contexts[i], "job", (const uint8_t *)"secret", 6, 1, 0, &err),
                 &err);
    }
}

static void
close_contexts(void)
{
    struct rdt_error err = {0};

    for (int i = 0; i < 2; i++) {
        CHECK_OK(rdt_context_close(contexts[i], &err), &err);
        contexts[i] = NULL;
    }
    /* libFuzzer's own look after each input would find the contexts, and take 50 ms. */
    CHECK_MSG(__lsan_do_recoverable_leak_check() == 0, "the last %u inputs left memory behind",
              (unsigned)INPUTS_PER_CONTEXT);
    CHECK_UINT_EQ(count_our_fds(), fds_before);
}

/* ---- Records --------------------------------------------------------------------------------- */

static void
send_descriptors(struct liar *liar, const uint8_t *bytes, size_t len_bytes)
{
    int fds[SHM_FD_COUNT];

    if (len_bytes < 1)
        return;
    for (int i = 0; i < SHM_FD_COUNT; i++) {
        fds[i] = i == SHM_FD_EVENT ? eventfd(0, EFD_CLOEXEC)
                                   : memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        CHECK_INT_GE(fds[i], 0);
        if (i != SHM_FD_EVENT)
            CHECK_INT_EQ(ftruncate(fds[i], i == SHM_FD_RING ? SHM_RING_BYTES : 4096), 0);
    }
    liar_frame(liar, bytes[0] % KIND_DATA, bytes + 1, len_bytes - 1, fds, SHM_FD_COUNT);
    for (int i = 0; i < SHM_FD_COUNT; i++)
        CHECK_INT_EQ(close(fds[i]), 0);
}

/* over budget: one branch per kind of record. */
static void
play(struct liar *liar, uint8_t kind, const uint8_t *bytes, size_t len_bytes)
{
    switch (kind) {
    case KIND_RAW:
        liar_say(liar->fd, bytes, len_bytes);
        break;
    case KIND_DATA:
        liar_say(liar->data_fd, bytes, len_bytes);
        break;
    case KIND_MESSAGE:
        liar_write_ring(liar, RDTI_NOTIFY_MESSAGE, bytes, len_bytes);
        break;
    case KIND_NOTIFY:
        if (len_bytes >= 4)
            liar_write_ring(liar, rdti_get_u32(bytes), bytes + 4, len_bytes - 4);
        break;
    case KIND_DESCRIPTORS:
        send_descriptors(liar, bytes, len_bytes);
        break;
    case KIND_PUMP:
        liar_pump(liar);
        break;
    case KIND_SHUTDOWN:
        (void)shutdown(liar->fd, SHUT_WR);
        break;
    default:
        liar_frame(liar, kind, bytes, len_bytes, NULL, 0);
        break;
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct liar liar;
    size_t at = 1;

    if (size < 1 + RECORD_HEAD_BYTES)
        return 0;
    if (input_number++ % INPUTS_PER_CONTEXT == 0) {
        if (contexts[0] != NULL)
            close_contexts();
        open_contexts();
    }
    const bool is_unix = (data[0] & OPENS_UNIX) != 0;
    rdt_context *context = contexts[(data[0] & OPENS_SUMMED) != 0];
    const uint8_t stage = data[0] % LIAR_STAGES;
    liar_begin(&liar, context, is_unix, input_number);
    liar_reach(&liar, is_unix && stage > LIAR_AUTHENTICATED ? LIAR_AUTHENTICATED : stage);
    while (size - at >= RECORD_HEAD_BYTES) {
        const uint8_t kind = data[at] % KIND_COUNT;
        const size_t told = rdti_get_u16(data + at + 1) % (RDTI_FRAME_PAYLOAD_MAX + 1);
        at += RECORD_HEAD_BYTES;
        const size_t len_bytes = told < size - at ? told : size - at;
        play(&liar, kind, data + at, len_bytes);
        at += len_bytes;
    }
    liar_end(&liar);
    return 0;
}

/* ---- Seeds ----------------------------------------------------------------------------------- */

struct input {
    uint8_t bytes[32768];
    size_t len_bytes;
};

static void
begin_input(struct input *in, enum liar_stage stage, bool is_unix)
{
    in->bytes[0] = (uint8_t)(stage | (is_unix ? OPENS_UNIX : 0));
    in->len_bytes = 1;
}

static void
add_record(struct input *in, uint8_t kind, const uint8_t *bytes, size_t len_bytes)
{
    CHECK(in->len_bytes + RECORD_HEAD_BYTES + len_bytes <= sizeof(in->bytes));
    in->bytes[in->len_bytes] = kind;
    rdti_put_u16(in->bytes + in->len_bytes + 1, (uint16_t)len_bytes);
    if (len_bytes > 0)
        memcpy(in->bytes + in->len_bytes + RECORD_HEAD_BYTES, bytes, len_bytes);
    in->len_bytes += RECORD_HEAD_BYTES + len_bytes;
}

/* A value of one of the formats as a record of that kind. */
static void
add_value(struct input *in, struct rng *rng, uint8_t kind, const char *format)
{
    uint8_t wire[WIRE_MAX_BYTES];
    union any_value value;

    add_record(in, kind, wire, encode_random(codec_named(format), rng, &value, wire));
}

static const struct {
    uint8_t type;
    const char *format;
} frames[] = {{RDTI_FRAME_PATH, "path"},
              {RDTI_FRAME_PATH_FAILED, "text"},
              {RDTI_FRAME_DEATH, "death"},
              {RDTI_FRAME_REVOKE, "revoke"},
              {RDTI_FRAME_REVOKED, "revoke"},
              {RDTI_FRAME_SEGMENT_GET, "segment"},
              {RDTI_FRAME_SEGMENT, "segment"},
              {RDTI_FRAME_SLOT, "slot_announce"},
              {RDTI_FRAME_SLOT_GONE, "slot_gone"},
              {RDTI_FRAME_SLOT_REFUSED, "slot_gone"},
              {RDTI_FRAME_ABORT, "abort"},
              {RDTI_FRAME_LANE_WORDS, "verbs_words"},
              {RDTI_FRAME_MOVE, "move"}};
#define FRAME_COUNT (sizeof(frames) / sizeof(frames[0]))
#define EMPTY_FRAMES 3 /* READY, HEARTBEAT and GOODBYE have no format */
_Static_assert(FRAME_COUNT + EMPTY_FRAMES == RDTI_FRAME_LAST, "a frame is not seeded");

/* What follows a message's head; NULL: nothing, or bytes without a format. */
static const char *
body_of(uint8_t kind)
{
    switch (kind) {
    case RDTI_MESSAGE_RTS:
        return "rts";
    case RDTI_MESSAGE_CTS:
    case RDTI_MESSAGE_PLACE:
        return "place";
    case RDTI_MESSAGE_RING:
        return "region";
    case RDTI_MESSAGE_SUMS:
    case RDTI_MESSAGE_WRITTEN:
    case RDTI_MESSAGE_SUMS_READ:
        return "sums";
    case RDTI_MESSAGE_SUMS_GET:
        return "sums_get";
    default:
        return NULL;
    }
}

static void
add_message(struct input *in, struct rng *rng, uint8_t kind)
{
    struct rdti_message head = {.kind = kind,
                                .source = 1,
                                .group_id = 77,
                                .tag = rng_below(rng, 4),
                                .len_bytes = kind == RDTI_MESSAGE_EAGER ? 100 : 4096};
    uint8_t bytes[RDTI_MESSAGE_HEAD_BYTES + WIRE_MAX_BYTES] = {0};
    union any_value value;
    size_t body = kind == RDTI_MESSAGE_EAGER ? 100 : 0;

    if (body_of(kind) != NULL)
        body =
            encode_random(codec_named(body_of(kind)), rng, &value, bytes + RDTI_MESSAGE_HEAD_BYTES);
    if (body_of(kind) != NULL && strcmp(body_of(kind), "sums") == 0)
        head.count = value.sums.count;
    rdti_message_encode(&head, bytes);
    add_record(in, KIND_MESSAGE, bytes, RDTI_MESSAGE_HEAD_BYTES + body);
}

static void
add_shm_path(struct input *in, struct rng *rng)
{
    struct rdti_path path = {.transport = RDT_TRANSPORT_SHM};
    struct shm_offer shm = {.pid = 1};
    struct rdti_offer offer = {0};
    uint8_t payload[1 + RDTI_FRAME_PAYLOAD_MAX] = {RDTI_FRAME_PATH};

    rng_region(rng, &path.ring);
    rdti_shm_offer_encode(&shm, &offer);
    path.offer_bytes = offer.len_bytes;
    memcpy(path.offer, offer.bytes, offer.len_bytes);
    add_record(in, KIND_DESCRIPTORS, payload, 1 + rdti_path_encode(&path, payload + 1));
}

/* over budget: the stages one after the other, each with what is heard there. */
static void
write_seeds(const char *dir)
{
    struct rng rng = {.state = 0x5eed};
    struct input *in = calloc(1, sizeof(*in));
    unsigned count = 0;

    CHECK_NOT_NULL(in);
    for (int u = 0; u < 2; u++) {
        static const char *const openings[] = {"hello", "join", "auth", "challenge"};
        for (size_t i = 0; i < 4; i++) {
            begin_input(in, LIAR_STRANGER, u == 1);
            add_value(in, &rng, KIND_RAW, openings[i]);
            add_value(in, &rng, KIND_RAW, "auth");
            fuzz_write_seed(dir, count++, in->bytes, in->len_bytes);
        }
        for (size_t i = 0; i < FRAME_COUNT; i++) {
            begin_input(in, LIAR_AUTHENTICATED, u == 1);
            add_value(in, &rng, frames[i].type, frames[i].format);
            add_record(in, KIND_PUMP, NULL, 0);
            fuzz_write_seed(dir, count++, in->bytes, in->len_bytes);
        }
    }
    begin_input(in, LIAR_AUTHENTICATED, true);
    add_shm_path(in, &rng);
    fuzz_write_seed(dir, count++, in->bytes, in->len_bytes);
    for (size_t i = 0; i < 2 * FRAME_COUNT; i++) {
        begin_input(in, i < FRAME_COUNT ? LIAR_JOINED : LIAR_READY, false);
        add_value(in, &rng, frames[i % FRAME_COUNT].type, frames[i % FRAME_COUNT].format);
        add_record(in, RDTI_FRAME_GOODBYE, NULL, 0);
        fuzz_write_seed(dir, count++, in->bytes, in->len_bytes);
    }
    for (uint8_t kind = RDTI_MESSAGE_EAGER; kind <= RDTI_MESSAGE_POSTED; kind++) {
        for (int summed = 0; summed < 2; summed++) {
            const uint8_t notification[4] = {kind, 0, 0xf4, 0xff}; /* a user's */
            const uint8_t landed[4] = {0, 0x10, 0, 0x80};          /* in place 0 of stream 1 */
            begin_input(in, LIAR_READY, false);
            in->bytes[0] |= summed == 1 ? OPENS_SUMMED : 0;
            add_message(in, &rng, RDTI_MESSAGE_EAGER);
            add_message(in, &rng, kind);
            add_record(in, KIND_NOTIFY, notification, sizeof(notification));
            if (kind == RDTI_MESSAGE_STOOD)
                add_record(in, KIND_NOTIFY, landed, sizeof(landed));
            add_record(in, KIND_SHUTDOWN, NULL, 0);
            fuzz_write_seed(dir, count++, in->bytes, in->len_bytes);
        }
    }
    free(in);
}

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *seeds = fuzz_option(*argc, *argv, "seeds");

    if (fuzz_option(*argc, *argv, "list") != NULL) {
        puts("connection");
        exit(0);
    }
    if (seeds != NULL) {
        write_seeds(seeds);
        exit(0);
    }
    rdt_log_set_level(-1); /* each input is worth a line of a log */
    return 0;
}
