/* SPDX-License-Identifier: Apache-2.0
 * Notifications as words in memory: on a device that places bytes in order, on one that does so by
 * blocks, and on one that does not, where they go wrong if it is insisted upon. */
#include "../harness.h"

#include "sim/sim_impl.h"
#include "transport/verbs/keys.h"
#include "transport/verbs/lane.h"
#include "verbs_rig.h"
#include "wire/notify.h"

#define PLACES 32

/* A buffer of b's with a flag behind its bytes, as a slot of the core's is. */
struct place {
    struct rdti_flag flag;
    struct fake_region *region;
    uint64_t len_bytes;
    uint64_t flag_off;
    uint32_t uses;
};

static struct verbs_pair pair;
static struct place places[PLACES];
static uint32_t place_count;

static void
set(const char *name, const char *value)
{
    CHECK_INT_EQ(setenv(name, value, 1), 0);
}

static void
aim(struct place *place, uint32_t id)
{
    place->flag.word = (_Atomic uint64_t *)(void *)(place->region->addr + place->flag_off);
    place->flag.sequence = rdti_flag_sequence(place->uses);
    place->flag.notification = rdti_notify_slot(id, place->uses);
}

static void
record(struct fake_link *link, uint32_t notification)
{
    if (link->notify_count == link->notify_cap) {
        link->notify_cap = link->notify_cap == 0 ? 64 : 2 * link->notify_cap;
        link->notifications =
            realloc(link->notifications, link->notify_cap * sizeof(link->notifications[0]));
        CHECK_NOT_NULL(link->notifications);
    }
    link->notifications[link->notify_count++] = notification;
}

static void
on_notify(struct fake_link *link, uint32_t notification, void *arg)
{
    uint32_t id;
    uint32_t epoch;

    (void)arg;
    if (rdti_notify_parse(notification, &id, &epoch) == RDTI_NOTIFY_IS_SLOT) {
        places[id].uses++;
        aim(&places[id], id);
    }
    record(link, notification);
}

static void
open_pair(const struct sim_config *config)
{
    place_count = 0;
    memset(places, 0, sizeof(places));
    verbs_pair_open(&pair, config);
    pair.ba.on_notify = on_notify;
    /* What each promises goes over the side channel. */
    for (int i = 0; i < 10; i++) {
        (void)fake_pump(&pair.a);
        (void)fake_pump(&pair.b);
    }
}

static struct place *
add_place(uint64_t len_bytes, uint64_t off_in_page)
{
    struct place *place = &places[place_count];

    place->len_bytes = len_bytes;
    place->region = fake_region_in(&pair.b, fake_segment(&pair.b, off_in_page + len_bytes + 16),
                                   off_in_page, len_bytes + 16);
    place->flag_off = (len_bytes + 7) / 8 * 8;
    aim(place, place_count);
    pair.b.transport->watch_flag(pair.ba.lane, &place->flag);
    place_count++;
    return place;
}

static void
put(struct fake_op *op, struct place *place, const void *src, uint32_t epoch)
{
    fake_write(op, src, place->len_bytes, &place->region->remote, 0,
               rdti_notify_slot((uint32_t)(place - places), epoch));
    op->op.flag_sequence = rdti_flag_sequence(epoch);
    op->op.flag_off = place->flag_off;
    fake_must_start(&pair.ab, op);
}

static uint64_t
flagged(void)
{
    return ((const struct rdti_verbs_lane *)pair.ba.lane)->rx_flagged;
}

static void
explain(const struct fake_link *link, char *text, size_t cap)
{
    link->host->transport->explain(link->lane, text, cap);
}

/* ---- On a device that writes in order ------------------------------------------------------- */

