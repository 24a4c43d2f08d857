/* SPDX-License-Identifier: Apache-2.0
 * A tcp lane whose peer is a bare socket that may send anything; memory around what it may reach
 * is guarded. */
#ifndef RDT_TESTS_FAKE_VICTIM_H
#define RDT_TESTS_FAKE_VICTIM_H

#include <stddef.h>
#include <stdint.h>

#include "fake_host.h"
#include "wire/endpoint/stream.h"

enum {
    FAKE_VICTIM_REGION_BYTES = 4096,
    FAKE_VICTIM_GUARD_BYTES = 4096,
    FAKE_VICTIM_READ_BYTES = 512,
    FAKE_VICTIM_STREAM_CAP = 65536
};

/* A lane in the listener's role, ready, with a bare socket as its peer. */
struct fake_victim {
    struct fake_host host;
    struct fake_link link;
    int fd;
    uint8_t *memory; /* guard, region, guard */
    struct fake_region *region;
    uint8_t *read_dst; /* of exactly FAKE_VICTIM_READ_BYTES */
    struct fake_op ops[3];
};

void fake_victim_open(struct fake_victim *v); /* with a lane */
void fake_victim_close(struct fake_victim *v);
/* Another lane, ready, in the listener's role. */
void fake_victim_lane(struct fake_victim *v);
/* Ends the lane and checks that it left nothing behind and wrote nowhere else. */
void fake_victim_end_lane(struct fake_victim *v);
/* A few passes; what the victim sends is thrown away. */
void fake_victim_pump(struct fake_victim *v);
/* Two writes and a read of the victim's own, so that acknowledgements and answers mean
 * something. */
void fake_victim_start_ops(struct fake_victim *v);
void fake_victim_check_ops(struct fake_victim *v); /* all completed */
void fake_victim_send(struct fake_victim *v, const uint8_t *bytes, size_t len_bytes);

/* Bytes of a stream in the making. */
struct fake_script {
    uint8_t bytes[FAKE_VICTIM_STREAM_CAP];
    size_t len_bytes;
};

/* A head and payload_bytes of payload: 1, 2, 3 ... */
void fake_script_add(struct fake_script *s, struct rdti_stream_head head, size_t payload_bytes);

/* The seed, not 0, and the numbers that follow from it. */
extern uint64_t fake_random_state;
uint64_t fake_random_u64(void);
/* Spoil a few bytes or lose one. */
void fake_mutate(uint8_t *bytes, size_t *len_bytes);

#endif
