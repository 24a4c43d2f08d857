"""How long groups of processes take until they can work: forked, released together, timed.

This process imports torch and rdmatensor, and what a group of one then imports at first use, and
forks the ranks of each group, so that imports are no part of what is timed. From the release until
the slowest rank is through: init_process_group() and a first barrier ("barrier"), and then a first
all_to_all ("all_to_all"), for which each rank has to reach every other; in a group of its own,
init_process_group() and a message to the next rank and from the one before ("neighbours"), for
which no rank has to reach more than two. The backends take turns; all deliveries are checked.

After each step the memory that all ranks hold more than before the first is counted (Pss: what
several share counts once, divided among them), and divided by their number. The ranks are connected
to their store before the release. It is torch's, and the same for all backends; while connecting,
it asks the name server for the names of both ends, so that one datagram that is lost costs five
seconds, the resolver's time-out.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

import rdmatensor.torch  # noqa: F401  registers "rdmatensor"
from bench.benchlib import ladder
from bench.benchlib.programs import free_port
from bench.workers import harness
from bench.workers.model_groups import Group, Line

PATIENCE_S = 240.0  # of one group; 128 ranks on two cores take most of a minute
MANY_RANKS = 32  # more have one turn
OPTIONS = {
    "ranks": [],  # numbers of them
    "backends": [],
    "turns": 2,  # of each backend with up to 32 ranks
    "seconds": float("inf"),  # no number of ranks that ends later begins
}


def neighbours(rank: int, ranks: int) -> bool:
    """Send to the next rank, receive from the one before."""
    sent, got = torch.full((1,), float(rank)), torch.zeros(1)
    before = (rank - 1) % ranks
    works = [dist.isend(sent, (rank + 1) % ranks), dist.irecv(got, before)] if ranks > 1 else []
    for one in works:
        assert one is not None
        one.wait()
    return ranks == 1 or got.item() == float(before)


def barrier(_rank: int, _ranks: int) -> bool:
    """Meet all."""
    dist.barrier()
    return True


def all_to_all(rank: int, ranks: int) -> bool:
    """Exchange a number with each other rank."""
    sent, got = torch.full((ranks,), float(rank)), torch.zeros(ranks)
    dist.all_to_all_single(got, sent)
    return got.tolist() == [float(other) for other in range(ranks)]


STEPS: dict[str, Callable[[int, int], bool]] = {
    "neighbours": neighbours,
    "barrier": barrier,
    "all_to_all": all_to_all,
}
GROUPS = (("neighbours",), ("barrier", "all_to_all"))  # the steps of a group, in their order


def work(backend: str, steps: Sequence[str], port: int, ranks: int, rank: int, line: Line) -> None:
    """Run one rank: a block of the line for each step, and one for the end of the group."""
    patience = timedelta(seconds=PATIENCE_S)
    store = TCPStore("127.0.0.1", port, ranks, rank == 0, patience)
    blocks = line.blocks()
    next(blocks)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=patience)
    for step in steps:
        if not STEPS[step](rank, ranks):
            raise RuntimeError(f"{backend}: rank {rank} got something else in {step}")
        next(blocks)
    dist.destroy_process_group()
    for _ in blocks:  # no rank is gone, and dead to the others, before all have left the group
        raise RuntimeError("a group has one end")


def import_what_is_used(backend: str, path: Path) -> None:
    """Import here, before the ranks are forked, what a group of one imports when it begins."""
    before = set(sys.modules)

    def alone(steps: Sequence[str], line: Line) -> None:
        work(backend, steps, free_port(), 1, 0, line)
        used = sorted(set(sys.modules) - before)
        path.write_text(json.dumps(used), encoding="utf-8")

    for steps in GROUPS:
        run(Group(backend, [], [functools.partial(alone, steps)], {}, PATIENCE_S), steps)
        for name in json.loads(path.read_text(encoding="utf-8")):
            importlib.import_module(name)


def held_bytes(pids: Sequence[int]) -> int:
    """Return the memory of processes: Pss without files, which others may map meanwhile."""
    found = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
        found += sum(int(line.split()[1]) << 10 for line in lines)
    return found


def run(group: Group, steps: Sequence[str]) -> list[tuple[int, int]]:
    """Return of each step, counted from the start: nanoseconds until the slowest rank was through.

    With them the bytes that a rank then holds more than before, in the mean.
    """
    group.await_ready()
    pids = group.pids
    before_bytes, took_ns, found = held_bytes(pids), 0, []
    for _ in steps:
        released_ns = time.monotonic_ns()
        group.take_block()
        took_ns += time.monotonic_ns() - released_ns
        found.append((took_ns, (held_bytes(pids) - before_bytes) // len(pids)))
    group.take_block()  # the group is destroyed
    group.end()
    return found


def turn(backend: str, ranks: int) -> None:
    """Let a backend make its groups, and print what each step took."""
    for steps in GROUPS:
        member = functools.partial(work, backend, steps, free_port(), ranks)
        works = [functools.partial(member, rank) for rank in range(ranks)]
        group = Group(f"{backend}, {ranks} ranks", [], works, {}, PATIENCE_S)
        try:
            found = run(group, steps)
        except BaseException:
            group.kill()
            raise
        for step, (took_ns, rank_bytes) in zip(steps, found, strict=True):
            harness.emit(name=backend, op=step, ranks=ranks, took_ns=took_ns, rank_bytes=rank_bytes)


def main(options: SimpleNamespace) -> None:
    for backend in options.backends:
        import_what_is_used(backend, options.folder / "imports")

    def turns_of(ranks: int) -> int:
        return int(options.turns) if ranks <= MANY_RANKS else 1

    for ranks in ladder.climb(options.ranks, turns_of, options.seconds):
        for _ in range(turns_of(ranks)):
            for backend in options.backends:
                turn(backend, ranks)
