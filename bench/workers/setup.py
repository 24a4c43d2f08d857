"""How long groups of processes take until they can work: forked, released together, timed.

This process imports torch and rdmatensor, and whatever a group of one then imports at first use,
and forks the ranks of each group, so that imports are no part of what is timed; all ranks of a
group wait for one word. From it until the slowest rank is through: init_process_group() and a
first barrier ("barrier"), and then a first all_to_all ("all_to_all"), for which everybody has to
reach everybody. The backends take turns; what the all_to_all delivers is checked after the clock
was read.

The ranks are connected to their store before the word. It is torch's, and the same for all
backends; while connecting, it asks the name server for the names of both ends, so that one datagram
that is lost costs whichever backend has its turn the five seconds of the resolver's time-out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

import rdmatensor.torch  # noqa: F401  registers "rdmatensor"

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib import children
from bench.benchlib.programs import free_port

PATIENCE_S = 90.0
STEPS = ("barrier", "all_to_all")


def store_of(rank: int, ranks: int, port: int) -> TCPStore:
    """Return the store of the ranks once all are connected to it; rank 0 serves it."""
    patience = timedelta(seconds=PATIENCE_S)
    return TCPStore("127.0.0.1", port, ranks, rank == 0, patience)


def work(backend: str, rank: int, ranks: int, store: TCPStore) -> list[int]:
    """Return when this rank was through each step, by the monotonic clock."""
    patience = timedelta(seconds=PATIENCE_S)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=patience)
    dist.barrier()
    times_ns = [time.monotonic_ns()]
    sent = torch.full((ranks,), float(rank))
    got = torch.zeros(ranks)
    dist.all_to_all_single(got, sent)
    times_ns.append(time.monotonic_ns())
    if got.tolist() != [float(other) for other in range(ranks)]:
        raise RuntimeError(f"{backend}: all_to_all gave {got.tolist()}")
    dist.barrier()
    dist.destroy_process_group()
    return times_ns


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
            work(backend, 0, 1, store_of(0, 1, free_port()))
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
    backend: str, rank: int, ranks: int, port: int, gate: int, answer: int, parent: int
) -> None:
    """Run one rank; it never returns."""
    status = 1
    try:
        children.end_with(parent)
        torch.set_num_threads(1)
        store = store_of(rank, ranks, port)
        os.write(answer, b"here\n")
        os.read(gate, 1)  # its end, or a byte
        os.write(answer, json.dumps(work(backend, rank, ranks, store)).encode() + b"\n")
        os.read(gate, 1)  # who goes first, without a goodbye, is dead to those still at work
        status = 0
    except BaseException:  # noqa: BLE001  a forked child must not run on in its parent's code
        traceback.print_exc()
    finally:
        os._exit(status)


def read_lines(ends: list[int], deadline_s: float) -> list[str]:
    """Return one line from each rank; each writes a line at once."""
    lines: dict[int, str] = {}
    while len(lines) < len(ends):
        waiting = [end for end in ends if end not in lines]
        ready, _, _ = select.select(waiting, [], [], max(0.0, deadline_s - time.monotonic()))
        if not ready:
            raise TimeoutError(f"{len(waiting)} of {len(ends)} ranks are not through")
        for end in ready:
            lines[end] = os.read(end, 4096).decode()
            if not lines[end]:
                raise RuntimeError("a rank failed; its reason stands above")
    return [lines[end] for end in ends]


def group(backend: str, ranks: int) -> list[int]:
    """Nanoseconds from the word until the slowest rank was through each step."""
    deadline_s = time.monotonic() + PATIENCE_S
    gate_end, gate = os.pipe()
    port = free_port()
    parent = os.getpid()
    pids, ends = [], []
    try:
        for rank in range(ranks):
            end, answer = os.pipe()
            pid = os.fork()
            if pid == 0:
                child(backend, rank, ranks, port, gate_end, answer, parent)
            os.close(answer)
            pids.append(pid)
            ends.append(end)
        read_lines(ends, deadline_s)
        released_ns = time.monotonic_ns()
        os.write(gate, b"g" * ranks)
        times = [json.loads(line) for line in read_lines(ends, deadline_s)]
        os.write(gate, b"l" * ranks)
        return [max(of_step) - released_ns for of_step in zip(*times, strict=True)]
    except BaseException:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)  # nobody has waited for it yet: the pid is its own
        raise
    finally:
        for fd in (gate_end, gate, *ends):
            os.close(fd)
        for pid in pids:
            os.waitpid(pid, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True, help="0: there is one of this process")
    parser.add_argument("--folder", required=True, help="not used")
    parser.add_argument("--ranks", required=True, help="numbers, separated by commas")
    parser.add_argument("--backends", required=True)
    parser.add_argument("--turns", type=int, default=2, help="of each backend and number of ranks")
    arguments = parser.parse_args()
    for backend in str(arguments.backends).split(","):
        import_what_is_used(backend)
    for ranks in map(int, str(arguments.ranks).split(",")):
        for _ in range(arguments.turns):
            for backend in str(arguments.backends).split(","):
                for step, took_ns in zip(STEPS, group(backend, ranks), strict=True):
                    record = {"contestant": backend, "op": step, "ranks": ranks, "took_ns": took_ns}
                    sys.stdout.write(json.dumps(record) + "\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