static void
write_sizes(struct sim_config *config, bool is_private, uint64_t most)
{
    static const uint64_t sizes[] = {1,      7,    8,     9,     47,    48,
                                     49,     57,   63,    64,    65,    100,
                                     4096,   4099, 65535, 65536, 65537, (8 << 20) - 16,
                                     8 << 20};
    char text[512];

    set("RDMATENSOR_VERBS_NOTIFY", "flag");
    open_pair(config);
    explain(&pair.ab, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "notify flag");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct place *place = add_place(sizes[i], 0);
        uint8_t *private_src = malloc(sizes[i]);
        uint8_t *src = is_private ? private_src : fake_region(&pair.a, sizes[i])->addr;

        CHECK_NOT_NULL(private_src);
        for (uint32_t use = 0; use < 3; use++) {
            const uint32_t before = pair.ba.notify_count;
            const uint64_t flags_before = flagged();
            struct fake_op op;

            verbs_pattern(src, sizes[i], use);
            put(&op, place, src, use);
            VERBS_PUMP(&pair, pair.ba.notify_count == before + 1);
            CHECK_HEX_EQ(pair.ba.notifications[before], rdti_notify_slot((uint32_t)i, use));
            CHECK_MEM_EQ(place->region->addr, src, sizes[i]);
            CHECK_UINT_EQ(flagged() - flags_before, sizes[i] <= most);
            VERBS_PUMP(&pair, fake_op_is_done(&op));
            CHECK_INT_EQ(op.status, RDT_OK);
        }
        free(private_src);
    }
    verbs_pair_close(&pair);
}

TEST_TIMEOUT(flags_come_with_what_one_request_writes, 60)
{
    struct sim_config config = sim_default();

    config.in_order = SIM_WHOLE;
    write_sizes(&config, false, (8 << 20) - 16);
}

TEST_TIMEOUT(flags_come_from_private_memory, 60)
{
    struct sim_config config = sim_default();

    config.in_order = SIM_WHOLE;
    write_sizes(&config, true, RDTI_VERBS_STAGE_BYTES);
    config.inline_bytes = 0;
    write_sizes(&config, true, RDTI_VERBS_STAGE_BYTES);
}

/* Whether a user notification follows the tensor of this place in this round. */
static bool
has_imm(uint32_t round, uint32_t at)
{
    return (at * 7 + round) % 5 == 0;
}

/* Places between two immediates may come in any order, and across them they may not. */
static void
check_round(uint32_t round, uint32_t at)
{
    for (uint32_t i = 0, from = 0; i < PLACES; i++) {
        uint64_t got = 0;

        if (!has_imm(round, i) && i + 1 < PLACES)
            continue;
        for (uint32_t j = from; j <= i; j++)
            got |= UINT64_C(1) << (pair.ba.notifications[at++] >> 12);
        CHECK_HEX_EQ(got, ((UINT64_C(2) << i) - 1) & ~((UINT64_C(1) << from) - 1));
        if (has_imm(round, i))
            CHECK_HEX_EQ(pair.ba.notifications[at++], rdti_notify_user(i));
        from = i + 1;
    }
}

static void
write_round(uint32_t round, const uint8_t *src, const struct fake_region *other)
{
    static struct fake_op ops[PLACES * 2];
    const uint32_t before = pair.ba.notify_count;
    uint32_t count = 0;

    for (uint32_t i = 0; i < PLACES; i++) {
        put(&ops[count++], &places[i], src, round);
        if (!has_imm(round, i))
            continue;
        fake_write(&ops[count], src, (i + round) % 3 * 100, &other->remote, 0, rdti_notify_user(i));
        fake_must_start(&pair.ab, &ops[count++]);
    }
    VERBS_PUMP(&pair, pair.ba.notify_count == before + count);
    check_round(round, before);
    for (uint32_t i = 0; i < count; i++)
        VERBS_PUMP(&pair, fake_op_is_done(&ops[i]));
}

/* A flag stands where it was written: behind the immediates before it, ahead of those after. What
 * nothing announced before makes an immediate of it. */
