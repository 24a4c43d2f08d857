/* SPDX-License-Identifier: Apache-2.0
 *
 * prefer.h - all_reduces of some lengths that go by another algorithm than the costs say, because
 * somebody has timed them (rdt_group_coll_prefer()).
 *
 * Threads: written by one at a time, between collectives; read by any.
 */
#ifndef RDTI_COLLECTIVES_PREFER_H
#define RDTI_COLLECTIVES_PREFER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct rdti_coll;

enum { RDTI_PREFERENCES_MAX = 32 /* lengths of a group; a step has far fewer */ };

struct rdti_preference {
    atomic_ullong len_bytes; /* 0: there is none, nor any behind */
    atomic_uint choice;      /* choose.c; auto: as the costs say */
};

struct rdti_preferences {
    struct rdti_preference list[RDTI_PREFERENCES_MAX];
};

/* False: the costs decide. */
bool rdti_preferred(const struct rdti_coll *coll, unsigned *choice_out);

#endif
