/* SPDX-License-Identifier: Apache-2.0
 * Segments, and the file of what has no room there. */
#include "ps/rows/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

#define SEGMENT_BYTES (UINT64_C(4) << 20)
#define EXTENT_BYTES (UINT64_C(16) << 20) /* by which the file grows, if it has so many */
/* Before each record in the file: 1 if it was written, and padding that keeps records aligned. */
enum { MARK_WORDS = 2, MARK_BYTES = 8 * MARK_WORDS, FRAMES_LEAST = 64 };

static uint64_t
store_segment_rows(const struct rdti_ps_store *store)
{
    return UINT64_C(1) << store->segment_shift;
}

/* ---- Segments ---------------------------------------------------------------------------- */

static rdt_status
store_add_segment(struct rdti_ps_store *store, struct rdt_error *err)
{
    if (store->segment_count == store->segment_room) {
        const uint64_t room = store->segment_room > 0 ? 2 * store->segment_room : 16;
        rdt_region **segments = realloc(store->segments, room * sizeof(*segments));
        if (segments == NULL)
            return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for %llu segments of rows",
                                  (unsigned long long)room);
        store->segments = segments;
        store->segment_room = room;
    }
    const rdt_status status =
        rdt_region_alloc(store->ctx, store->record_bytes << store->segment_shift, 0,
                         &store->segments[store->segment_count], err);
    if (status == RDT_OK)
        store->segment_count++;
    return status;
}

static rdt_status
store_reserve_segments(struct rdti_ps_store *store, uint64_t rows, struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    while (store->segment_count << store->segment_shift < rows && status == RDT_OK)
        status = store_add_segment(store, err);
    return status;
}

static uint8_t *
store_at(const struct rdti_ps_store *store, uint64_t row)
{
    uint8_t *segment = rdt_region_addr(store->segments[row >> store->segment_shift]);

    return segment + (row & (store_segment_rows(store) - 1)) * store->record_bytes;
}

/* ---- The file ---------------------------------------------------------------------------- */

static uint64_t
store_file_stride(const struct rdti_ps_store *store)
{
    return MARK_BYTES + store->record_bytes;
}

static rdt_status
store_io_error(const char *what, uint64_t row, struct rdt_error *err)
{
    const int number = errno;

    return rdti_error_set(err, RDT_EDEVICE, number, "spill: %s of row %llu failed: %s", what,
                          (unsigned long long)row, number != 0 ? strerror(number) : "end of file");
}

/* Reads or writes all bytes; the file is not shorter. */
static rdt_status
store_transfer(const struct rdti_ps_store *store, uint64_t row, uint64_t off, void *bytes,
               uint64_t len_bytes, bool is_write, struct rdt_error *err)
{
    uint64_t done = 0;

    while (done < len_bytes) {
        const off_t at = (off_t)(row * store_file_stride(store) + off + done);
        uint8_t *from = (uint8_t *)bytes + done;
        errno = 0;
        const ssize_t count = is_write ? pwrite(store->fd, from, len_bytes - done, at)
                                       : pread(store->fd, from, len_bytes - done, at);
        if (count > 0)
            done += (uint64_t)count;
        else if (errno != EINTR)
            return store_io_error(is_write ? "a write" : "a read", row, err);
    }
    return RDT_OK;
}

static rdt_status
store_open(struct rdti_ps_store *store, const char *spill, struct rdt_error *err)
{
    char path[4096];
    const int length = snprintf(path, sizeof(path), "%s/rdmatensor-rows-XXXXXX", spill);

    if (length < 0 || (size_t)length >= sizeof(path))
        return rdti_error_set(err, RDT_EINVAL, 0, "spill: a path of %zu B is too long",
                              strlen(spill));
    store->fd = mkostemp(path, O_CLOEXEC);
    if (store->fd < 0) {
        const int number = errno;
        return rdti_error_set(err, RDT_EDEVICE, number, "spill: no file can be made in %s: %s",
                              spill, strerror(number));
    }
    (void)unlink(path); /* its space is free when this process ends */
    return RDT_OK;
}

static rdt_status
store_reserve_file(struct rdti_ps_store *store, uint64_t rows, struct rdt_error *err)
{
    const uint64_t stride = store_file_stride(store);
    const uint64_t least = EXTENT_BYTES / stride;
    uint64_t more = rows - store->rows;

    if (store->rows > 0 && more < least) /* a table that grows takes whole extents */
        more = least;
    const int number =
        posix_fallocate(store->fd, (off_t)(store->rows * stride), (off_t)(more * stride));
    if (number != 0)
        return rdti_error_set(err, RDT_EDEVICE, number,
                              "spill: no room for %llu more rows of %llu B in the file: %s",
                              (unsigned long long)more, (unsigned long long)stride,
                              strerror(number));
    store->rows += more;
    return RDT_OK;
}

static rdt_status
store_write_back(struct rdti_ps_store *store, uint32_t frame, struct rdt_error *err)
{
    static const uint64_t mark[MARK_WORDS] = {1};
    const uint64_t row = store->owners[frame];
    rdt_status status;

    if (store->is_dirty[frame] == 0)
        return RDT_OK;
    status = store_transfer(store, row, MARK_BYTES, store_at(store, frame), store->record_bytes,
                            true, err);
    if (status == RDT_OK)
        status = store_transfer(store, row, 0, (void *)(uintptr_t)mark, MARK_BYTES, true, err);
    if (status == RDT_OK) {
        store->is_dirty[frame] = 0;
        store->writes++;
    }
    return status;
}

