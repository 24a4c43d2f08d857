/* SPDX-License-Identifier: Apache-2.0
 *
 * harness.h - the test harness of the C tests. One test file is one program:
 *
 *     #include "harness.h"
 *     TEST(ring_refuses_a_full_push) { CHECK_INT_EQ(ring_push(&r, 1), RDT_EAGAIN); }
 *     TEST_TIMEOUT(ring_survives_many_rounds, 120) { ... }
 *     TEST_MAIN()
 *
 * Each test runs in a child process and process group of its own, so that a crash, a leak or a
 * hang is charged to one test and nothing it started outlives it. A check that fails prints
 * file:line and ends the child at once, from whatever thread. Each test has an alarm:
 * TEST_DEFAULT_TIMEOUT_S, times the environment's RDT_TEST_TIMEOUT_SCALE (sanitizers set it).
 *
 * Exit status: 0 all passed, 1 something failed, 77 every test was skipped.
 * Arguments: substrings of the tests to run; --list prints the names; --no-fork runs the tests in
 * this process, for a debugger. A skip's reason must match a line of tests/skip_reasons.txt.
 */
#ifndef RDT_TESTS_HARNESS_H
#define RDT_TESTS_HARNESS_H

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    TEST_DEFAULT_TIMEOUT_S = 20, /* a unit test takes milliseconds; this is for a loaded machine */
    TEST_EXIT_FAIL = 1,
    TEST_EXIT_SKIP = 77, /* what automake and CTest (SKIP_RETURN_CODE) agree on */
};

struct test_case {
    const char *name;
    void (*run)(void);
    unsigned timeout_s;
    struct test_case *next;
};

/* Filled by constructors, which gcc and clang run in the order of definition within a file. */
static struct test_case *test_first;
/* unused: in helpers of tests, which define none themselves */
static struct test_case **test_tail __attribute__((unused)) = &test_first;

