/* SPDX-License-Identifier: Apache-2.0
 * Text in buffers of a fixed size. */
#ifndef RDTI_BASE_TEXT_H
#define RDTI_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

/* Copies as much of src as fits; dst (cap >= 1) always ends with NUL, and the rest of it is zero.
 */
static inline void
rdti_text_copy(char *dst, size_t cap, const char *src)
{
    const size_t len = strnlen(src, cap - 1);

    memcpy(dst, src, len);
    memset(dst + len, 0, cap - len);
}

/* Reads a setting that is on or off, in any case of letters. False: it is neither, and *out keeps
 * its value. */
static inline bool
rdti_text_flag(const char *text, bool *out)
{
    static const char *const words[][2] = {{"0", "1"},
                                           {"false", "true"},
                                           {"no", "yes"},
                                           {"off", "on"}};

    for (size_t i = 0; i < 2 * sizeof(words) / sizeof(words[0]); i++) {
        if (strcasecmp(text, words[i / 2][i % 2]) != 0)
            continue;
        *out = i % 2 == 1;
        return true;
    }
    return false;
}

#endif
