/* SPDX-License-Identifier: Apache-2.0
 * Numbers and names of the lossy formats. */
#include "wire/group/lossy_code.h"

static const struct {
    uint32_t wire;
    uint32_t block;
    const char *words;
} codes[RDT_DESC_MASK + 1] = {
    [0] = {RDT_WIRE_EXACT, 0, ""},
    [1] = {RDT_WIRE_BF16, 0, " as bf16"},
    [2] = {RDT_WIRE_Q8, 32, " as q8 in blocks of 32"},
    [3] = {RDT_WIRE_Q8, 64, " as q8 in blocks of 64"},
    [4] = {RDT_WIRE_Q8, 128, " as q8 in blocks of 128"},
    [5] = {RDT_WIRE_Q8, 256, " as q8 in blocks of 256"},
    [6] = {RDT_WIRE_Q8, 512, " as q8 in blocks of 512"},
    [7] = {RDT_WIRE_Q8, 1024, " as q8 in blocks of 1024"},
};

uint32_t
rdti_lossy_code(uint32_t wire, uint32_t block)
{
    for (uint32_t code = 1; code <= RDT_DESC_MASK && codes[code].words != NULL; code++)
        if (codes[code].wire == wire && codes[code].block == block)
            return code;
    return 0;
}

const char *
rdti_lossy_words(uint32_t op)
{
    const char *words = codes[op >> RDT_DESC_BITS & RDT_DESC_MASK].words;

    return words != NULL ? words : " in an unknown format";
}
