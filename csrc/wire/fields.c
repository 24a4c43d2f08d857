/* SPDX-License-Identifier: Apache-2.0
 * Fields that the formats share. */
#include "wire/fields.h"

#include <string.h>

#include "base/error.h"

static bool
fields_is_control(char c)
{
    const unsigned char byte = (unsigned char)c;

    return byte < 0x20 || byte == 0x7f;
}

static bool
fields_is_zeros(const uint8_t *p, size_t len_bytes)
{
    for (size_t i = 0; i < len_bytes; i++) {
        if (p[i] != 0)
            return false;
    }
    return true;
}

rdt_status
rdti_fields_begin(struct rdti_fields *f, const char *what, const uint8_t *buf, size_t len_bytes,
                  size_t want_bytes, struct rdt_error *err)
{
    if (len_bytes != want_bytes)
        return rdti_error_set(err, RDT_EPROTO, 0, "%s: %zu bytes, want %zu", what, len_bytes,
                              want_bytes);
    f->r = (struct rdti_reader){.p = buf, .left = len_bytes, .is_ok = true};
    f->fault = NULL;
    return RDT_OK;
}

rdt_status
rdti_fields_end(const struct rdti_fields *f, const char *what, struct rdt_error *err)
{
    if (f->fault != NULL)
        return rdti_error_set(err, RDT_EPROTO, 0, "%s: %s", what, f->fault);
    if (!f->r.is_ok || f->r.left != 0)
        return rdti_error_set(err, RDT_EPROTO, 0, "%s: its length does not fit its fields", what);
    return RDT_OK;
}

void
rdti_fields_require(struct rdti_fields *f, bool condition, const char *fault)
{
    if (!condition && f->fault == NULL)
        f->fault = fault;
}

void
rdti_fields_copy(struct rdti_fields *f, void *out, size_t len_bytes)
{
    const uint8_t *at = rdti_read_bytes(&f->r, len_bytes);

    if (at != NULL)
        memcpy(out, at, len_bytes);
}

void
rdti_fields_zeros(struct rdti_fields *f, size_t len_bytes, const char *fault)
{
    const uint8_t *at = rdti_read_bytes(&f->r, len_bytes);

    if (at != NULL)
        rdti_fields_require(f, fields_is_zeros(at, len_bytes), fault);
}

void
rdti_fields_text(struct rdti_fields *f, char *out, size_t field_bytes, const char *fault)
{
    const uint8_t *at = rdti_read_bytes(&f->r, field_bytes);

    if (at == NULL)
        return;
    const char *text = (const char *)at;
    const size_t len = strnlen(text, field_bytes);
    if (!rdti_text_is_plain(text, field_bytes) || !fields_is_zeros(at + len, field_bytes - len)) {
        rdti_fields_require(f, false, fault);
        return;
    }
    memcpy(out, text, field_bytes);
}

void
rdti_fields_region(struct rdti_fields *f, bool is_present, struct rdt_remote_region *out,
                   const char *fault)
{
    if (!is_present) {
        memset(out, 0, sizeof(*out));
        rdti_fields_zeros(f, RDT_REMOTE_REGION_BYTES, fault);
        return;
    }
    const uint8_t *at = rdti_read_bytes(&f->r, RDT_REMOTE_REGION_BYTES);
    if (at != NULL && rdt_remote_region_decode(at, RDT_REMOTE_REGION_BYTES, out, NULL) != RDT_OK)
        rdti_fields_require(f, false, fault);
}

void
rdti_fields_place(struct rdti_fields *f, bool is_present, struct rdti_place *out)
{
    out->off_bytes = rdti_read_u64(&f->r);
    rdti_fields_region(f, is_present, &out->region, "bad region descriptor");
    rdti_fields_require(f, out->off_bytes <= out->region.len_bytes, "the offset leaves the region");
}

void
rdti_write_zeros(struct rdti_writer *w, size_t len_bytes)
{
    uint8_t *at = rdti_write_bytes(w, NULL, len_bytes);

    if (at != NULL)
        memset(at, 0, len_bytes);
}

void
rdti_write_text(struct rdti_writer *w, const char *text, size_t field_bytes)
{
    char *at = (char *)rdti_write_bytes(w, NULL, field_bytes);

    if (at == NULL)
        return;
    size_t len = strnlen(text, field_bytes);
    if (len == field_bytes) {
        len--;
        while (len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80)
            len--; /* text[len], the first byte left out, must not be a continuation byte */
    }
    memset(at, 0, field_bytes);
    for (size_t i = 0; i < len; i++)
        at[i] = fields_is_control(text[i]) ? ' ' : text[i];
}

void
rdti_write_region(struct rdti_writer *w, bool is_present, const struct rdt_remote_region *region)
{
    uint8_t *at = rdti_write_bytes(w, NULL, RDT_REMOTE_REGION_BYTES);

    if (at == NULL)
        return;
    if (is_present)
        rdt_remote_region_encode(region, at);
    else
        memset(at, 0, RDT_REMOTE_REGION_BYTES);
}

void
rdti_write_place(struct rdti_writer *w, bool is_present, const struct rdti_place *place)
{
    rdti_write_u64(w, is_present ? place->off_bytes : 0);
    rdti_write_region(w, is_present, &place->region);
}

bool
rdti_text_is_plain(const char *text, size_t field_bytes)
{
    const size_t len = strnlen(text, field_bytes);

    for (size_t i = 0; i < len; i++) {
        if (fields_is_control(text[i]))
            return false;
    }
    return len < field_bytes;
}
