/* SPDX-License-Identifier: Apache-2.0
 * Intrusive lists: order, removal, splicing. */
#include "base/list.h"

#include "harness.h"

struct item {
    int value;
    struct rdti_list node;
};

/* The list's values as digits, forwards, after checking that the links agree backwards. */
static int
digits(const struct rdti_list *head)
{
    int number = 0;

    for (struct rdti_list *p = head->next; p != head; p = p->next) {
        CHECK_PTR_EQ(p->prev->next, p);
        CHECK_PTR_EQ(p->next->prev, p);
        number = number * 10 + RDTI_CONTAINER(p, struct item, node)->value;
    }
    return number;
}

static struct item items[5] = {{1, {0}}, {2, {0}}, {3, {0}}, {4, {0}}, {5, {0}}};

static void
append_all(struct rdti_list *head, size_t from, size_t to)
{
    rdti_list_init(head);
    for (size_t i = from; i < to; i++)
        rdti_list_append(head, &items[i].node);
}

TEST(append_keeps_order)
{
    struct rdti_list head;

    append_all(&head, 0, 0);
    CHECK(rdti_list_is_empty(&head));
    append_all(&head, 0, 5);
    CHECK(!rdti_list_is_empty(&head));
    CHECK_INT_EQ(digits(&head), 12345);
}

TEST(remove_unlinks_and_may_be_repeated)
{
    struct rdti_list head;

    append_all(&head, 0, 5);
    rdti_list_remove(&items[2].node);
    rdti_list_remove(&items[2].node);
    CHECK_INT_EQ(digits(&head), 1245);
    rdti_list_remove(&items[0].node);
    rdti_list_remove(&items[4].node);
    CHECK_INT_EQ(digits(&head), 24);
}

TEST(take_first_empties_from_the_front)
{
    struct rdti_list head;

    append_all(&head, 0, 3);
    for (size_t i = 0; i < 3; i++)
        CHECK_PTR_EQ(rdti_list_take_first(&head), &items[i].node);
    CHECK_NULL(rdti_list_take_first(&head));
    CHECK(rdti_list_is_empty(&head));
}

TEST(splice_moves_everything_once)
{
    struct rdti_list to;
    struct rdti_list from;

    append_all(&to, 0, 2);
    append_all(&from, 2, 5);
    rdti_list_splice(&to, &from);
    CHECK_INT_EQ(digits(&to), 12345);
    CHECK(rdti_list_is_empty(&from));
    rdti_list_splice(&to, &from);
    CHECK_INT_EQ(digits(&to), 12345);
    rdti_list_splice(&from, &to);
    CHECK_INT_EQ(digits(&from), 12345);
    CHECK(rdti_list_is_empty(&to));
}

TEST_MAIN()
