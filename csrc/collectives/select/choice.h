/* SPDX-License-Identifier: Apache-2.0
 * What RDMATENSOR_ALGO and RDMATENSOR_DETERMINISTIC ask for; all members must have the same.
 */
#ifndef RDTI_COLLECTIVES_SELECT_CHOICE_H
#define RDTI_COLLECTIVES_SELECT_CHOICE_H

#include <stdbool.h>

#include "rdmatensor.h"

enum choice {
    CHOICE_AUTO = 0, /* boards where all members are on one host, else messages */
    CHOICE_MESSAGES, /* by kind and bytes, never boards */
    CHOICE_DIRECT,   /* boards, or messages between all without detours */
    CHOICE_RING,
    CHOICE_HALVING,
    CHOICE_TREE,
    CHOICE_HIERARCHICAL, /* as auto; between hosts always by way of them, where they have several */
    CHOICES,
};

/* The value of RDMATENSOR_ALGO. RDT_EINVAL: no such algorithm. */
rdt_status rdti_choice_from_environment(unsigned *out, struct rdt_error *err);
const char *rdti_choice_name(unsigned choice); /* "auto" */
/* The value of RDMATENSOR_DETERMINISTIC. RDT_EINVAL: neither 0 nor 1, or the choice cannot keep to
 * it. */
rdt_status rdti_choice_is_ordered(unsigned choice, bool *out, struct rdt_error *err);

#endif
