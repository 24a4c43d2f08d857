/* SPDX-License-Identifier: Apache-2.0
 * A rank is killed, stopped or leaves at random moments of a job's life; all others end with an
 * error that names it, nobody hangs, and the rest can go on in a group of their own.
 *
 *   RDT_TEST_SWEEP=N             points instead of the few of the quick form; from 100 on, phases
 *                                that no end has hit count as a failure
 *   RDT_TEST_SWEEP_SEED=K        other points
 *   RDT_TEST_SWEEP_POINT=I       only the point of that number
 *   RDT_TEST_SWEEP_TRANSPORTS=shm,tcp   which; verbs needs a device
 */
#include "sweep_work.h"

#define POINTS_QUICK 16
#define STOPS_QUICK 1 /* each takes as long as silence that counts as death */
#define POINTS_THAT_COVER 100
#define COVERED 0.8
#define POINTS_MAX 10000
/* From a kill to the last survivor's error, as one host promises it, and what is added where the
 * machine has no core free: a bare fork, kill and waitpid is timed next to each kill (its end, and
 * one wake-up), and between a kill and the last error lie about ten such steps: the end, the
 * progress thread of each of three survivors, the news that one tells the others, the thread that
 * waits, its error; each twice, as the rank's own threads take turns as well. */
#define WORST_KILL_S 2.0
#define MEDIAN_KILL_S 0.1
#define KILL_FLOORS 20
#define MOST_KILL_S 10.0 /* whatever the machine has to do */
#define KILLS_FOR_A_MEDIAN 20
#define LONGEST_DELAY_NS (20 * SWEEP_MS)

struct tally {
    uint32_t hits[SWEEP_PHASES];
    uint32_t hows[3];
    uint32_t failed;
    uint64_t kill_ns[POINTS_MAX];
    uint64_t floor_ns[POINTS_MAX]; /* as many, at the same times */
    uint32_t kill_count;
    uint64_t longest_ns; /* of a point, and its number */
    uint32_t longest;
    uint64_t rng;
};

static uint64_t
env_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text == NULL || text[0] == '\0' ? otherwise : strtoull(text, NULL, 10);
}

