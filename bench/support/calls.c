/* SPDX-License-Identifier: Apache-2.0
 * Counting the system calls of one thread; see process.h. */
#include "process.h"

#if defined(__x86_64__) && defined(__linux__)
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "bench.h"

static volatile uint64_t counts[PROCESS_CALLS_MAX];

/*
 * The one place from which the filter lets calls through: the instruction after calls_gate_begin.
 * glibc's syscall() would do as well, but others call it too.
 */
long calls_gate(long number, long a, long b, long c, long d, long e, long f);
extern const char calls_gate_end[];
__asm__(".text\n"
        ".globl calls_gate\n"
        ".type calls_gate, @function\n"
        "calls_gate:\n"
        "    movq %rdi, %rax\n"
        "    movq %rsi, %rdi\n"
        "    movq %rdx, %rsi\n"
        "    movq %rcx, %rdx\n"
        "    movq %r8, %r10\n"
        "    movq %r9, %r8\n"
        "    movq 8(%rsp), %r9\n"
        "    syscall\n"
        ".globl calls_gate_end\n"
        "calls_gate_end:\n"
        "    ret\n"
        ".size calls_gate, . - calls_gate\n");

static void
on_trap(int signal_number, siginfo_t *info, void *context)
{
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint32_t number = (uint32_t)info->si_syscall;

    (void)signal_number;
    if (number < PROCESS_CALLS_MAX)
        counts[number]++;
    r[REG_RAX] = calls_gate((long)number, r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8],
                            r[REG_R9]);
}

bool
process_count_calls(void)
{
    /* After the gate's syscall instruction the instruction pointer is calls_gate_end. */
    const uint64_t gate = (uint64_t)(uintptr_t)calls_gate_end;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 5, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)gate, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(gate >> 32), 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_NODEFER};

    if (sigaction(SIGSYS, &action, NULL) != 0)
        bench_die("sigaction");
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

uint64_t
process_calls(uint32_t number)
{
    return number < PROCESS_CALLS_MAX ? counts[number] : 0;
}

#else

bool
process_count_calls(void)
{
    return false;
}

uint64_t
process_calls(uint32_t number)
{
    (void)number;
    return 0;
}

#endif

uint64_t
process_calls_total(void)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < PROCESS_CALLS_MAX; i++)
        total += process_calls(i);
    return total;
}
