/* SPDX-License-Identifier: Apache-2.0
 * Questions and answers over sockets; see flow.h. */
#include "flow.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "bench.h"

#define POLL_MS ((int)(BENCH_PATIENCE_NS / 1000000))

struct flow_place
flow_words(void)
{
    static char words[4096]; /* as many as one call should take or leave */

    return (struct flow_place){.addr = words, .len_bytes = sizeof(words)};
}

/* Bytes that the flow may put on the wire now. */
static uint64_t
out_limit(const struct flow *flow, uint64_t count)
{
    const uint64_t complete = flow->in_bytes / flow->in_message_bytes;
    const uint64_t may = flow->is_asking ? complete + flow->depth : complete;

    return flow->out_message_bytes * (may < count ? may : count);
}

static uint64_t
moved(ssize_t n, const char *call)
{
    if (n == 0)
        errno = ECONNRESET;
    if (n == 0 || (n < 0 && errno != EAGAIN))
        bench_die(call);
    return n < 0 ? 0 : (uint64_t)n;
}

/* From where `done` bytes end to where the place does, but no more than `left`. */
static size_t
room(const struct flow_place *place, uint64_t done, uint64_t left)
{
    const uint64_t rest = place->len_bytes - done % place->len_bytes;

    return (size_t)(left < rest ? left : rest);
}

/* What goes without waiting. */
static uint64_t
pump(struct flow *flow, uint64_t count)
{
    const uint64_t in_left = count * flow->in_message_bytes - flow->in_bytes;
    uint64_t in = 0;
    uint64_t out = 0;

    if (in_left > 0)
        in = moved(recv(flow->fd, flow->in.addr + flow->in_bytes % flow->in.len_bytes,
                        room(&flow->in, flow->in_bytes, in_left), MSG_DONTWAIT),
                   "recv");
    flow->in_bytes += in;
    const uint64_t out_left = out_limit(flow, count) - flow->out_bytes;
    if (out_left > 0)
        out = moved(send(flow->fd, flow->out.addr + flow->out_bytes % flow->out.len_bytes,
                         room(&flow->out, flow->out_bytes, out_left), MSG_DONTWAIT | MSG_NOSIGNAL),
                    "send");
    flow->out_bytes += out;
    return in + out;
}

static bool
is_over(const struct flow *flow, uint64_t count)
{
    return flow->in_bytes == count * flow->in_message_bytes &&
           flow->out_bytes == count * flow->out_message_bytes;
}

static void
sleep_for(const struct flow *flows, size_t n, uint64_t count)
{
    struct pollfd polled[FLOWS_MAX];

    for (size_t i = 0; i < n; i++) {
        const bool has_more = out_limit(&flows[i], count) > flows[i].out_bytes;

        polled[i] = (struct pollfd){.fd = is_over(&flows[i], count) ? -1 : flows[i].fd,
                                    .events = (short)(has_more ? POLLIN | POLLOUT : POLLIN)};
    }
    if (poll(polled, n, POLL_MS) == 0)
        bench_fail("nothing moves over the sockets");
}

void
flow_run(struct flow *flows, size_t n, uint64_t count, bool sleeps)
{
    for (size_t i = 0; i < n; i++)
        flows[i].in_bytes = flows[i].out_bytes = 0;
    for (uint64_t idle = 0;;) {
        uint64_t some = 0;
        bool is_done = true;

        for (size_t i = 0; i < n; i++) {
            some += pump(&flows[i], count);
            is_done = is_done && is_over(&flows[i], count);
        }
        if (is_done)
            return;
        idle = some > 0 ? 0 : idle + 1;
        /* who spins looks at the clock, through poll(), once in a while */
        if (idle > 0 && (sleeps || idle % (1 << 20) == 0))
            sleep_for(flows, n, count);
    }
}
