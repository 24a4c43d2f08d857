/* SPDX-License-Identifier: Apache-2.0
 * The settings of collectives from the environment.
 */
#include "collectives/select/choice.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"

static const char *const choices[CHOICES] = {
    [CHOICE_AUTO] = "auto",
    [CHOICE_MESSAGES] = "messages",
    [CHOICE_DIRECT] = "direct",
    [CHOICE_RING] = "ring",
    [CHOICE_HALVING] = "halving-doubling",
    [CHOICE_TREE] = "tree",
    [CHOICE_HIERARCHICAL] = "hierarchical",
};

rdt_status
rdti_choice_from_environment(unsigned *out, struct rdt_error *err)
{
    const char *text = getenv("RDMATENSOR_ALGO");

    for (unsigned i = 0; i < CHOICES; i++) {
        if (text != NULL && text[0] != '\0' && strcmp(text, choices[i]) != 0)
            continue;
        *out = i; /* unset: the first */
        return RDT_OK;
    }
    return rdti_error_set(err, RDT_EINVAL, 0,
                          "RDMATENSOR_ALGO is '%.40s'; want auto, messages, direct, ring, "
                          "halving-doubling, tree or hierarchical",
                          text);
}

/* Sums made by others than boards and ordered.c have an order of their own. */
static bool
choice_keeps_rank_order(unsigned choice)
{
    return choice == CHOICE_AUTO || choice == CHOICE_MESSAGES || choice == CHOICE_DIRECT;
}

rdt_status
rdti_choice_is_ordered(unsigned choice, bool *out, struct rdt_error *err)
{
    const char *text = getenv("RDMATENSOR_DETERMINISTIC");

    bool is_on = false;

    *out = false;
    if (text != NULL && text[0] != '\0' && !rdti_text_flag(text, &is_on))
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "RDMATENSOR_DETERMINISTIC is '%.40s'; want 0 or 1", text);
    if (is_on && !choice_keeps_rank_order(choice))
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "RDMATENSOR_DETERMINISTIC=1 sums in rank order, which "
                              "RDMATENSOR_ALGO=%s does not; unset one of them",
                              choices[choice]);
    *out = is_on;
    return RDT_OK;
}

const char *
rdti_choice_name(unsigned choice)
{
    return choices[choice];
}
