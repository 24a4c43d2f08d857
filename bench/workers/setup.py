"""How long groups of processes take until they can work: forked, released together, timed.

This process imports torch and rdmatensor, and whatever a group of one then imports at first use,
and forks the ranks of each group, so that imports are no part of what is timed; all ranks of a
group wait for one word. From it until the slowest rank is through: init_process_group() and a
first barrier ("barrier"), and then a first all_to_all ("all_to_all"), for which everybody has to
reach everybody; in a group of its own, init_process_group() and a message to the next rank and from
the one before ("neighbours"), for which nobody has to reach more than two. The backends take turns;
what was delivered is checked after the clock was read.

After each step all ranks wait for a word again, and the memory that they hold more than before the
first is counted (Pss: what several share counts once, divided among them), and divided by their
number.

The ranks are connected to their store before the word. It is torch's, and the same for all
backends; while connecting, it asks the name server for the names of both ends, so that one datagram
that is lost costs whichever backend has its turn the five seconds of the resolver's time-out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

import rdmatensor.torch  # noqa: F401  registers "rdmatensor"

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib import children, ladder
from bench.benchlib.programs import free_port

PATIENCE_S = 240.0  # of one group; 128 ranks on two cores take most of a minute
MANY_RANKS = 32  # more have one turn
Check = Callable[[], bool]


def store_of(rank: int, ranks: int, port: int) -> TCPStore:
    """Return the store of the ranks once all are connected to it; rank 0 serves it."""
    patience = timedelta(seconds=PATIENCE_S)
    return TCPStore("127.0.0.1", port, ranks, rank == 0, patience)


def neighbours(rank: int, ranks: int) -> Check:
    """Send to the next rank, receive from the one before."""
    sent, got = torch.full((1,), float(rank)), torch.zeros(1)
    before = (rank - 1) % ranks
    works = [dist.isend(sent, (rank + 1) % ranks), dist.irecv(got, before)] if ranks > 1 else []
    for one in works:
        assert one is not None
        one.wait()
    return lambda: ranks == 1 or got.item() == float(before)


def barrier(_rank: int, _ranks: int) -> Check:
    dist.barrier()
    return lambda: True


def all_to_all(rank: int, ranks: int) -> Check:
    sent, got = torch.full((ranks,), float(rank)), torch.zeros(ranks)
    dist.all_to_all_single(got, sent)
    return lambda: got.tolist() == [float(other) for other in range(ranks)]


STEPS: dict[str, Callable[[int, int], Check]] = {
    "neighbours": neighbours,
    "barrier": barrier,
    "all_to_all": all_to_all,
}
GROUPS = (("neighbours",), ("barrier", "all_to_all"))  # the steps of a group, in their order


def work(
    backend: str,
    rank: int,
    ranks: int,
    store: TCPStore,
    steps: Sequence[str],
    through: Callable[[], None],
) -> None:
    """Make a group and take its steps; through() is called after each."""
    patience = timedelta(seconds=PATIENCE_S)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=patience)
    for step in steps:
        is_right = STEPS[step](rank, ranks)
        through()
        if not is_right():
            raise RuntimeError(f"{backend}: rank {rank} got something else in {step}")
    dist.destroy_process_group()


def import_what_is_used(backend: str) -> None:
    """Import here, before the ranks are forked, what a group of one imports when it begins."""
    end, answer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            children.end_with(parent)
            before = set(sys.modules)
            for steps in GROUPS:
                work(backend, 0, 1, store_of(0, 1, free_port()), steps, lambda: None)
            used = sorted(set(sys.modules) - before)
            with os.fdopen(answer, "w", encoding="utf-8") as out:
                out.write(json.dumps(used))
            status = 0
        except BaseException:  # noqa: BLE001  as in child()
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(answer)
    with os.fdopen(end, encoding="utf-8") as pipe:
        text = pipe.read()
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError(f"{backend}: a group of one failed; its reason stands above")
    for name in json.loads(text):
        importlib.import_module(name)


def child(
    backend: str, rank: int, ranks: int, steps: Sequence[str], port: int, ends: tuple[int, int, int]
) -> None:
    """Run one rank; it never returns. ends: its parent, the gate, where it answers."""
    status = 1
    try:
        parent, gate, answer = ends
        children.end_with(parent)
        torch.set_num_threads(1)
        store = store_of(rank, ranks, port)

        def through() -> None:
            os.write(answer, f"{time.monotonic_ns()}\n".encode())
            os.read(gate, 1)  # its end, or a byte

        through()
        work(backend, rank, ranks, store, steps, through)
        through()  # who goes first, without a goodbye, is dead to those still at work
        status = 0
    except BaseException:  # noqa: BLE001  a forked child must not run on in its parent's code
        traceback.print_exc()
    finally:
        os._exit(status)


def read_lines(ends: list[int], deadline_s: float) -> list[int]:
    """Return the number that each rank tells; each writes a line at once."""
    lines: dict[int, int] = {}
    while len(lines) < len(ends):
        waiting = [end for end in ends if end not in lines]
        ready, _, _ = select.select(waiting, [], [], max(0.0, deadline_s - time.monotonic()))
        if not ready:
            raise TimeoutError(f"{len(waiting)} of {len(ends)} ranks are not through")
        for end in ready:
            line = os.read(end, 4096).decode()
            if not line:
                raise RuntimeError("a rank failed; its reason stands above")
            lines[end] = int(line)
    return [lines[end] for end in ends]


def held_bytes(pids: list[int]) -> int:
    """Return the memory of processes: Pss of what is no file, which others may map meanwhile."""
    found = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
        found += sum(int(line.split()[1]) << 10 for line in lines)
    return found


def group(backend: str, ranks: int, steps: Sequence[str]) -> list[tuple[int, int]]:
    """Return of each step, counted from the start: nanoseconds until the slowest rank was through.

    With them the bytes that a rank then holds more than before, in the mean.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    port = free_port()
    parent = os.getpid()
    pids: list[int] = []
    ends: list[int] = []
    gates: list[int] = []  # one for each: a rank that is through early must not take another's word

    def release() -> None:
        for gate in gates:
            os.write(gate, b"g")

    try:
        for rank in range(ranks):
            end, answer = os.pipe()
            gate_end, gate = os.pipe()
            pid = os.fork()
            if pid == 0:
                child(backend, rank, ranks, steps, port, (parent, gate_end, answer))
            os.close(answer)
            os.close(gate_end)
            pids.append(pid)
            ends.append(end)
            gates.append(gate)
        read_lines(ends, deadline_s)
        before_bytes, took_ns = held_bytes(pids), 0
        found = []
        for _ in steps:
            released_ns = time.monotonic_ns()
            release()
            took_ns += max(read_lines(ends, deadline_s)) - released_ns
            found.append((took_ns, (held_bytes(pids) - before_bytes) // ranks))
        release()
        read_lines(ends, deadline_s)  # the group is destroyed
        release()
        return found
    except BaseException:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)  # nobody has waited for it yet: the pid is its own
        raise
    finally:
        for fd in (*gates, *ends):
            os.close(fd)
        for pid in pids:
            os.waitpid(pid, 0)


def turn(backend: str, ranks: int) -> None:
    """Let a backend make its groups, and print what each step took."""
    for steps in GROUPS:
        for step, (took_ns, rank_bytes) in zip(steps, group(backend, ranks, steps), strict=True):
            record = {"name": backend, "op": step, "ranks": ranks}
            record |= {"took_ns": took_ns, "rank_bytes": rank_bytes}
            sys.stdout.write(json.dumps(record) + "\n")
            sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True, help="0: there is one of this process")
    parser.add_argument("--folder", required=True, help="not used")
    parser.add_argument("--ranks", required=True, help="numbers, separated by commas")
    parser.add_argument("--backends", required=True)
    parser.add_argument("--turns", type=int, default=2, help="of each backend with up to 32 ranks")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="no number of ranks that ends later begins"
    )
    arguments = parser.parse_args()
    for backend in str(arguments.backends).split(","):
        import_what_is_used(backend)

    def turns_of(ranks: int) -> int:
        return int(arguments.turns) if ranks <= MANY_RANKS else 1

    numbers = [int(word) for word in str(arguments.ranks).split(",")]
    for ranks in ladder.climb(numbers, turns_of, arguments.seconds):
        for _ in range(turns_of(ranks)):
            for backend in str(arguments.backends).split(","):
                turn(backend, ranks)


if __name__ == "__main__":
    main()
