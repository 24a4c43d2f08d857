/* SPDX-License-Identifier: Apache-2.0
 * One line to stderr per event, "rdmatensor[pid] LEVEL text". Never on the path of a write or poll.
 */
#ifndef RDTI_BASE_LOG_H
#define RDTI_BASE_LOG_H

#include "rdmatensor.h"

/* Any thread; one write(2) per line, so lines of several processes do not mix. */
void rdti_log(int32_t level, const char *fmt, ...) __attribute__((cold, format(printf, 2, 3)));

#endif