TEST_TIMEOUT(flags_and_immediates_keep_their_order, 60)
{
    enum { ROUNDS = 300 };
    struct sim_config config = sim_default();
    struct fake_op ops[2];

    config.in_order = SIM_WHOLE;
    config.delay_us = 20;
    config.duplicates = 10;
    set("RDMATENSOR_VERBS_NOTIFY", "auto");
    open_pair(&config);
    uint8_t *src = fake_region(&pair.a, 4096)->addr;
    struct fake_region *other = fake_region(&pair.b, 4096);
    for (uint32_t i = 0; i < PLACES; i++)
        (void)add_place(8 + i * 32, 0);
    for (uint32_t round = 0; round < ROUNDS; round++)
        write_round(round, src, other);
    CHECK_UINT_EQ(flagged(), ROUNDS * PLACES); /* all of them */
    fake_write(&ops[0], src, 64, &other->remote, 0, RDTI_NOTIFY_NONE);
    fake_must_start(&pair.ab, &ops[0]);
    put(&ops[1], &places[0], src, ROUNDS);
    VERBS_PUMP(&pair, fake_op_is_done(&ops[0]) && fake_op_is_done(&ops[1]) &&
                          places[0].uses == ROUNDS + 1);
    CHECK_UINT_EQ(flagged(), ROUNDS * PLACES);
    put(&ops[1], &places[0], src, ROUNDS + 1);
    VERBS_PUMP(&pair, fake_op_is_done(&ops[1]) && places[0].uses == ROUNDS + 2);
    CHECK_UINT_EQ(flagged(), ROUNDS * PLACES + 1);
    verbs_pair_close(&pair);
}

/* A flag wakes nobody, and nobody sleeps through it. */
TEST_TIMEOUT(who_looks_for_flags_naps, 60)
{
    enum { ROUNDS = 100 };
    struct sim_config config = sim_default();

    config.in_order = SIM_WHOLE;
    set("RDMATENSOR_VERBS_NOTIFY", "flag");
    open_pair(&config);
    struct place *place = add_place(8, 0);
    struct fake_op op;
    put(&op, place, "abcdefgh", 0);
    VERBS_PUMP(&pair, fake_op_is_done(&op) && place->uses == 1);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        const uint64_t deadline_ns = fake_deadline_ns(5);

        put(&op, place, "abcdefgh", i);
        while (place->uses <= i) { /* only sleeps, 5 s each: a nap too long is a test that fails */
            (void)fake_pump_or_sleep(&pair.b, 5 * UINT64_C(1000000000));
            fake_check_deadline(deadline_ns, __FILE__, __LINE__, "seen after a nap");
        }
        VERBS_PUMP(&pair, fake_op_is_done(&op));
    }
    CHECK_UINT_EQ(flagged(), ROUNDS + 1);
    verbs_pair_close(&pair);
}

/* What lies in a flag's place and is not the next flag is nothing. */
TEST(words_that_are_no_flag_are_left_alone)
{
    struct sim_config config = sim_default();
    static const uint32_t sequences[] = {0, 1, 3, 0xffffffff};

    config.in_order = SIM_WHOLE;
    set("RDMATENSOR_VERBS_NOTIFY", "flag");
    open_pair(&config);
    struct place *place = add_place(8, 0);
    _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)(place->region->addr + place->flag_off);
    for (size_t i = 0; i < sizeof(sequences) / sizeof(sequences[0]); i++) {
        atomic_store_explicit(word, htole64(rdti_flag_word(sequences[i], 0)), memory_order_relaxed);
        (void)fake_pump(&pair.b);
    }
    /* The right one, behind an immediate that never comes. */
    atomic_store_explicit(word, htole64(rdti_flag_word(2, 1)), memory_order_relaxed);
    (void)fake_pump(&pair.b);
    CHECK_UINT_EQ(pair.ba.notify_count, 0);
    atomic_store_explicit(word, htole64(rdti_flag_word(2, 0)), memory_order_relaxed);
    (void)fake_pump(&pair.b);
    CHECK_UINT_EQ(pair.ba.notify_count, 1);
    verbs_pair_close(&pair);
}

