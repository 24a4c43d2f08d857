/* SPDX-License-Identifier: Apache-2.0
 * Records of floats by number, which may become more: in segments of the arena, or in a file with
 * those that were used last in the arena.
 *
 * A record that was never written has no content; the file says of each whether it was. */
#ifndef RDTI_PS_ROWS_STORE_H
#define RDTI_PS_ROWS_STORE_H

#include "ps/rows/keys.h"

struct rdti_ps_store {
    rdt_context *ctx;
    uint64_t record_bytes;
    uint64_t rows; /* that there is memory, or a file, for */
    /* Private. */
    uint32_t segment_shift; /* records of a segment, as a power of two */
    rdt_region **segments;
    uint64_t segment_count;
    uint64_t segment_room;
    int fd;                     /* of the file, or -1 */
    struct rdti_ps_keys frames; /* which record is in which frame of the segments */
    uint64_t *owners;           /* of each frame: its record, */
    uint8_t *is_dirty;          /* and whether the file has another content */
    uint64_t reads;
    uint64_t writes;
};

/* spill: a folder for a file that has no name, or NULL; then memory_bytes bounds the records in the
 * arena. RDT_EINVAL, RDT_ENOMEM, RDT_EDEVICE: the folder. */
rdt_status rdti_ps_store_init(struct rdti_ps_store *store, rdt_context *ctx, uint64_t record_bytes,
                              const char *spill, uint64_t memory_bytes, struct rdt_error *err);
void rdti_ps_store_free(struct rdti_ps_store *store);
/* Room for records 0 to rows - 1. RDT_ENOMEM; RDT_EDEVICE: the disk is full. */
rdt_status rdti_ps_store_reserve(struct rdti_ps_store *store, uint64_t rows, struct rdt_error *err);
/* A record, until the next call. *has_content: false if it was never written, where a file knows
 * it; its bytes are undefined then. is_write: it is written now. RDT_EDEVICE: the file. */
rdt_status rdti_ps_store_record(struct rdti_ps_store *store, uint64_t row, bool is_write,
                                float **out, bool *has_content, struct rdt_error *err);
/* In the arena, and in the file. */
uint64_t rdti_ps_store_memory_bytes(const struct rdti_ps_store *store);
uint64_t rdti_ps_store_file_bytes(const struct rdti_ps_store *store);

#endif
