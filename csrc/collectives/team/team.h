/* SPDX-License-Identifier: Apache-2.0
 * What the members of a group share where all of them are on one host: each has a board in its
 * arena, which the others hold (rdt_endpoint_hold()); and, where they are on several, which of them
 * share one. The members of a host then have a team of their own, whose verdict is DIRECT.
 *
 *   verdict    is                                          leaves by
 *   UNDECIDED  addresses of boards and votes are on their  every vote is here -> DIRECT if all say
 *              way; collectives wait for them              so, HOSTS if some hosts have
 *                                                         several members, else MESSAGES
 *   DIRECT     every collective of the group goes over     -
 *              the boards
 *   HOSTS      the members of one host use its boards, and  -
 *              some of them send messages to other hosts
 *   MESSAGES   every collective goes over the mailbox      -
 *
 * The group's first collective, the founder, carries the exchange, so that ranks that disagree on
 * it learn how, and deadlines and deaths are its own. A verdict is the same on all members.
 *
 * A board has two stages. Work proceeds by ticks, 1, 2, ..., counted over all collectives of the
 * group: at tick t a member fills its stage t % 2, stores t into the tick's line, then uses the
 * peers' stages t % 2. It fills all of a stage only when every peer has stored t - 1: then no
 * member uses the stage's content of tick t - 2 any more. So a tick costs one exchange of cache
 * lines, and no member ever writes into another's board. Data that a member stored stays for the
 * others also after it has left.
 *
 * A member that needs nothing of others, as the root of a broadcast, runs ahead of them where its
 * part is small: by the lines, of which there are RDTI_AHEAD_TICKS, and by a slot, an eighth of the
 * stage, for data that does not fit a line. It fills the line of tick t when every peer has stored
 * t - RDTI_AHEAD_TICKS + 1. It fills a slot when every peer has also stored the tick that came
 * after the last one which had all of that stage. Else each member would have to have a core once
 * for every tick, where members outnumber cores.
 *
 * Threads: collectives take turns, in the order of their tickets; the one whose turn it is owns all
 * that is not atomic. Peers' bytes are copied before they are checked, and never trusted for a size
 * or an address.
 */
#ifndef RDTI_COLLECTIVES_TEAM_TEAM_H
#define RDTI_COLLECTIVES_TEAM_TEAM_H

#include <stdatomic.h>
#include <stdbool.h>

#include "collectives/schedule/scratch.h"
#include "rdmatensor.h"

struct rdti_coll;
struct rdti_costs;
struct rdti_direct;
struct rdti_founding;
struct rdti_places;

enum {
    /* Larger groups send messages: each tick reads a line of every peer. */
    RDTI_TEAM_MAX = 64,
    RDTI_LINE_BYTES = 64,
    /* A board takes 2 MiB, the granule in which the arena takes pages. All_reduce of 1 MiB: 75 us
     * with stages of 1 MiB, 92 us with 256 KiB. */
    RDTI_STAGE_BYTES = 1024 * 1024 - 4096,
    RDTI_INLINE_BYTES = 24,                                      /* payload that fits the line */
    RDTI_AHEAD_TICKS = 16,                                       /* lines; more was not tried */
    RDTI_SLOT_BYTES = RDTI_STAGE_BYTES / (RDTI_AHEAD_TICKS / 2), /* of a stage: a small part */
    /* Passes over less are not timed: they take no longer than reading the clock twice. */
    RDTI_TIMED_FROM_BYTES = 4096,
};

/* What a pass over payload is for. One that sums and writes the sum to others as it goes is one. A
 * lossy one encodes, decodes or sums what was encoded. */
enum rdti_pass { RDTI_PASS_SUM, RDTI_PASS_COPY, RDTI_PASS_LOSSY, RDTI_PASSES };

/* Written by the owner only. */
struct rdti_line {
    _Atomic uint64_t tick;        /* of the content of the line; stored last */
    struct rdt_message_desc desc; /* of the collective whose first tick it is */
    union {
        uint64_t steps; /* all_to_all: ticks that the owner needs */
        uint8_t payload[RDTI_INLINE_BYTES];
    } u;
};
_Static_assert(sizeof(struct rdti_line) == RDTI_LINE_BYTES, "a line is one cache line");

struct rdti_tick {
    struct rdti_line line;
    uint8_t pad[RDTI_LINE_BYTES]; /* the pair of lines that is prefetched together */
};

/* For sums in place: which members work in others' memory, and which have given up. seq_cst: a
 * member stores `is_busy` and then checks for one that has stopped; one that stops stores that and
 * then checks for busy ones; so one of the two sees the other. */
struct rdti_board_flags {
    _Atomic uint32_t is_busy;
    _Atomic uint32_t has_stopped; /* permanently: the group is broken */
    uint8_t pad[2 * RDTI_LINE_BYTES - 8];
};

struct rdti_board {
    struct rdti_tick ticks[RDTI_AHEAD_TICKS];
    struct rdti_board_flags place;
    _Alignas(RDTI_LINE_BYTES) uint8_t stages[2][RDTI_STAGE_BYTES];
};

_Static_assert(RDTI_AHEAD_TICKS % 2 == 0, "a line and its stage go round together");
_Static_assert(RDTI_SLOT_BYTES % RDTI_LINE_BYTES == 0, "no two slots share a line");
_Static_assert(sizeof(struct rdti_board) <= (size_t)2 << 20, "a board fits one granule");

enum { RDTI_VERDICT_UNDECIDED = 0, RDTI_VERDICT_DIRECT, RDTI_VERDICT_MESSAGES, RDTI_VERDICT_HOSTS };

