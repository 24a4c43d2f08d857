/* SPDX-License-Identifier: Apache-2.0
 * Text in buffers of a fixed size. */
#ifndef RDTI_BASE_TEXT_H
#define RDTI_BASE_TEXT_H

#include <stddef.h>
#include <string.h>

/* Copies as much of src as fits; dst (cap >= 1) always ends with NUL, and the rest of it is zero.
 */
static inline void
rdti_text_copy(char *dst, size_t cap, const char *src)
{
    const size_t len = strnlen(src, cap - 1);

    memcpy(dst, src, len);
    memset(dst + len, 0, cap - len);
}

#endif
