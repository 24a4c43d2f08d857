/* SPDX-License-Identifier: Apache-2.0
 * Fields that the formats share. Each value has exactly one encoding: for all bytes that a decoder
 * accepts, its encoder reproduces the same bytes. Any thread; no state. */
#ifndef RDTI_WIRE_FIELDS_H
#define RDTI_WIRE_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"
#include "wire/bytes.h"
#include "wire/place.h"

/* A reader that remembers the first fault, so that decoders have one exit. */
struct rdti_fields {
    struct rdti_reader r;
    const char *fault; /* static text; NULL: no fault so far */
};

/* RDT_EPROTO, naming `what` and both lengths, unless len_bytes is want_bytes. */
rdt_status rdti_fields_begin(struct rdti_fields *f, const char *what, const uint8_t *buf,
                             size_t len_bytes, size_t want_bytes, struct rdt_error *err);
/* RDT_EPROTO if a fault was found, or if bytes are left over or were missing. */
rdt_status rdti_fields_end(const struct rdti_fields *f, const char *what, struct rdt_error *err);

void rdti_fields_require(struct rdti_fields *f, bool condition, const char *fault);
void rdti_fields_copy(struct rdti_fields *f, void *out, size_t len_bytes);
void rdti_fields_zeros(struct rdti_fields *f, size_t len_bytes, const char *fault);
/* A text field: no control characters, a NUL, and only NULs after it. */
void rdti_fields_text(struct rdti_fields *f, char *out, size_t field_bytes, const char *fault);
/* A region descriptor, or, where is_present is false, zeros in its place and a zero *out. */
void rdti_fields_region(struct rdti_fields *f, bool is_present, struct rdt_remote_region *out,
                        const char *fault);

/* The same for a place. */
void rdti_fields_place(struct rdti_fields *f, bool is_present, struct rdti_place *out);

void rdti_write_zeros(struct rdti_writer *w, size_t len_bytes);
/*
 * The counterpart of rdti_fields_text(). Control characters become spaces, so that text from a peer
 * cannot forge log lines; text that is too long is cut before a UTF-8 sequence. For reasons only: a
 * name must pass rdti_text_is_plain() first, else two names could become equal.
 */
void rdti_write_text(struct rdti_writer *w, const char *text, size_t field_bytes);
void rdti_write_region(struct rdti_writer *w, bool is_present,
                       const struct rdt_remote_region *region);
void rdti_write_place(struct rdti_writer *w, bool is_present, const struct rdti_place *place);

/* `text` fits a field of field_bytes with its NUL and has no control characters. */
bool rdti_text_is_plain(const char *text, size_t field_bytes);

#endif
