/* SPDX-License-Identifier: Apache-2.0
 * Fields that the formats share, read by rules that leave one encoding for each value: what a
 * decoder accepts, its encoder writes again byte for byte. Any thread; nothing is kept. */
#ifndef RDTI_WIRE_FIELDS_H
#define RDTI_WIRE_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"
#include "wire/bytes.h"

/* A reader that remembers the first thing wrong, so that decoders have one exit. */
struct rdti_fields {
    struct rdti_reader r;
    const char *fault; /* static text; NULL: nothing wrong so far */
};

/* RDT_EPROTO, naming `what` and both lengths, unless len_bytes is want_bytes. */
rdt_status rdti_fields_begin(struct rdti_fields *f, const char *what, const uint8_t *buf,
                             size_t len_bytes, size_t want_bytes, struct rdt_error *err);
/* RDT_EPROTO if a fault was seen, bytes are left or were missing. */
rdt_status rdti_fields_end(const struct rdti_fields *f, const char *what, struct rdt_error *err);

void rdti_fields_require(struct rdti_fields *f, bool condition, const char *fault);
void rdti_fields_copy(struct rdti_fields *f, void *out, size_t len_bytes);
void rdti_fields_zeros(struct rdti_fields *f, size_t len_bytes, const char *fault);
/* A text field: no control characters, a NUL, and nothing but NULs behind it. */
void rdti_fields_text(struct rdti_fields *f, char *out, size_t field_bytes, const char *fault);
/* A region descriptor, or, where is_present is false, zeros in its place and a zero *out. */
void rdti_fields_region(struct rdti_fields *f, bool is_present, struct rdt_remote_region *out,
                        const char *fault);

void rdti_write_zeros(struct rdti_writer *w, size_t len_bytes);
/*
 * The counterpart of rdti_fields_text(): control characters become spaces, so that a peer's words
 * cannot forge lines of a log, and what is too long is cut before a UTF-8 sequence. For reasons;
 * names must be rdti_text_is_plain() before they get here, else two names could become one.
 */
void rdti_write_text(struct rdti_writer *w, const char *text, size_t field_bytes);
void rdti_write_region(struct rdti_writer *w, bool is_present,
                       const struct rdt_remote_region *region);

/* `text` fits a field of field_bytes with its NUL and has no control characters. */
bool rdti_text_is_plain(const char *text, size_t field_bytes);

#endif