TEST(a_place_that_was_taken_out_is_not_looked_at)
{
    struct sim_config config = sim_default();

    config.in_order = SIM_WHOLE;
    set("RDMATENSOR_VERBS_NOTIFY", "flag");
    open_pair(&config);
    struct place *place = add_place(8, 0);
    struct place *other = add_place(8, 0);
    struct fake_op op;
    rdti_list_remove(&place->flag.link);
    put(&op, place, "abcdefgh", 0);
    VERBS_PUMP(&pair, fake_op_is_done(&op));
    put(&op, other, "abcdefgh", 0);
    VERBS_PUMP(&pair, fake_op_is_done(&op) && other->uses == 1);
    CHECK_UINT_EQ(pair.ba.notify_count, 1);
    verbs_pair_close(&pair);
}

/* ---- On others ------------------------------------------------------------------------------ */

/* Every byte as the device left it at this moment: it may still write. */
static bool
is_whole(const struct place *place, const uint8_t *want)
{
    for (uint64_t i = 0; i < place->len_bytes; i++)
        if (atomic_load_explicit((_Atomic uint8_t *)&place->region->addr[i],
                                 memory_order_relaxed) != want[i])
            return false;
    return true;
}

static uint8_t want[4096];
static uint32_t early;

static void
check_on_notify(struct fake_link *link, uint32_t notification, void *arg)
{
    early += !is_whole(&places[notification >> 12], want);
    on_notify(link, notification, arg);
}

/* Tensors that are read before they are there. */
static uint32_t
count_early(struct place *place, uint32_t uses)
{
    uint8_t *src = fake_region(&pair.a, place->len_bytes)->addr;

    early = 0;
    pair.ba.on_notify = check_on_notify;
    for (uint32_t use = 0; use < uses; use++) {
        struct fake_op op;

        verbs_pattern(want, place->len_bytes, use);
        memcpy(src, want, place->len_bytes);
        put(&op, place, src, use);
        VERBS_PUMP(&pair, place->uses == use + 1 && fake_op_is_done(&op));
        CHECK_MEM_EQ(place->region->addr, want, place->len_bytes);
    }
    return early;
}

static struct sim_config
slow_device(bool is_scattering, int in_order)
{
    struct sim_config config = sim_default();

    config.is_scattering = is_scattering;
    config.in_order = in_order;
    config.piece_us = 200;
    return config;
}

TEST_TIMEOUT(flags_are_right_where_bytes_land_in_order, 60)
{
    const struct sim_config config = slow_device(false, SIM_WHOLE);

    set("RDMATENSOR_VERBS_NOTIFY", "auto");
    open_pair(&config);
    CHECK_UINT_EQ(count_early(add_place(1000, 0), 50), 0);
    CHECK_UINT_EQ(flagged(), 50);
    verbs_pair_close(&pair);
}

TEST_TIMEOUT(immediates_are_right_where_bytes_land_in_any_order, 60)
{
    const struct sim_config config = slow_device(true, 0);
    char text[512];

    set("RDMATENSOR_VERBS_NOTIFY", "auto");
    open_pair(&config);
    CHECK_UINT_EQ(count_early(add_place(1000, 0), 50), 0);
    CHECK_UINT_EQ(flagged(), 0);
    explain(&pair.ba, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "notify imm (no flag: the device does not promise to write in order)");
    verbs_pair_close(&pair);
}

/* The proof that the question matters: the same, by force. */
TEST_TIMEOUT(flags_are_wrong_where_bytes_land_in_any_order, 60)
{
    const struct sim_config config = slow_device(true, 0);

    set("RDMATENSOR_VERBS_NOTIFY", "flag");
    set("RDMATENSOR_VERBS_FLAG_UNSAFE", "1");
    open_pair(&config);
    const uint32_t count = count_early(add_place(1000, 0), 50);
    CHECK_UINT_EQ(flagged(), 50);
    CHECK_MSG(count > 0, "of %d tensors none was read too early", 50);
    verbs_pair_close(&pair);
}

