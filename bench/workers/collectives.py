"""One of several processes that run every collective, and send, over several backends.

The backends of torch.distributed take turns in the same processes, on the same tensors: one turn
after another in each round, a barrier of Gloo before each. "fake" is torch's own backend that does
nothing: what a call costs without one. Where ranks are more than cores it offers its core after
each call, as all do that wait for others there: the next call finds caches that those filled.
"copies" is the copy floor (copies.py), "rdmatensor:ring" a group whose RDMATENSOR_ALGO is ring.
With "mpi" mpirun has started the processes: MPI by itself, on tensors of torch as well. With
"forked" one process forks all ranks, which saves their imports. With a layout ranks with the same
digit share memory, and others take each other for remote. rows.py says what is timed, operations.py
what. Each rank prints lines of JSON with its own samples; the slowest rank of each sample counts.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import torch
import torch.distributed as dist

from bench.workers import harness, operations, rows
from bench.workers.copies import LEAST_BYTES, Copies
from bench.workers.model_groups import await_all, fork

PATIENCE = timedelta(seconds=120)
FORKED_PATIENCE_S = 900.0
CHECKED = ("ring", "halving-doubling", "tree", "direct")  # algorithms that a group is to report
FAKE, COPIES = "fake", "copies"
OFFERS = 3  # of a core, after each call: about as often rdmatensor gives it away while it waits
NOTHING_MOST_BYTES = 65536
Cell = tuple[str, int, str]  # operation, size, way
OPTIONS = {
    "ranks": 0,
    "backends": [],
    "operations": [],
    "sizes": [],
    "rows": [rows.PLAIN],
    "row_sizes": [],  # of rows but plain; none: sizes
    "rounds": 10,
    "seconds": 5.0,  # about, for each cell
    "mpi": False,
    "forked": False,
    "layout": "",  # a digit for the host of each rank
}


class Gloo:
    """Leads the turns of torch's backends."""

    def __init__(self) -> None:
        self.group = dist.new_group(backend="gloo", timeout=PATIENCE)

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier(group=self.group)

    def most(self, value: int) -> int:
        """Return the largest of all ranks' values."""
        largest = torch.tensor([value])
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.group)
        return int(largest[0])


def cells(arguments: SimpleNamespace) -> Iterator[Cell]:
    """All that is measured, in its order; a barrier has one size, and no tensors to rewrite.

    The copy floor is of the plain row, and there for the others too.
    """
    ways, rewritten = arguments.rows, arguments.row_sizes or arguments.sizes
    is_floor_only = rows.PLAIN not in ways
    plain = rewritten if is_floor_only else arguments.sizes
    for way in [rows.PLAIN] * is_floor_only + ways:
        for name in arguments.operations:
            if name != "barrier":
                yield from (
                    (name, size, way) for size in (plain if way == rows.PLAIN else rewritten)
                )
            elif way == rows.PLAIN:
                yield name, 0, way


def make_of(way: str) -> operations.Make:
    """Return what gives tensors of this way."""
    if way == rows.ARENA:
        import rdmatensor.torch

        return rdmatensor.torch.empty
    return torch.empty


def say(arguments: SimpleNamespace, cell: Cell, moved: int, found: dict[str, rows.Samples]) -> None:
    """Print what was found; the size as it was asked for, since two of them may move as much."""
    shared = dict(zip(("op", "size", "row"), cell, strict=True))
    shared |= {"moved_bytes": moved, "ranks": arguments.ranks, "rank": arguments.rank}
    for peer, samples in found.items():
        harness.emit(name=peer, **shared, **asdict(samples))


def group_of(backend: str) -> dist.ProcessGroup:
    """Return a group, which reads its algorithm when it begins to be used."""
    name, _, algorithm = backend.partition(":")
    if algorithm:
        os.environ["RDMATENSOR_ALGO"] = algorithm
    group = dist.new_group(backend=name, timeout=PATIENCE)
    if algorithm:
        from rdmatensor.distributed import describe

        dist.all_reduce(torch.zeros(1), group=group)
        del os.environ["RDMATENSOR_ALGO"]
        taken = cast("dict[str, object]", describe(group)["collectives"])["algorithm"]
        if algorithm in CHECKED and taken != algorithm:
            raise RuntimeError(f"the group uses {taken}, not {algorithm}")
    return cast("dist.ProcessGroup", group)


