/* SPDX-License-Identifier: Apache-2.0
 * Lines of the log: their form, their level, and what a text cannot do to them. */
#include "base/log.h"

#include <fcntl.h>

#include "harness.h"

static int pipe_end = -1;
static int real_stderr = -1;

/* Until take_lines(), stderr is a pipe. */
static void
capture_stderr(void)
{
    int ends[2];

    CHECK_INT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    real_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    CHECK(real_stderr >= 0);
    CHECK_INT_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    CHECK_INT_EQ(close(ends[1]), 0);
    pipe_end = ends[0];
}

/* What was written since then; stderr is itself again, so that a check that fails can be read. */
static const char *
take_lines(void)
{
    static char text[65536];
    const ssize_t got = read(pipe_end, text, sizeof(text) - 1);

    CHECK_INT_EQ(dup2(real_stderr, STDERR_FILENO), STDERR_FILENO);
    CHECK_INT_EQ(close(real_stderr), 0);
    CHECK_INT_EQ(close(pipe_end), 0);
    text[got > 0 ? got : 0] = '\0';
    return text;
}

TEST(a_line_has_pid_level_and_text)
{
    char want[128];

    capture_stderr();
    rdti_log(RDT_LOG_WARN, "%s is %d", "x", 3);
    (void)snprintf(want, sizeof(want), "rdmatensor[%ld] WARN x is 3\n", (long)getpid());
    CHECK_STR_EQ(take_lines(), want);
}

TEST(the_level_decides_what_is_printed)
{
    static const int32_t levels[] = {RDT_LOG_ERROR, RDT_LOG_WARN, RDT_LOG_INFO, RDT_LOG_DEBUG};
    static const char *const names[] = {" ERROR ", " WARN ", " INFO ", " DEBUG "};

    for (size_t set = 0; set < 4; set++) {
        rdt_log_set_level(levels[set]);
        for (size_t i = 0; i < 4; i++) {
            capture_stderr();
            rdti_log(levels[i], "text");
            const char *got = take_lines();
            if (i <= set)
                CHECK_STR_CONTAINS(got, names[i]);
            else
                CHECK_STR_EQ(got, "");
        }
    }
}

TEST(info_is_silent_by_default)
{
    capture_stderr();
    rdti_log(RDT_LOG_INFO, "text");
    CHECK_STR_EQ(take_lines(), "");
}

TEST(text_cannot_forge_a_second_line)
{
    capture_stderr();
    rdti_log(RDT_LOG_ERROR, "%s", "a\nrdmatensor[1] ERROR forged\r\x1b[2J");
    const char *got = take_lines();
    const char *end = strchr(got, '\n');

    CHECK_NOT_NULL(end);
    CHECK(end[1] == '\0');
    CHECK_NULL(strchr(got, '\x1b'));
    CHECK_NULL(strchr(got, '\r'));
}

TEST(a_long_line_is_cut_and_says_so)
{
    char text[5000];

    capture_stderr();
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    rdti_log(RDT_LOG_ERROR, "%s", text);
    const char *got = take_lines();

    CHECK_INT_LE(strlen(got), 1024);
    CHECK_STR_EQ(got + strlen(got) - 5, "x...\n");
}

TEST(errno_survives)
{
    capture_stderr();
    CHECK_INT_EQ(close(pipe_end), 0);
    (void)signal(SIGPIPE, SIG_IGN);
    errno = 1234;
    rdti_log(RDT_LOG_ERROR, "into a closed pipe");
    const int after = errno;
    CHECK_INT_EQ(dup2(real_stderr, STDERR_FILENO), STDERR_FILENO);
    CHECK_INT_EQ(after, 1234);
}

TEST_MAIN()