/* Blocks of 128 bytes that are whole: flags for what lies in one, with its flag. */
TEST_TIMEOUT(flags_keep_within_what_is_promised, 60)
{
    static const struct {
        uint64_t len_bytes;
        uint64_t off;
        bool has_flag;
    } cases[] = {{120, 0, true},  {112, 8, true}, {121, 0, false}, {120, 8, false}, {64, 32, true},
                 {64, 64, false}, {8, 112, true}, {8, 120, false}, {1000, 0, false}};
    const struct sim_config config = slow_device(true, SIM_128);

    set("RDMATENSOR_VERBS_NOTIFY", "flag");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        open_pair(&config);
        CHECK_UINT_EQ(count_early(add_place(cases[i].len_bytes, cases[i].off), 20), 0);
        CHECK_UINT_EQ(flagged(), cases[i].has_flag ? 20 : 0);
        verbs_pair_close(&pair);
    }
}

static void
check_immediates(const char *why)
{
    const struct place *place = add_place(100, 0);
    uint8_t *src = fake_region(&pair.a, 100)->addr;
    char text[512];
    struct fake_op op;

    verbs_pattern(src, 100, 1);
    put(&op, &places[0], src, 0);
    VERBS_PUMP(&pair, place->uses == 1 && fake_op_is_done(&op));
    CHECK_MEM_EQ(place->region->addr, src, 100);
    CHECK_UINT_EQ(flagged(), 0);
    explain(&pair.ba, text, sizeof(text));
    CHECK_STR_CONTAINS(text, why);
}

TEST(several_qps_keep_to_immediates)
{
    struct sim_config config = sim_default();

    config.in_order = SIM_WHOLE;
    set("RDMATENSOR_VERBS_NOTIFY", "flag");
    set("RDMATENSOR_VERBS_QPS", "2");
    open_pair(&config);
    check_immediates("notify imm (no flag: several QPs keep no order among each other)");
    verbs_pair_close(&pair);
}

TEST(a_library_that_cannot_be_asked_says_no)
{
    struct sim_config config = sim_default();
    struct rdti_verbs_ops old = sim_table;

    config.in_order = SIM_WHOLE;
    old.query_qp_data_in_order = NULL;
    set("RDMATENSOR_VERBS_NOTIFY", "flag");
    sim_begin(&config);
    rdti_verbs_use_ops(&old);
    memset(&pair, 0, sizeof(pair));
    fake_host_open(&pair.a, &rdti_transport_verbs);
    fake_host_open(&pair.b, &rdti_transport_verbs);
    fake_connect(&pair.a, &pair.ab, &pair.b, &pair.ba, NULL);
    pair.ba.on_notify = on_notify;
    check_immediates("libibverbs is too old to say");
    verbs_pair_close(&pair);
}

/* Both want it, or there is none: each says so for its own direction. */
TEST(a_peer_that_wants_none_gets_none)
{
    struct sim_config config = sim_default();
    char text[512];

    config.in_order = SIM_WHOLE;
    sim_begin(&config);
    memset(&pair, 0, sizeof(pair));
    fake_host_open(&pair.a, &rdti_transport_verbs);
    set("RDMATENSOR_VERBS_NOTIFY", "flag");
    fake_host_open(&pair.b, &rdti_transport_verbs);
    fake_connect(&pair.a, &pair.ab, &pair.b, &pair.ba, NULL);
    pair.ba.on_notify = on_notify;
    check_immediates("notify imm to the peer, flag from it");
    explain(&pair.ab, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "notify imm");
    verbs_pair_close(&pair);
}

/* ---- Registrations -------------------------------------------------------------------------- */

static bool
has_access(const unsigned int *found, uint32_t count, unsigned int access)
{
    for (uint32_t i = 0; i < count; i++)
        if (found[i] == access)
            return true;
    return false;
}

/* Payloads may be reordered on the bus, what a flag announces may not; and each may do one thing
 * only. */