def through_torch(arguments: SimpleNamespace) -> None:
    """All backends of torch.distributed."""
    from torch.testing._internal.distributed import fake_pg  # registers "fake"

    import rdmatensor.torch  # noqa: F401  registers "rdmatensor"

    assert fake_pg is not None
    rank, ranks = arguments.rank, arguments.ranks
    if arguments.layout:
        os.environ["RDMATENSOR_TEST_HOST"] = f"host{arguments.layout[rank]}"
    harness.join_gloo(arguments.folder, rank, ranks, PATIENCE)
    names = arguments.backends
    binds: dict[str, rows.Bind] = {
        name: functools.partial(operations.through_torch, group=group_of(name))
        for name in names
        if name != COPIES
    }
    meeting = Gloo()
    todo = list(cells(arguments))
    if COPIES in names:
        most = max(size for _, size, _ in todo)
        copies = Copies(arguments.folder.name, rank, ranks, most, meeting.barrier)
        binds[COPIES] = copies.call
    is_shared = not harness.pin(rank, ranks)
    if is_shared and FAKE in binds:
        binds[FAKE] = functools.partial(offering, binds[FAKE])
    limits = rows.Limits(arguments.rounds, arguments.seconds, is_shared)
    for cell in todo:
        name, size, way = cell
        operation = operations.Operation(name, size, rank, ranks, make_of(way))
        taking = {
            who: bind
            for who, bind in binds.items()
            if takes_part(who, size, way) and (is_asked(arguments, way) or who == COPIES)
        }
        found = rows.measure(taking, {FAKE, COPIES}, operation, way, limits, meeting)
        say(arguments, cell, operation.size_bytes, found)
    meeting.barrier()
    dist.destroy_process_group()


def offering(bind: rows.Bind, operation: operations.Operation) -> operations.Call:
    """Return a call that others have the core after."""
    call = bind(operation)

    def called() -> None:
        call()
        for _ in range(OFFERS):
            os.sched_yield()

    return called


def is_asked(arguments: SimpleNamespace, way: str) -> bool:
    """Whether this row was asked for: the plain one may be there for the floor only."""
    return way in arguments.rows


def takes_part(who: str, size: int, way: str) -> bool:
    """Whether a peer has this cell.

    The copy floor has no tensors to rewrite, and others no arena; what a call costs without a
    backend is nothing next to large tensors.
    """
    if who == COPIES:
        return size >= LEAST_BYTES and way == rows.PLAIN
    if who == FAKE:
        return way == rows.PLAIN or size <= NOTHING_MOST_BYTES
    return way != rows.ARENA or who == "rdmatensor"


def through_mpi(arguments: SimpleNamespace) -> None:
    """MPI, in processes that mpirun has started; what they print goes to files of the folder."""
    from bench.workers import mpi_calls

    meeting = mpi_calls.Meeting()
    arguments.rank = meeting.rank
    if meeting.ranks != arguments.ranks:
        raise RuntimeError(f"mpirun made {meeting.ranks} ranks, not {arguments.ranks}")
    is_shared = not harness.pin(meeting.rank, meeting.ranks)
    limits = rows.Limits(arguments.rounds, arguments.seconds, is_shared)
    binds: dict[str, rows.Bind] = {"mpi": meeting.call}
    with (arguments.folder / f"out{meeting.rank}").open("w", encoding="utf-8") as sys.stdout:
        for cell in cells(arguments):
            name, size, way = cell
            if way != rows.ARENA and is_asked(arguments, way):
                operation = operations.Operation(name, size, meeting.rank, meeting.ranks)
                found = rows.measure(binds, set(), operation, way, limits, meeting)
                say(arguments, cell, operation.size_bytes, found)
    meeting.barrier()


def forked(arguments: SimpleNamespace) -> None:
    """Fork all ranks, and print their lines."""

    def run(rank: int) -> None:
        arguments.rank = rank
        with (arguments.folder / f"lines{rank}").open("w", encoding="utf-8") as sys.stdout:
            through_torch(arguments)

    ranks = range(arguments.ranks)
    pids = [fork(functools.partial(run, rank), {}, FORKED_PATIENCE_S) for rank in ranks]
    await_all(pids, "collectives", FORKED_PATIENCE_S)
    for rank in ranks:
        sys.stdout.write((arguments.folder / f"lines{rank}").read_text(encoding="utf-8"))


def main(arguments: SimpleNamespace) -> None:
    torch.set_num_threads(1)
    act = through_mpi if arguments.mpi else forked if arguments.forked else through_torch
    act(arguments)
