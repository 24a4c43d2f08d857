/* SPDX-License-Identifier: Apache-2.0
 * The side channel between two fake hosts: offers, requests for segments and their answers. */
#ifndef RDT_TESTS_FAKE_SIDE_H
#define RDT_TESTS_FAKE_SIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "fake_host.h"

enum fake_frame_type {
    FAKE_FRAME_OFFER = 1,
    FAKE_FRAME_GET = 2,
    FAKE_FRAME_SEGMENT = 3,
    FAKE_FRAME_WORDS = 4
};

/* One packet; descriptors travel next to it. Both ends are the same program. */
struct fake_frame {
    uint32_t type;
    uint32_t segment;
    uint64_t len_bytes;
    uint32_t offer_bytes;
    uint8_t offer[RDTI_OFFER_MAX_BYTES];
};

/* False if the peer's end is gone. Any thread. */
bool fake_side_send(int side_fd, const struct fake_frame *frame, const int *fds, uint32_t fd_count);
/* Take everything that has arrived; returns the number of frames. Under the engine lock. */
uint32_t fake_side_serve(struct fake_link *link);

#endif
