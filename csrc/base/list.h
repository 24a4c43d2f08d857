/* SPDX-License-Identifier: Apache-2.0
 * Intrusive doubly linked list with a sentinel head. The caller owns nodes and locking. */
#ifndef RDTI_BASE_LIST_H
#define RDTI_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct rdti_list {
    struct rdti_list *next;
    struct rdti_list *prev;
};

#define RDTI_CONTAINER(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))

static inline void
rdti_list_init(struct rdti_list *head)
{
    head->next = head;
    head->prev = head;
}

static inline bool
rdti_list_is_empty(const struct rdti_list *head)
{
    return head->next == head;
}

static inline void
rdti_list_append(struct rdti_list *head, struct rdti_list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

/* Unlink. The node is then an empty list, so a second removal is harmless. */
static inline void
rdti_list_remove(struct rdti_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    rdti_list_init(node);
}

/* The first node, unlinked, or NULL. */
static inline struct rdti_list *
rdti_list_take_first(struct rdti_list *head)
{
    struct rdti_list *node = head->next;

    if (node == head)
        return NULL;
    rdti_list_remove(node);
    return node;
}

/* Moves every node of `from` to the end of `to`. */
static inline void
rdti_list_splice(struct rdti_list *to, struct rdti_list *from)
{
    if (rdti_list_is_empty(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    rdti_list_init(from);
}

#endif