/* Makes room for one more record in the frames. */
static rdt_status
store_make_room(struct rdti_ps_store *store, struct rdt_error *err)
{
    if (store->frames.admitted.count < store->frames.opts.capacity)
        return RDT_OK;
    return store_write_back(store, rdti_ps_keys_oldest(&store->frames)->row, err);
}

/* The record's frame, with its content if it has some. A failure leaves the frames as they are. */
static rdt_status
store_load(struct rdti_ps_store *store, uint64_t row, uint32_t *frame_out, bool *has_content,
           struct rdt_error *err)
{
    uint64_t mark[MARK_WORDS] = {0};
    uint8_t reserved;
    bool is_new;
    rdt_status status = store_make_room(store, err);

    if (status == RDT_OK)
        status = store_transfer(store, row, 0, mark, MARK_BYTES, false, err);
    if (status == RDT_OK)
        status = rdti_ps_keys_reserve(&store->frames, &row, 1, &reserved, err);
    if (status != RDT_OK)
        return status;
    rdti_ps_keys_unreserve(&store->frames, &row, 1, &reserved);
    const uint32_t frame = rdti_ps_keys_push(&store->frames, row, &is_new)->row;
    store->owners[frame] = row;
    store->is_dirty[frame] = 0;
    *frame_out = frame;
    *has_content = mark[0] != 0;
    if (!*has_content)
        return RDT_OK;
    store->reads++;
    status = store_transfer(store, row, MARK_BYTES, store_at(store, frame), store->record_bytes,
                            false, err);
    if (status != RDT_OK)
        rdti_ps_keys_remove(&store->frames, row);
    return status;
}

static rdt_status
store_find(struct rdti_ps_store *store, uint64_t row, uint32_t *frame, bool *has_content,
           struct rdt_error *err)
{
    bool is_new;

    if (rdti_ps_keys_find(&store->frames, row) == NULL)
        return store_load(store, row, frame, has_content, err);
    *frame = rdti_ps_keys_push(&store->frames, row, &is_new)->row; /* it was used now */
    *has_content = true;
    return RDT_OK;
}

/* ---- Both -------------------------------------------------------------------------------- */

static rdt_status
store_init_spill(struct rdti_ps_store *store, const char *spill, uint64_t memory_bytes,
                 struct rdt_error *err)
{
    const uint64_t frames = memory_bytes / store->record_bytes;
    rdt_status status;

    if (frames < FRAMES_LEAST)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "spill: memory of %llu B holds %llu rows of %llu B with their state: "
                              "%d or more are needed on each server",
                              (unsigned long long)memory_bytes, (unsigned long long)frames,
                              (unsigned long long)store->record_bytes, FRAMES_LEAST);
    const struct rdti_ps_keys_opts opts = {.capacity = frames, .admit_after = 1};
    status = rdti_ps_keys_init(&store->frames, &opts, err);
    if (status == RDT_OK)
        status = store_open(store, spill, err);
    if (status != RDT_OK)
        return status;
    store->owners = malloc(frames * sizeof(*store->owners));
    store->is_dirty = calloc(frames, 1);
    if (store->owners == NULL || store->is_dirty == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "spill: no memory for %llu rows",
                              (unsigned long long)frames);
    return store_reserve_segments(store, frames, err);
}

rdt_status
rdti_ps_store_init(struct rdti_ps_store *store, rdt_context *ctx, uint64_t record_bytes,
                   const char *spill, uint64_t memory_bytes, struct rdt_error *err)
{
    *store = (struct rdti_ps_store){.ctx = ctx, .record_bytes = record_bytes, .fd = -1};
    while (store->record_bytes << (store->segment_shift + 1) <= SEGMENT_BYTES)
        store->segment_shift++;
    return spill != NULL ? store_init_spill(store, spill, memory_bytes, err) : RDT_OK;
}

void
rdti_ps_store_free(struct rdti_ps_store *store)
{
    for (uint64_t i = 0; i < store->segment_count; i++)
        rdt_region_free(store->segments[i], NULL, NULL);
    free(store->segments);
    free(store->owners);
    free(store->is_dirty);
    rdti_ps_keys_free(&store->frames);
    if (store->fd >= 0)
        (void)close(store->fd);
}

rdt_status
rdti_ps_store_reserve(struct rdti_ps_store *store, uint64_t rows, struct rdt_error *err)
{
    if (rows <= store->rows)
        return RDT_OK;
    if (store->fd >= 0)
        return store_reserve_file(store, rows, err);
    const rdt_status status = store_reserve_segments(store, rows, err);
    store->rows = store->segment_count << store->segment_shift;
    return status;
}

rdt_status
rdti_ps_store_record(struct rdti_ps_store *store, uint64_t row, bool is_write, float **out,
                     bool *has_content, struct rdt_error *err)
{
    uint32_t frame = (uint32_t)row;

    *has_content = true;
    if (store->fd >= 0) {
        const rdt_status status = store_find(store, row, &frame, has_content, err);
        if (status != RDT_OK)
            return status;
        store->is_dirty[frame] |= is_write;
    }
    *out = (float *)(void *)store_at(store, frame);
    return RDT_OK;
}

uint64_t
rdti_ps_store_memory_bytes(const struct rdti_ps_store *store)
{
    return (store->segment_count << store->segment_shift) * store->record_bytes;
}

uint64_t
rdti_ps_store_file_bytes(const struct rdti_ps_store *store)
{
    return store->fd >= 0 ? store->rows * store_file_stride(store) : 0;
}
