/* SPDX-License-Identifier: Apache-2.0
 * An interval treap. Recursion is as deep as the tree: about 2 log2 n, 40 for a million spans. */
#include "memory/interval_tree.h"

#include <stdbool.h>
#include <stddef.h>

/* An empty span at p ends between the bytes p and p + 1, and doubled ends can express that: the
 * span holds an empty range at p but no byte, and a span that ends at p holds neither. */
static uint64_t
interval_tree_doubled_end(uint64_t start, uint64_t len_bytes)
{
    return len_bytes == 0 ? 2 * start + 1 : 2 * (start + len_bytes);
}

static void
interval_tree_update(struct rdti_span *node)
{
    node->furthest = node->end;
    if (node->left != NULL && node->left->furthest > node->furthest)
        node->furthest = node->left->furthest;
    if (node->right != NULL && node->right->furthest > node->furthest)
        node->furthest = node->right->furthest;
}

/* The order of nodes: by start, and for equal starts by the nodes' own addresses. */
static bool
interval_tree_is_before(const struct rdti_span *a, const struct rdti_span *b)
{
    return a->start != b->start ? a->start < b->start : (uintptr_t)a < (uintptr_t)b;
}

/* Joins two trees; all nodes of a come before all of b. */
static struct rdti_span *
interval_tree_join(struct rdti_span *a, struct rdti_span *b)
{
    if (a == NULL || b == NULL)
        return a == NULL ? b : a;
    if (a->priority > b->priority) {
        a->right = interval_tree_join(a->right, b);
        interval_tree_update(a);
        return a;
    }
    b->left = interval_tree_join(a, b->left);
    interval_tree_update(b);
    return b;
}

/* Splits a tree: nodes before `pivot` go to *before, the rest to *after. */
static void
interval_tree_split(struct rdti_span *node, const struct rdti_span *pivot,
                    struct rdti_span **before, struct rdti_span **after)
{
    if (node == NULL) {
        *before = NULL;
        *after = NULL;
    } else if (interval_tree_is_before(node, pivot)) {
        interval_tree_split(node->right, pivot, &node->right, after);
        interval_tree_update(node);
        *before = node;
    } else {
        interval_tree_split(node->left, pivot, before, &node->left);
        interval_tree_update(node);
        *after = node;
    }
}

/* splitmix64 of a counter: priorities need to be independent of addresses, not secret. */
static uint64_t
interval_tree_next_priority(struct rdti_span_tree *tree)
{
    uint64_t z = ++tree->count * UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void
rdti_span_insert(struct rdti_span_tree *tree, struct rdti_span *span, uint64_t start,
                 uint64_t len_bytes)
{
    struct rdti_span *before;
    struct rdti_span *after;

    *span = (struct rdti_span){.start = start,
                               .end = interval_tree_doubled_end(start, len_bytes),
                               .priority = interval_tree_next_priority(tree)};
    interval_tree_update(span);
    interval_tree_split(tree->root, span, &before, &after);
    tree->root = interval_tree_join(interval_tree_join(before, span), after);
}

static struct rdti_span *
interval_tree_remove_below(struct rdti_span *node, const struct rdti_span *span)
{
    if (node == span)
        return interval_tree_join(node->left, node->right);
    if (interval_tree_is_before(span, node))
        node->left = interval_tree_remove_below(node->left, span);
    else
        node->right = interval_tree_remove_below(node->right, span);
    interval_tree_update(node);
    return node;
}

void
rdti_span_remove(struct rdti_span_tree *tree, struct rdti_span *span)
{
    tree->root = interval_tree_remove_below(tree->root, span);
}

struct rdti_span *
rdti_span_find(const struct rdti_span_tree *tree, uint64_t start, uint64_t len_bytes)
{
    struct rdti_span *node = tree->root;

    /* No span reaches there; the sum would overflow. */
    if (start > UINT64_MAX / 4 || len_bytes > UINT64_MAX / 4)
        return NULL;
    const uint64_t end = interval_tree_doubled_end(start, len_bytes);

    while (node != NULL && node->furthest >= end) {
        /* Go left if node begins too late, or if a span there reaches far enough: spans there begin
         * at or before node, so one of them holds the range. */
        if (node->start > start || (node->left != NULL && node->left->furthest >= end))
            node = node->left;
        else if (node->end >= end)
            return node;
        else
            node = node->right;
    }
    return NULL;
}