#define TEST_TIMEOUT(test_name, seconds)                                          \
    static void test_name(void);                                                  \
    __attribute__((constructor)) static void test_register_##test_name(void)      \
    {                                                                             \
        static struct test_case entry = {#test_name, test_name, (seconds), NULL}; \
        *test_tail = &entry;                                                      \
        test_tail = &entry.next;                                                  \
    }                                                                             \
    static void test_name(void)

#define TEST(test_name) TEST_TIMEOUT(test_name, TEST_DEFAULT_TIMEOUT_S)

#define TEST_MAIN()                   \
    int main(int argc, char **argv)   \
    {                                 \
        return test_main(argc, argv); \
    }

/* A fuzzer (tests/fuzz) keeps the input of what is aborted, and takes an exit for none. */
__attribute__((noreturn)) static inline void
test_end_failed(void)
{
    fflush(NULL);
#ifdef RDT_FUZZ
    abort();
#else
    _exit(TEST_EXIT_FAIL);
#endif
}

/* End the running test; usable from any thread. Exit handlers do not run: the test is over. */
#define FAIL(...)                                       \
    do {                                                \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
        fprintf(stderr, __VA_ARGS__);                   \
        fputc('\n', stderr);                            \
        test_end_failed();                              \
    } while (0)

#define SKIP(reason)                      \
    do {                                  \
        printf("  SKIP: %s\n", (reason)); \
        fflush(NULL);                     \
        _exit(TEST_EXIT_SKIP);            \
    } while (0)

#define CHECK(condition)                   \
    do {                                   \
        if (!(condition))                  \
            FAIL("CHECK(%s)", #condition); \
    } while (0)

/* The same with words of one's own: CHECK_MSG(n == 3, "round %d gave %d", round, n). */
#define CHECK_MSG(condition, ...)                       \
    do {                                                \
        if (!(condition)) {                             \
            fprintf(stderr, "CHECK(%s): ", #condition); \
            FAIL(__VA_ARGS__);                          \
        }                                               \
    } while (0)

#define TEST_CMP_(type, format, got, op, want)                                               \
    do {                                                                                     \
        const type test_got_ = (type)(got);                                                  \
        const type test_want_ = (type)(want);                                                \
        if (!(test_got_ op test_want_))                                                      \
            FAIL("%s is %" format ", want %s %s (%" format ")", #got, test_got_, #op, #want, \
                 test_want_);                                                                \
    } while (0)

#define CHECK_INT_EQ(got, want) TEST_CMP_(int64_t, PRId64, got, ==, want)
#define CHECK_INT_NE(got, want) TEST_CMP_(int64_t, PRId64, got, !=, want)
#define CHECK_INT_LT(got, want) TEST_CMP_(int64_t, PRId64, got, <, want)
#define CHECK_INT_LE(got, want) TEST_CMP_(int64_t, PRId64, got, <=, want)
#define CHECK_INT_GE(got, want) TEST_CMP_(int64_t, PRId64, got, >=, want)
#define CHECK_INT_GT(got, want) TEST_CMP_(int64_t, PRId64, got, >, want)
#define CHECK_UINT_EQ(got, want) TEST_CMP_(uint64_t, PRIu64, got, ==, want)
#define CHECK_UINT_LE(got, want) TEST_CMP_(uint64_t, PRIu64, got, <=, want)
#define CHECK_UINT_GE(got, want) TEST_CMP_(uint64_t, PRIu64, got, >=, want)
#define CHECK_HEX_EQ(got, want) TEST_CMP_(uint64_t, PRIx64, got, ==, want)

#define CHECK_PTR_EQ(got, want)                                                 \
    do {                                                                        \
        const void *test_got_ = (got);                                          \
        const void *test_want_ = (want);                                        \
        if (test_got_ != test_want_)                                            \
            FAIL("%s is %p, want %s (%p)", #got, test_got_, #want, test_want_); \
    } while (0)

#define CHECK_NULL(got) CHECK_PTR_EQ(got, NULL)
#define CHECK_NOT_NULL(got) CHECK((got) != NULL)

#define CHECK_STR_EQ(got, want)                                                               \
    do {                                                                                      \
        const char *test_got_ = (got);                                                        \
        const char *test_want_ = (want);                                                      \
        if (test_got_ == NULL || strcmp(test_got_, test_want_) != 0)                          \
            FAIL("%s is \"%s\", want \"%s\"", #got, test_got_ == NULL ? "(null)" : test_got_, \
                 test_want_);                                                                 \
    } while (0)

#define CHECK_STR_CONTAINS(got, part)                                   \
    do {                                                                \
        const char *test_got_ = (got);                                  \
        const char *test_part_ = (part);                                \
        if (test_got_ == NULL || strstr(test_got_, test_part_) == NULL) \
            FAIL("%s is \"%s\", which lacks \"%s\"", #got,              \
                 test_got_ == NULL ? "(null)" : test_got_, test_part_); \
    } while (0)

#define CHECK_MEM_EQ(got, want, len_bytes) \
    test_check_mem_eq(__FILE__, __LINE__, #got, (got), (want), (len_bytes))

/*
 * CHECK_OK(call, &err): the call returned RDT_OK, else its error is printed.
 * CHECK_STATUS(call, want): the call returned that code. Any struct with `message` serves as err.
 */
#define CHECK_OK(call, err)                                            \
    do {                                                               \
        const int test_status_ = (int)(call);                          \
        if (test_status_ != 0)                                         \
            FAIL("%s is %d: %s", #call, test_status_, (err)->message); \
    } while (0)

#define CHECK_STATUS(call, want) CHECK_INT_EQ(call, want)

static inline void
test_check_mem_eq(const char *file, int line, const char *what, const void *got, const void *want,
                  size_t len_bytes)
{
    const uint8_t *g = got;
    const uint8_t *w = want;

    /* Byte by byte only to say where: a sanitizer looks at a range once, and else at each byte. */
    if (len_bytes == 0 || memcmp(g, w, len_bytes) == 0)
        return;
    for (size_t i = 0; i < len_bytes; i++) {
        if (g[i] == w[i])
            continue;
        fprintf(stderr, "%s:%d: %s differs at byte %zu of %zu: 0x%02x, want 0x%02x\n", file, line,
                what, i, len_bytes, g[i], w[i]);
        test_end_failed();
    }
}

/* Monotonic clock; for deadlines inside tests. */
static inline uint64_t
test_now_ns(void)
{
    struct timespec now;

    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0)
        FAIL("clock_gettime: %s", strerror(errno));
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline void
test_sleep_ns(uint64_t ns)
{
    struct timespec left = {(time_t)(ns / UINT64_C(1000000000)), (long)(ns % UINT64_C(1000000000))};

    while (nanosleep(&left, &left) != 0)
        if (errno != EINTR)
            FAIL("nanosleep: %s", strerror(errno));
}

/* Poll a condition until it holds, at most timeout_s; a test that waits uses this or a deadline. */
#define CHECK_EVENTUALLY(condition, timeout_s)                                            \
    do {                                                                                  \
        const uint64_t test_deadline_ =                                                   \
            test_now_ns() + (uint64_t)((double)(timeout_s) * 1e9 * test_timeout_scale()); \
        while (!(condition)) {                                                            \
            if (test_now_ns() > test_deadline_)                                           \
                FAIL("after %g s still not: %s", (double)(timeout_s), #condition);        \
            test_sleep_ns(UINT64_C(200000));                                              \
        }                                                                                 \
    } while (0)

/* How much slower this build is expected to be than a plain one; at least 1. */
static inline double
test_timeout_scale(void)
{
    const char *text = getenv("RDT_TEST_TIMEOUT_SCALE");
    const double scale = text == NULL ? 1.0 : strtod(text, NULL);

    return scale < 1.0 ? 1.0 : scale;
}

/* TSan looks for races, which repeat from case to case, and is slow. Of sweeps within one thread it
 * takes one case in TEST_TSAN_STRIDE, of rounds and messages between threads one share in
 * TEST_TSAN_SHARE: the plain build and ASan take them all. */
#ifdef __SANITIZE_THREAD__
#define TEST_TSAN_STRIDE 5
#define TEST_TSAN_SHARE 3
#else
#define TEST_TSAN_STRIDE 1
#define TEST_TSAN_SHARE 1
#endif
/* Of rounds that are all alike a sanitizer takes one share in TEST_ALIKE_SHARE: it finds what it
 * looks for in the first of them. What needs many tries, or is counted, is the plain build's. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_ALIKE_SHARE 10
#else
#define TEST_ALIKE_SHARE 1
#endif

/* Run one test in a child; returns 0, TEST_EXIT_FAIL or TEST_EXIT_SKIP. */
static inline int
test_run_forked(const struct test_case *test)
{
    const unsigned timeout_s = (unsigned)(test->timeout_s * test_timeout_scale());
    int status;

    fflush(NULL);
    const pid_t child = fork();
    if (child < 0)
        FAIL("fork: %s", strerror(errno));
    if (child == 0) {
        (void)setpgid(0, 0);
        (void)alarm(timeout_s); /* the default action of SIGALRM ends the child */
        test->run();
        exit(0); /* exit handlers run: the leak checker is one */
    }
    (void)setpgid(child, child); /* both sides, so that neither order of them loses */
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            FAIL("waitpid: %s", strerror(errno));
    (void)kill(-child, SIGKILL); /* what the test left running; usually there is nothing */

    if (WIFEXITED(status))
        return WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == TEST_EXIT_SKIP
                   ? WEXITSTATUS(status)
                   : TEST_EXIT_FAIL;
    if (WTERMSIG(status) == SIGALRM)
        fprintf(stderr, "%s: not done after %u s\n", test->name, timeout_s);
    else
        fprintf(stderr, "%s: ended by signal %d (%s)\n", test->name, WTERMSIG(status),
                strsignal(WTERMSIG(status)));
    return TEST_EXIT_FAIL;
}

static inline bool
test_is_wanted(const char *name, int argc, char **argv)
{
    bool has_filter = false;

    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-')
            continue;
        has_filter = true;
        if (strstr(name, argv[i]) != NULL)
            return true;
    }
    return !has_filter;
}

static inline bool
test_has_option(const char *option, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], option) == 0)
            return true;
    return false;
}

static inline int
test_main(int argc, char **argv)
{
    const bool is_forking = !test_has_option("--no-fork", argc, argv);
    unsigned passed = 0;
    unsigned failed = 0;
    unsigned skipped = 0;

    if (test_has_option("--list", argc, argv)) {
        for (const struct test_case *test = test_first; test != NULL; test = test->next)
            puts(test->name);
        return 0;
    }
    for (const struct test_case *test = test_first; test != NULL; test = test->next) {
        if (!test_is_wanted(test->name, argc, argv))
            continue;
        const uint64_t start_ns = test_now_ns();
        int result = 0;
        if (is_forking)
            result = test_run_forked(test);
        else
            test->run();
        const double ms = (double)(test_now_ns() - start_ns) * 1e-6;
        passed += result == 0;
        skipped += result == TEST_EXIT_SKIP;
        failed += result == TEST_EXIT_FAIL;
        printf("%-4s %s (%.1f ms)\n",
               result == 0 ? "ok" : (result == TEST_EXIT_SKIP ? "skip" : "FAIL"), test->name, ms);
    }
    printf("tests: %u passed, %u failed, %u skipped\n", passed, failed, skipped);
    if (failed > 0 || passed + skipped == 0)
        return TEST_EXIT_FAIL; /* a filter or a file without tests must not look green */
    return passed == 0 ? TEST_EXIT_SKIP : 0;
}

#endif