/* hosts.c: which members are on which host; the same on all members, but for `own` and `index`.
 * Hosts are counted in the order of their first members. */
struct rdti_hosts {
    uint32_t count;
    uint32_t least;                    /* members of the smallest */
    uint32_t most;                     /* members of the largest */
    uint32_t own;                      /* this host */
    uint32_t index;                    /* position of this member on its host */
    uint32_t of[RDTI_TEAM_MAX];        /* the host of each member */
    uint32_t first[RDTI_TEAM_MAX + 1]; /* where a host's members begin in `ranks` */
    uint32_t ranks[RDTI_TEAM_MAX];     /* by host, then by rank */
};
/* Bit j of can_hold[i]: member i can use the board of j, or, for itself, has one. Members are on
 * one host if each of them can use the boards of all others. */
void rdti_hosts_sort(const uint64_t *can_hold, uint32_t size, uint32_t rank,
                     struct rdti_hosts *out);

static inline uint32_t
rdti_hosts_members(const struct rdti_hosts *hosts, uint32_t host)
{
    return hosts->first[host + 1] - hosts->first[host];
}

struct rdti_team_member {
    rdt_endpoint *endpoint;          /* held; NULL: this member, or not yet */
    struct rdt_remote_region remote; /* of its board */
    struct rdti_board *board;
    struct rdti_places *places; /* in_place.c: its known tensors; NULL: none yet */
};

enum { RDTI_RAN_MAX = 16 /* names of algorithms; there are ten */ };

/* How many collectives an algorithm has carried to their end. */
struct rdti_ran {
    _Atomic(const char *) name; /* static text; NULL: none, nor in later entries */
    atomic_ullong count;
};

/* What lossy collectives sent, what exact ones would have, and blocks that are not numbers as they
 * were. */
struct rdti_lossy_counts {
    atomic_ullong sent_bytes;
    atomic_ullong exact_bytes;
    atomic_ullong not_finite;
    atomic_ullong saturated;
};

struct rdti_team {
    atomic_uint refs; /* the group, collectives */
    uint32_t rank;
    uint32_t size;
    bool is_ordered; /* select.c: sums use rank order, whatever carries them */
    unsigned choice; /* select.c: RDMATENSOR_ALGO when the team was made */
    rdt_region *region;
    struct rdti_founding *founding; /* until the verdict */
    struct rdti_costs *costs;       /* the same on all members from the verdict on */
    struct rdti_hosts hosts;        /* from the verdict HOSTS on */
    struct rdti_team *local;        /* of this host, likewise; else NULL */
    struct rdti_temps temps;        /* for sums */
    struct rdti_temps landings;     /* for the user's data: see scratch.h */
    atomic_ullong owned_bytes;      /* such memory that persistent collectives have */
    _Atomic(struct rdti_coll *) founder;
    atomic_uint verdict;
    atomic_ullong next_ticket;
    atomic_ullong serving; /* the ticket whose turn it is */
    uint64_t tick;         /* the last one that is over */
    uint64_t whole[2];     /* the last one that had all of a stage; 0: none yet */
    /* Mere numbers: relaxed. */
    atomic_ullong calls;
    atomic_ullong packs;
    atomic_ullong packed_parts;
    atomic_ullong writes;
    atomic_ullong passes_ns[RDTI_PASSES]; /* by whichever threads made them */
    struct rdti_lossy_counts lossy;
    struct rdti_ran ran[RDTI_RAN_MAX];
    struct rdti_team_member members[];
};

/* team.c: the group's team, made at its first collective, with a reference. */
rdt_status rdti_team_get(rdt_group *group, struct rdti_team **out, struct rdt_error *err);
void rdti_team_release(struct rdti_team *team); /* NULL is legal */
/* The verdict HOSTS: `local`, of at least as many members as the group, takes over the boards of
 * this host's members. */
void rdti_team_split(struct rdti_team *team, struct rdti_team *local);
/* Zeroed, with one reference. RDT_ENOMEM. */
rdt_status rdti_team_make(uint32_t size, struct rdti_team **out, struct rdt_error *err);
uint64_t rdti_team_writes(const struct rdti_team *team);
/* Any thread. `name` outlives the team. */
void rdti_team_count_ran(struct rdti_team *team, const char *name);
/* Passes the turn of a ticket to the next. False: it has not come. */
bool rdti_team_pass_turn(struct rdti_team *team, const struct rdti_direct *ticket);

static inline unsigned
rdti_team_verdict(const struct rdti_team *team)
{
    /* acquire: pairs with the release in rdti_team_found(); the boards are there */
    return atomic_load_explicit(&team->verdict, memory_order_acquire);
}

/* A message was sent to a member, or the local board filled for all of them. */
static inline void
rdti_team_count_write(struct rdti_team *team)
{
    (void)atomic_fetch_add_explicit(&team->writes, 1, memory_order_relaxed);
}

/* A pass over this many bytes begins; 0: they are too few to be timed. */
uint64_t rdti_pass_begin(uint64_t len_bytes);
/* The pass that began then has ended. Any thread; NULL: it is not counted. */
void rdti_team_count_pass(struct rdti_team *team, enum rdti_pass pass, uint64_t began_ns);
/* Including those among the members of this host. */
uint64_t rdti_team_passes_ns(const struct rdti_team *team, enum rdti_pass pass);

/* setup.c: the exchange, driven by the founder. RDT_OK: there is a verdict. */
rdt_status rdti_team_found(struct rdti_coll *coll, struct rdt_error *err);
bool rdti_founding_is_quiet(struct rdti_coll *coll);
uint32_t rdti_founding_describe(const struct rdti_coll *coll, char *text, size_t cap);
void rdti_founding_free(struct rdti_team *team);

#endif