static uint64_t
draw(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint32_t
transports(uint32_t out[3])
{
    const char *wanted = getenv("RDT_TEST_SWEEP_TRANSPORTS");
    const char *verbs = getenv("RDT_TEST_VERBS");
    uint32_t count = 0;

    if (wanted == NULL)
        wanted = verbs != NULL && strcmp(verbs, "device") == 0 ? "verbs" : "shm,tcp";
    for (uint32_t t = RDT_TRANSPORT_SHM; t <= RDT_TRANSPORT_VERBS; t++)
        if (strstr(wanted, sweep_transports[t]) != NULL)
            out[count++] = t;
    CHECK_MSG(count > 0, "no transport in RDT_TEST_SWEEP_TRANSPORTS=%s", wanted);
    return count;
}

/* ---- Points ---------------------------------------------------------------------------------- */

/* Every phase once before any twice. */
static enum sweep_phase
draw_phase(uint64_t *rng, uint32_t number, uint32_t order[SWEEP_PHASES])
{
    if (number % SWEEP_PHASES == 0) {
        for (uint32_t i = 0; i < SWEEP_PHASES; i++)
            order[i] = i;
        for (uint32_t i = SWEEP_PHASES - 1; i > 0; i--) {
            const uint32_t j = (uint32_t)(draw(rng) % (i + 1));
            const uint32_t kept = order[i];
            order[i] = order[j];
            order[j] = kept;
        }
    }
    return (enum sweep_phase)order[number % SWEEP_PHASES];
}

static void
draw_point(uint64_t *rng, uint32_t number, uint32_t *order, struct sweep_point *out)
{
    static const uint64_t counts[] = {1, 100, 5000, 200000};
    uint32_t which[3];
    const uint32_t transport_count = transports(which);
    const uint64_t how = draw(rng) % 20;

    *out = (struct sweep_point){
        .number = number,
        .transport = which[draw(rng) % transport_count],
        .size = 2 + (uint32_t)(draw(rng) % (SWEEP_RANKS_MAX - 1)),
        .how = how < 12   ? SWEEP_KILLED
               : how < 17 ? SWEEP_LEFT
                          : SWEEP_STOPPED,
        .phase = draw_phase(rng, number, order),
        .count = counts[draw(rng) % 4],
    };
    out->victim = (uint32_t)(draw(rng) % out->size);
    /* Often soon; set-up and teardown last for a millisecond or so. */
    const uint64_t halvings = draw(rng) % 8;
    const bool is_short = out->phase < SWEEP_BROADCAST || out->phase == SWEEP_TEARDOWN;
    out->delay_ns = draw(rng) % (LONGEST_DELAY_NS >> (is_short ? 4 + halvings : halvings));
}

/* ---- Judgement ------------------------------------------------------------------------------- */

#define EXPECT(condition, ...)                                  \
    do {                                                        \
        if (!(condition)) {                                     \
            printf("  wrong: rank %u: %s: ", rank, #condition); \
            printf(__VA_ARGS__);                                \
            printf("\n");                                       \
            return false;                                       \
        }                                                       \
    } while (0)

static bool
is_status_right(const struct sweep_board *board, const struct sweep_outcome *out, uint32_t rank)
{
    const struct sweep_point *p = &board->point;
    const struct sweep_rank *r = &board->ranks[rank];

    switch (r->end.status) {
    case RDT_EPEER:
        return true;
    case RDT_OK: /* the phase may be over by then: who goes at the very end is missed by nobody */
        return p->phase < SWEEP_BROADCAST || p->phase == SWEEP_TEARDOWN;
    case RDT_ETIMEDOUT: /* nobody had a path to it yet, by which a death is noticed */
        return out->hit <= SWEEP_CONNECT;
    case RDT_ESTALE: /* who leaves gives up its slots and regions first */
    case RDT_ECLOSED:
        return p->how == SWEEP_LEFT && r->end.phase >= SWEEP_WRITE;
    default:
        return false;
    }
}

/* Whether it is one of a list. */
static bool
is_call_of(const char *call, const char *calls)
{
    const size_t len = strlen(call);

    for (const char *at = calls; (at = strstr(at, call)) != NULL; at += len)
        if ((at == calls || at[-1] == ' ') && (at[len] == '\0' || at[len] == ' '))
            return true;
    return false;
}

/* That the error must have for the operation; NULL: the call is the operation. */
static const char *
words_of(const struct sweep_rank *r)
{
    if (r->end.phase == SWEEP_PREPARE && is_call_of(r->end.call, SWEEP_COLL))
        return SWEEP_PREPARE_WORDS;
    return sweep_phases[r->end.phase].words;
}

static bool
is_survivor_right(struct sweep_board *board, const struct sweep_outcome *out, uint32_t rank)
{
    const struct sweep_point *p = &board->point;
    const struct sweep_rank *r = &board->ranks[rank];
    const int status = out->statuses[rank];
    const char *words = words_of(r);
    char name[16];

    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "it ended with status 0x%x", status);
    EXPECT(atomic_load(&board->ranks[rank].life) == SWEEP_CLOSED, "it did not close");
    EXPECT(is_status_right(board, out, rank), "%s", rdt_status_name(r->end.status));
    if (r->end.status == RDT_OK)
        return true;
    (void)snprintf(name, sizeof(name), "rank %u", p->victim);
    EXPECT(strstr(r->end.message, name) != NULL, "its error does not name rank %u", p->victim);
    EXPECT(r->end.peer_rank == (int32_t)p->victim, "its error is of rank %d",
           (int)r->end.peer_rank);
    EXPECT(words == NULL || strstr(r->end.message, words) != NULL,
           "its error does not say that it was in %s", words);
    EXPECT(is_call_of(r->end.call, sweep_phases[r->end.phase].calls), "%s is no call of %s",
           r->end.call, sweep_phases[r->end.phase].name);
    return true;
}

static bool
is_victim_right(const struct sweep_board *board, const struct sweep_outcome *out)
{
    const struct sweep_point *p = &board->point;
    const uint32_t rank = p->victim;
    const int status = out->statuses[rank];
    const bool has_gone = WIFEXITED(status) && WEXITSTATUS(status) == 0;

    if (p->how == SWEEP_LEFT || out->hit == SWEEP_TEARDOWN)
        EXPECT(has_gone || (WIFSIGNALED(status) && p->how != SWEEP_LEFT), "status 0x%x", status);
    else
        EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status 0x%x", status);
    return true;
}

/* When the last survivor had its error; 0: none had one. */
static uint64_t
last_error_ns(const struct sweep_board *board)
{
    uint64_t last_ns = 0;

    for (uint32_t i = 0; i < board->point.size; i++)
        if (board->ranks[i].end.status != RDT_OK && board->ranks[i].end.at_ns > last_ns)
            last_ns = board->ranks[i].end.at_ns;
    return last_ns;
}

static void
judge(struct tally *tally, struct sweep_board *board, const struct sweep_outcome *out)
{
    const struct sweep_point *p = &board->point;
    const uint64_t last_ns = last_error_ns(board);
    bool is_right = !out->is_hung && is_victim_right(board, out);

    for (uint32_t i = 0; !out->is_hung && i < p->size; i++)
        if (i != p->victim)
            is_right = is_survivor_right(board, out, i) && is_right;
    if (test_now_ns() - out->began_ns > tally->longest_ns) {
        tally->longest_ns = test_now_ns() - out->began_ns;
        tally->longest = p->number;
    }
    tally->hits[out->hit]++;
    tally->hows[p->how]++;
    /* Nobody can hear of the death of somebody that has not said where it listens. */
    if (p->how == SWEEP_KILLED && out->hit > SWEEP_CONTEXT && last_ns > out->at_ns) {
        tally->floor_ns[tally->kill_count] = out->floor_ns;
        tally->kill_ns[tally->kill_count++] = last_ns - out->at_ns;
    }
    if (is_right)
        return;
    tally->failed++;
    if (!out->is_hung)
        sweep_print(board);
}

static int
by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* The promise, and the room that this machine needs at this time, up to a limit. */
static uint64_t
kill_limit_ns(double promised_s, uint64_t floor_ns)
{
    const uint64_t wanted_ns = sweep_patience_ns(promised_s) + KILL_FLOORS * floor_ns;
    const uint64_t most_ns = sweep_patience_ns(MOST_KILL_S);

    return wanted_ns < most_ns ? wanted_ns : most_ns;
}

static void
report_kills(struct tally *tally)
{
    const uint32_t count = tally->kill_count;

    if (count == 0)
        return;
    qsort(tally->kill_ns, count, sizeof(tally->kill_ns[0]), by_value);
    qsort(tally->floor_ns, count, sizeof(tally->floor_ns[0]), by_value);
    const uint64_t median_ns = tally->kill_ns[count / 2];
    const uint64_t worst_ns = tally->kill_ns[count - 1];
    const uint64_t most_median_ns = kill_limit_ns(MEDIAN_KILL_S, tally->floor_ns[count / 2]);
    const uint64_t most_worst_ns = kill_limit_ns(WORST_KILL_S, tally->floor_ns[count - 1]);
    printf("  sweep: from the kill to the last error: median %.1f ms (limit %.0f), worst %.1f ms "
           "(limit %.0f), of %u; a bare end: median %.2f ms, worst %.2f ms\n",
           (double)median_ns / 1e6, (double)most_median_ns / 1e6, (double)worst_ns / 1e6,
           (double)most_worst_ns / 1e6, count, (double)tally->floor_ns[count / 2] / 1e6,
           (double)tally->floor_ns[count - 1] / 1e6);
    fflush(stdout);
    if (count >= KILLS_FOR_A_MEDIAN)
        CHECK_UINT_LE(median_ns, most_median_ns);
    CHECK_UINT_LE(worst_ns, most_worst_ns);
}

static void
report(struct tally *tally, uint64_t points, uint64_t began_ns)
{
    uint32_t covered = 0;

    printf("  sweep: %" PRIu64
           " points in %.1f s: %u killed, %u stopped, %u left; the longest, %u, took %.1f s\n"
           "  sweep: phases hit:",
           points, (double)(test_now_ns() - began_ns) * 1e-9, tally->hows[SWEEP_KILLED],
           tally->hows[SWEEP_STOPPED], tally->hows[SWEEP_LEFT], tally->longest,
           (double)tally->longest_ns * 1e-9);
    for (uint32_t i = 0; i < SWEEP_PHASES; i++) {
        printf(" %s %u%s", sweep_phases[i].name, tally->hits[i], i + 1 < SWEEP_PHASES ? "," : "\n");
        covered += tally->hits[i] > 0;
    }
    fflush(stdout);
    CHECK_MSG(tally->failed == 0, "%u points of %" PRIu64 " went wrong", tally->failed, points);
    report_kills(tally);
    if (points >= POINTS_THAT_COVER)
        CHECK_MSG(covered >= COVERED * SWEEP_PHASES, "only %u of %u phases were hit", covered,
                  SWEEP_PHASES);
}

TEST_TIMEOUT(a_rank_that_ends_anywhere_is_named_by_the_others, 590)
{
    const uint64_t points = env_number("RDT_TEST_SWEEP", POINTS_QUICK);
    const uint64_t only = env_number("RDT_TEST_SWEEP_POINT", UINT64_MAX);
    const uint64_t began_ns = test_now_ns();
    struct tally *tally = calloc(1, sizeof(*tally));
    const struct leftovers before = leftovers_now();
    uint32_t order[SWEEP_PHASES];

    CHECK_INT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); /* whom a rank leaves behind is ours */
    CHECK(tally != NULL && points > 0 && points <= POINTS_MAX);
    tally->rng = env_number("RDT_TEST_SWEEP_SEED", 1);
    for (uint32_t i = 0; i < points; i++) {
        struct sweep_outcome out;
        struct sweep_board *board =
            mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(board != MAP_FAILED);
        draw_point(&tally->rng, i, order, &board->point);
        if (points <= POINTS_QUICK && only == UINT64_MAX &&
            tally->hows[SWEEP_STOPPED] >= STOPS_QUICK && board->point.how == SWEEP_STOPPED)
            board->point.how = SWEEP_KILLED;
        if (only == UINT64_MAX || only == i) {
            sweep_run(board, sweep_live, &out);
            judge(tally, board, &out);
        }
        (void)munmap(board, sizeof(*board));
    }
    report(tally, only == UINT64_MAX ? points : 1, began_ns);
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
    leftovers_check(&before, "the sweep");
    free(tally);
}

TEST_MAIN()
