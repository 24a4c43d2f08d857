/* SPDX-License-Identifier: Apache-2.0
 * Two processes with an shm lane between them: each has a host, a link, one region, and the other's
 * region mapped. */
#ifndef RDT_TESTS_SHM_RIG_H
#define RDT_TESTS_SHM_RIG_H

#include <sys/socket.h>

#include "../harness.h"
#include "base/system/cpu.h"
#include "fake_host.h"

struct shm_rig {
    struct fake_host host;
    struct fake_link link;
    struct fake_region *region;
    struct rdt_remote_region peer;
    int talk_fd; /* a socket to the other process, for the test's own words */
    bool is_child;
};

/* Say a byte and wait for the other side's, pumping: both have come this far. */
static inline void
shm_rig_meet(struct shm_rig *rig)
{
    char byte = 'x';

    CHECK_INT_EQ(send(rig->talk_fd, &byte, 1, MSG_NOSIGNAL), 1);
    FAKE_PUMP_UNTIL(&rig->host, NULL, recv(rig->talk_fd, &byte, 1, MSG_DONTWAIT) == 1, 30);
}

static inline void
shm_rig_open(struct shm_rig *rig, int side_fd, int talk_fd, bool is_child, uint64_t region_bytes)
{
    const struct rdti_lane_args args = fake_lane_args(!is_child);
    struct rdt_error err;
    void *addr = NULL;

    memset(rig, 0, sizeof(*rig));
    rig->is_child = is_child;
    rig->talk_fd = talk_fd;
    fake_host_open(&rig->host, &rdti_transport_shm);
    rig->region = fake_region(&rig->host, region_bytes);
    fake_link_open(&rig->host, &rig->link, side_fd, &args);
    FAKE_PUMP_UNTIL(&rig->host, NULL, rig->link.ready_count == 1, 30);
    CHECK_INT_EQ(send(talk_fd, &rig->region->remote, sizeof(rig->peer), MSG_NOSIGNAL),
                 sizeof(rig->peer));
    CHECK_INT_EQ(recv(talk_fd, &rig->peer, sizeof(rig->peer), MSG_WAITALL), sizeof(rig->peer));
    FAKE_PUMP_UNTIL(&rig->host, NULL,
                    rig->host.transport->map(rig->link.lane, &rig->peer, &addr, &err) == RDT_OK,
                    30);
    shm_rig_meet(rig); /* the other side may need an answer of ours until here */
}

static inline void
shm_rig_close(struct shm_rig *rig)
{
    fake_link_close(&rig->link, RDT_ECLOSED);
    fake_link_free(&rig->link);
    fake_host_close(&rig->host);
    CHECK_INT_EQ(close(rig->talk_fd), 0);
}

/* Run one function in each process, meet, close. The child's failure fails the test. */
static inline void
shm_rig_run(void (*parent)(struct shm_rig *), void (*child)(struct shm_rig *),
            uint64_t region_bytes)
{
    static struct shm_rig rig;
    int side[2];
    int talk[2];
    int status;

    fake_side_channel(side);
    CHECK_INT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk), 0);
    fflush(NULL);
    const pid_t pid = fork();
    CHECK_INT_GE(pid, 0);
    const int mine = pid == 0 ? 1 : 0;
    CHECK_INT_EQ(close(side[1 - mine]), 0);
    CHECK_INT_EQ(close(talk[1 - mine]), 0);
    shm_rig_open(&rig, side[mine], talk[mine], pid == 0, region_bytes);
    if (pid == 0)
        child(&rig);
    else
        parent(&rig);
    shm_rig_meet(&rig);
    shm_rig_close(&rig);
    if (pid == 0)
        exit(0);
    CHECK_INT_EQ(waitpid(pid, &status, 0), pid);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child: status 0x%x", status);
}

/* Look for work: spin a little, then sleep by the wake-up protocol. */
static inline void
shm_rig_wait(struct shm_rig *rig, uint32_t spins)
{
    for (uint32_t i = 0; i < spins; i++) {
        if (rig->host.transport->poll(rig->host.state) > 0)
            return;
        rdti_cpu_relax();
    }
    (void)fake_pump_or_sleep(&rig->host, UINT64_C(2000000000));
}

#endif