TEST(each_registration_has_the_access_of_its_purpose)
{
    const unsigned int relaxed = IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_LOCAL_WRITE;
    struct sim_config config = sim_default();
    unsigned int found[8];
    struct fake_op op;

    config.in_order = SIM_WHOLE;
    set("RDMATENSOR_VERBS_NOTIFY", "flag");
    open_pair(&config);
    uint8_t *src = fake_region(&pair.a, 4096)->addr;
    struct place *place = add_place(256, 0);
    put(&op, place, src, 0);
    VERBS_PUMP(&pair, fake_op_is_done(&op) && place->uses == 1);
    CHECK_UINT_EQ(sim_accesses_of(place->region->addr, found, 8), 1);
    CHECK_HEX_EQ(found[0], IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    fake_write(&op, src, 256, &place->region->remote, 0, rdti_notify_user(1));
    fake_must_start(&pair.ab, &op);
    VERBS_PUMP(&pair, fake_op_is_done(&op));
    fake_read(&op, src, 256, &place->region->remote, 0);
    fake_must_start(&pair.ab, &op);
    VERBS_PUMP(&pair, fake_op_is_done(&op));
    CHECK_UINT_EQ(sim_accesses_of(place->region->addr, found, 8), 3);
    CHECK(has_access(found, 3, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    CHECK(has_access(found, 3, relaxed | IBV_ACCESS_REMOTE_WRITE));
    CHECK(has_access(found, 3, relaxed | IBV_ACCESS_REMOTE_READ));
    /* Ours, to send from; and flags on their way out, which no peer may touch. */
    CHECK_UINT_EQ(sim_accesses_of(src, found, 8), 1);
    CHECK_HEX_EQ(found[0], relaxed | IBV_ACCESS_REMOTE_WRITE);
    const struct rdti_verbs_lane *lane = (const struct rdti_verbs_lane *)pair.ab.lane;
    CHECK_UINT_EQ(sim_accesses_of(lane->tails, found, 8), 1);
    CHECK_HEX_EQ(found[0], IBV_ACCESS_LOCAL_WRITE);
    verbs_pair_close(&pair);
}

/* Memory that cannot be registered once more is announced by immediates; a region that is over is
 * over by either way. */
static void
check_refused_key(int sys_errno, uint8_t refusal)
{
    struct sim_config config = sim_default();
    struct fake_op op;

    config.in_order = SIM_WHOLE;
    open_pair(&config);
    uint8_t *src = fake_region(&pair.a, 256)->addr;
    struct place *place = add_place(256, 0);
    sim_fail_named("reg_mr", 0, 1, sys_errno);
    for (uint32_t use = 0; use < 2; use++) {
        put(&op, place, src, use);
        VERBS_PUMP(&pair, fake_op_is_done(&op) && pair.ba.notify_count == use + 1);
        CHECK_INT_EQ(op.status, RDT_OK);
    }
    CHECK_STR_EQ(sim_failed_call(), "reg_mr");
    CHECK_UINT_EQ(flagged(), 0);
    const struct rdti_list *first = ((struct rdti_verbs_lane *)pair.ab.lane)->remotes.next;
    const struct rdti_verbs_remote *strict = RDTI_CONTAINER(first, struct rdti_verbs_remote, link);
    CHECK_INT_EQ(strict->access, RDTI_VERBS_MAY_WRITE_STRICT);
    CHECK_INT_EQ(strict->refusal, refusal);
    struct place *over = add_place(256, 0);
    fake_region_revoke(&pair.b, over->region);
    put(&op, over, src, 0);
    VERBS_PUMP(&pair, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_ESTALE);
    verbs_pair_close(&pair);
}

TEST(a_target_that_is_not_registered_twice_gets_immediates)
{
    set("RDMATENSOR_VERBS_NOTIFY", "flag");
    verbs_limit_memlock(8 << 20);
    check_refused_key(EIO, RDTI_VERBS_NOT_REGISTERED);
    check_refused_key(ENOMEM, RDTI_VERBS_MEMLOCK);
}

TEST_MAIN()
