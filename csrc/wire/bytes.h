/* SPDX-License-Identifier: Apache-2.0
 * Little-endian integers and bounded cursors: no code casts bytes to a struct. */
#ifndef RDTI_WIRE_BYTES_H
#define RDTI_WIRE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline void
rdti_put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void
rdti_put_u32(uint8_t *p, uint32_t v)
{
    rdti_put_u16(p, (uint16_t)v);
    rdti_put_u16(p + 2, (uint16_t)(v >> 16));
}

static inline void
rdti_put_u64(uint8_t *p, uint64_t v)
{
    rdti_put_u32(p, (uint32_t)v);
    rdti_put_u32(p + 4, (uint32_t)(v >> 32));
}

static inline uint16_t
rdti_get_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t
rdti_get_u32(const uint8_t *p)
{
    return (uint32_t)rdti_get_u16(p) | (uint32_t)rdti_get_u16(p + 2) << 16;
}

static inline uint64_t
rdti_get_u64(const uint8_t *p)
{
    return (uint64_t)rdti_get_u32(p) | (uint64_t)rdti_get_u32(p + 4) << 32;
}

/* A cursor that stops at the first overrun: read all fields, then check is_ok once. */
struct rdti_reader {
    const uint8_t *p;
    size_t left;
    bool is_ok;
};

static inline const uint8_t *
rdti_read_bytes(struct rdti_reader *r, size_t n)
{
    const uint8_t *at = r->p;

    if (!r->is_ok || r->left < n) {
        r->is_ok = false;
        return NULL;
    }
    r->p += n;
    r->left -= n;
    return at;
}

static inline uint8_t
rdti_read_u8(struct rdti_reader *r)
{
    const uint8_t *p = rdti_read_bytes(r, 1);
    return p != NULL ? *p : 0;
}

static inline uint16_t
rdti_read_u16(struct rdti_reader *r)
{
    const uint8_t *p = rdti_read_bytes(r, 2);
    return p != NULL ? rdti_get_u16(p) : 0;
}

static inline uint32_t
rdti_read_u32(struct rdti_reader *r)
{
    const uint8_t *p = rdti_read_bytes(r, 4);
    return p != NULL ? rdti_get_u32(p) : 0;
}

static inline uint64_t
rdti_read_u64(struct rdti_reader *r)
{
    const uint8_t *p = rdti_read_bytes(r, 8);
    return p != NULL ? rdti_get_u64(p) : 0;
}

/* The same for writing into a buffer of known capacity. */
struct rdti_writer {
    uint8_t *p;
    size_t left;
    bool is_ok;
};

static inline uint8_t *
rdti_write_bytes(struct rdti_writer *w, const void *src, size_t n)
{
    uint8_t *at = w->p;

    if (!w->is_ok || w->left < n) {
        w->is_ok = false;
        return NULL;
    }
    if (src != NULL)
        memcpy(at, src, n);
    w->p += n;
    w->left -= n;
    return at;
}

static inline void
rdti_write_u8(struct rdti_writer *w, uint8_t v)
{
    (void)rdti_write_bytes(w, &v, 1);
}

static inline void
rdti_write_u16(struct rdti_writer *w, uint16_t v)
{
    uint8_t b[2];
    rdti_put_u16(b, v);
    (void)rdti_write_bytes(w, b, sizeof(b));
}

static inline void
rdti_write_u32(struct rdti_writer *w, uint32_t v)
{
    uint8_t b[4];
    rdti_put_u32(b, v);
    (void)rdti_write_bytes(w, b, sizeof(b));
}

static inline void
rdti_write_u64(struct rdti_writer *w, uint64_t v)
{
    uint8_t b[8];
    rdti_put_u64(b, v);
    (void)rdti_write_bytes(w, b, sizeof(b));
}

#endif
