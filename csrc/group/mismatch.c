/* SPDX-License-Identifier: Apache-2.0
 * Error messages for ranks that disagree. */
#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "group/group_impl.h"
#include "message/request_impl.h"
#include "wire/group/lossy_code.h"

/* An operation's description fits. */
#define WORDS_BYTES 160
/* As collectives mark the digest of a pack; a label lacks it. */
#define PACK_DIGEST_FLAG 0x8000

static const char *
mismatch_name_of(const char *const *names, uint32_t count, uint32_t value)
{
    return value < count && names[value] != NULL ? names[value] : "unknown";
}

static const char *
mismatch_reduce_name(uint32_t reduce_op)
{
    static const char *const names[] = {[RDT_SUM] = "sum",         [RDT_AVG] = "avg",
                                        [RDT_PRODUCT] = "product", [RDT_MIN] = "min",
                                        [RDT_MAX] = "max",         [RDT_BAND] = "band",
                                        [RDT_BOR] = "bor",         [RDT_BXOR] = "bxor"};

    return mismatch_name_of(names, sizeof(names) / sizeof(names[0]), reduce_op);
}

static const char *
mismatch_op_name(uint32_t op)
{
    static const char *const names[] = {
        [RDT_COLL_BROADCAST] = "broadcast", [RDT_COLL_ALLREDUCE] = "all_reduce",
        [RDT_COLL_REDUCE] = "reduce",       [RDT_COLL_ALLGATHER] = "all_gather",
        [RDT_COLL_GATHER] = "gather",       [RDT_COLL_REDUCE_SCATTER] = "reduce_scatter",
        [RDT_COLL_SCATTER] = "scatter",     [RDT_COLL_ALLTOALL] = "all_to_all",
        [RDT_COLL_BARRIER] = "barrier"};

    return mismatch_name_of(names, sizeof(names) / sizeof(names[0]), op);
}

/* " from root 0"; for a pack the digest of its sizes, for another all_reduce its label. */
static void
mismatch_root_in_words(const struct rdt_message_desc *desc, char *words, size_t cap)
{
    const uint32_t op = desc->op & RDT_DESC_MASK;
    const bool is_from_root = op == RDT_COLL_BROADCAST || op == RDT_COLL_SCATTER;
    const bool is_to_root = op == RDT_COLL_REDUCE || op == RDT_COLL_GATHER;

    words[0] = '\0';
    if (is_from_root || is_to_root)
        (void)snprintf(words, cap, " %s root %" PRIu32, is_to_root ? "to" : "from", desc->root);
    else if ((desc->root & PACK_DIGEST_FLAG) != 0)
        (void)snprintf(words, cap, " in parts (digest 0x%04" PRIx32 ")", desc->root);
    else if (desc->root != 0)
        (void)snprintf(words, cap, " with label %" PRIu32, desc->root);
}

/* "all_reduce (sum) of 4 float32", "broadcast of 4 float32 from root 0". */
static void
mismatch_in_words(const struct rdt_message_desc *desc, char *words, size_t cap)
{
    const uint32_t op = desc->op & RDT_DESC_MASK;
    const bool is_reduction =
        op == RDT_COLL_ALLREDUCE || op == RDT_COLL_REDUCE || op == RDT_COLL_REDUCE_SCATTER;
    const uint32_t number =
        (desc->dtype & ~RDT_DESC_MASK) | (desc->reduce_op & ~RDT_DESC_MASK) >> RDT_DESC_BITS;
    char kind[40] = "";
    char root[40];

    if (number != 0)
        (void)snprintf(kind, sizeof(kind), "the persistent (number %" PRIu32 ") ", number);
    if (op == RDT_COLL_BARRIER) {
        (void)snprintf(words, cap, "%sbarrier", kind);
        return;
    }
    mismatch_root_in_words(desc, root, sizeof(root));
    (void)snprintf(words, cap, "%s%s%s%s%s of %" PRIu64 " %s%s%s", kind, mismatch_op_name(op),
                   is_reduction ? " (" : "",
                   is_reduction ? mismatch_reduce_name(desc->reduce_op & RDT_DESC_MASK) : "",
                   is_reduction ? ")" : "", desc->count,
                   rdt_dtype_name(desc->dtype & RDT_DESC_MASK), rdti_lossy_words(desc->op), root);
}

static bool
mismatch_is_equal(const struct rdti_message *head, const struct rdt_message_desc *desc)
{
    return head->op == desc->op && head->dtype == desc->dtype &&
           head->reduce_op == desc->reduce_op && head->root == desc->root &&
           head->count == desc->count;
}

/* Out of line, so that a receive that matches formats no text. */
static rdt_status
mismatch_refuse_call(const struct rdti_request *receive, uint32_t source,
                     const struct rdti_message *head, struct rdt_error *err)
{
    const struct rdt_message_desc theirs = {.op = head->op,
                                            .dtype = head->dtype,
                                            .root = head->root,
                                            .reduce_op = head->reduce_op,
                                            .count = head->count};
    char they[WORDS_BYTES];
    char we[WORDS_BYTES];

    mismatch_in_words(&theirs, they, sizeof(they));
    mismatch_in_words(&receive->desc, we, sizeof(we));
    return rdti_error_set_rank(err, RDT_EMISMATCH, rdti_scope_global_rank(receive->scope, source),
                               "%s called %s as collective #%" PRIu64 ", %s (this one) %s",
                               rdti_scope_rank_name(receive->scope, source).text, they,
                               receive->desc.sequence,
                               rdti_scope_rank_name(receive->scope, receive->scope->rank).text, we);
}

static rdt_status
mismatch_refuse_length(const struct rdti_request *receive, uint32_t source,
                       const struct rdti_message *head, struct rdt_error *err)
{
    return rdti_error_set_rank(err, RDT_EMISMATCH, rdti_scope_global_rank(receive->scope, source),
                               "%s sent %" PRIu64 " bytes (tag %" PRIu64
                               "), but the receive of %s has room for %" PRIu64 " bytes",
                               rdti_scope_rank_name(receive->scope, source).text, head->len_bytes,
                               head->tag,
                               rdti_scope_rank_name(receive->scope, receive->scope->rank).text,
                               receive->len_bytes);
}

rdt_status
rdti_match_check(const struct rdti_request *receive, uint32_t source,
                 const struct rdti_message *head, struct rdt_error *err)
{
    if (receive->has_desc && receive->desc.op != 0 && head->op != 0 &&
        !mismatch_is_equal(head, &receive->desc))
        return mismatch_refuse_call(receive, source, head, err);
    if (head->len_bytes > receive->len_bytes)
        return mismatch_refuse_length(receive, source, head, err);
    return RDT_OK;
}
