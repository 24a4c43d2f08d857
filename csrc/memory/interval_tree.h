/* SPDX-License-Identifier: Apache-2.0
 * Spans of addresses that may overlap; finds a span that holds a given range. A treap by start, in
 * which each node has the furthest end below it; all operations are O(log n) expected. The caller
 * owns nodes and locking. */
#ifndef RDTI_MEMORY_INTERVAL_TREE_H
#define RDTI_MEMORY_INTERVAL_TREE_H

#include <stdint.h>

struct rdti_span {
    struct rdti_span *left;
    struct rdti_span *right;
    uint64_t start;
    uint64_t end;      /* twice the end address; odd for an empty span (interval_tree.c) */
    uint64_t furthest; /* the greatest `end` of this node and those below it */
    uint64_t priority; /* greater than those below it */
};

struct rdti_span_tree {
    struct rdti_span *root;
    uint64_t count; /* of inserts; seeds the priorities */
};

/* start + len_bytes must be at most UINT64_MAX / 4. Equal and overlapping spans may coexist. */
void rdti_span_insert(struct rdti_span_tree *tree, struct rdti_span *span, uint64_t start,
                      uint64_t len_bytes);
/* The span must be in the tree. */
void rdti_span_remove(struct rdti_span_tree *tree, struct rdti_span *span);
/*
 * A span that holds all of [start, start + len_bytes), or NULL. An empty range lies in a span that
 * holds the byte at start, or in an empty span there. If several do, any of them.
 */
struct rdti_span *rdti_span_find(const struct rdti_span_tree *tree, uint64_t start,
                                 uint64_t len_bytes);

#endif
