"""One of several processes that call collectives while other processes keep the cores busy.

The backends take turns in the same processes, with the same burners (burner.py), which rank 0
starts for their cells only. No rank is pinned to a core, as in an ordinary program. A loop of calls
ends by time: rank 0 chooses its last call, and the other ranks read the choice from memory that all
share, so that nothing but the calls synchronizes the ranks inside a loop. Each rank prints a line
of JSON for each cell and backend: the mean is the wall time of the loop by its calls, with the
computing between calls; the median and the 99th percentile are of calls alone, and the processor
time is without the computing.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

import rdmatensor.torch  # noqa: F401  registers "rdmatensor"
from bench.suite.samples import quantile
from bench.workers import harness, operations, rows
from bench.workers.collectives import Gloo
from bench.workers.layered import WARM_STEPS, Trainee, same_parameters

PATIENCE = timedelta(seconds=60)
DDP, WAIT = "ddp", "wait"
LAYERS, WIDTH, BATCH = 4, 256, 32  # of the model: 1 MiB of gradients in four buckets
WAITED_NS = 100_000_000  # what the last rank computes while the others wait in a barrier
_LEAST_CALLS = 3
_BURNER = Path(__file__).with_name("burner.py")
_BURNER_START_S = 60.0
_THREADS = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
# In calls whose root is rank 0 the other ranks may need nothing of it, and lead by any number of
# calls. They wait for it where they would lead by more than this. In other calls no rank leads.
_LED = ("gather", "reduce")
_MOST_LEAD = 64
_SAME = 2  # calls after the one in which rank 0 chooses the end: another rank may have begun one
_POLL_S = 0.0002  # between two polls of how far rank 0 is
Iteration = Callable[[], object]
OPTIONS = {
    "ranks": 0,
    "backends": [],
    "calls": [],
    "sizes": [],
    "between_ms": [],
    "loads": [],  # KIND:COUNT
    "round": 0,  # another backend is first in each
    "loops": 1,
    "seconds": 0.0,  # of each loop
    "most_calls": 20_000,  # of each loop
}


@dataclass(frozen=True, slots=True)
class Cell:
    """What a loop does; between_ns: computing before each call, processor time of the rank."""

    op: str
    size: int
    between_ns: int


@contextlib.contextmanager
def burning(kind: str, count: int, folder: Path) -> Iterator[None]:
    """Keep so many processes of a kind busy inside. Raises RuntimeError if one does not begin."""
    started: list[subprocess.Popen[bytes]] = []
    command = [sys.executable, str(_BURNER), kind, str(os.getpid()), "--folder", str(folder)]
    with contextlib.ExitStack() as stack:
        stack.callback(_end, started)
        for _ in range(count):
            environment = {**os.environ, **_THREADS}
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment))
        end_s = time.monotonic() + _BURNER_START_S
        for one in started:
            assert one.stdout is not None
            left_s = max(0.0, end_s - time.monotonic())
            if not select.select([one.stdout], [], [], left_s)[0] or not one.stdout.readline():
                raise RuntimeError(f"a burner of kind {kind} did not begin")
        yield


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    for one in started:
        one.kill()
    for one in started:
        one.wait()
        assert one.stdout is not None
        one.stdout.close()


_WORDS = 2


class Ends:
    """Two words for each loop in memory that all ranks map.

    The first is the number of calls, 0 while rank 0 has not chosen it; the second is how many rank
    0 has done, where others may lead.
    """

    def __init__(self, path: Path, rank: int, loops: int, barrier: Callable[[], None]) -> None:
        if rank == 0:
            path.write_bytes(bytes(_WORDS * 8 * loops))
        barrier()
        with path.open("r+b") as file:
            self._slots = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self._next = 0

    def take(self) -> memoryview:
        """Return the words of the next loop."""
        self._next += _WORDS
        return self._slots[self._next - _WORDS : self._next]


@dataclass(frozen=True, slots=True)
class Budget:
    """When rank 0 ends a loop: after so many seconds or calls, but not before _LEAST_CALLS."""

    seconds: float
    calls: int

    def is_used(self, done: int, taken_ns: int) -> bool:
        """Whether a loop of so many calls is long enough."""
        return done >= self.calls or (done >= _LEAST_CALLS and taken_ns > self.seconds * 1e9)


def compute(between_ns: int) -> int:
    """Use so much processor time of this thread; return what was used."""
    began_ns = used_ns = time.thread_time_ns()
    while used_ns - began_ns < between_ns:
        used_ns = time.thread_time_ns()
    return used_ns - began_ns


def await_root(words: memoryview, done: int) -> None:
    """Wait until rank 0 is near enough. Raises RuntimeError if that takes too long."""
    end_s = time.monotonic() + PATIENCE.total_seconds()
    while done - words[1] > _MOST_LEAD:
        if time.monotonic() > end_s:
            raise RuntimeError(f"rank 0 is at call {words[1]}, this rank at {done}")
        time.sleep(_POLL_S)


def loop(
    call: Iteration, between_ns: int, words: memoryview, budget: Budget | None, *, is_led: bool
) -> dict[str, int]:
    """Call until the end that rank 0 chooses.

    words: of Ends. budget: None on the other ranks. is_led: these may be ahead of rank 0.
    """
    lead = _MOST_LEAD + _SAME if is_led else _SAME
    now, each_ns, computed_ns, done = time.perf_counter_ns, [], 0, 0
    cpu_ns, began_ns = time.process_time_ns(), now()
    while not words[0] or done < words[0]:
        if between_ns:
            computed_ns += compute(between_ns)
        before_ns = now()
        call()
        after_ns = now()
        each_ns.append(after_ns - before_ns)
        done += 1
        if is_led and budget is not None:
            words[1] = done
        elif is_led:
            await_root(words, done)
        if budget is not None and not words[0] and budget.is_used(done, after_ns - began_ns):
            words[0] = done + lead
    wall_ns, cpu_ns = now() - began_ns, time.process_time_ns() - cpu_ns
    if done != words[0]:
        raise RuntimeError(f"call {done} had begun before call {words[0]} was the last one")
    return {
        "calls": done,
        "raw_ns": wall_ns // done,
        "p50_ns": round(quantile(each_ns, 0.5)),
        "p99_ns": round(quantile(each_ns, 0.99)),
        "cpu_ns": max(0, cpu_ns - computed_ns) // done,
    }


class Job:
    """A rank: its groups, its models, and its loops."""

    def __init__(self, arguments: SimpleNamespace) -> None:
        self.arguments = arguments
        self.rank, self.ranks = arguments.rank, arguments.ranks
        self.names = arguments.backends
        self.meeting = Gloo()
        self.binds: dict[str, rows.Bind] = {
            name: functools.partial(
                operations.through_torch, group=dist.new_group(backend=name, timeout=PATIENCE)
            )
            for name in self.names
        }
        self.cells = list(cells(arguments))
        self.trainees: dict[str, Trainee] = {}
        if any(cell.op == DDP for cell in self.cells):
            self.trainees = {name: Trainee(name, LAYERS, WIDTH) for name in self.names}
            self.batch = torch.randn(BATCH, WIDTH)
            for _ in range(WARM_STEPS):
                for trainee in self.trainees.values():
                    trainee.step(self.batch)
            if not same_parameters(self.trainees):
                raise RuntimeError("the backends have trained to different parameters")
        self.loads = arguments.loads
        loops = len(self.loads) * len(self.cells) * len(self.names) * arguments.loops
        path = arguments.folder / "ends"
        self.ends = Ends(path, self.rank, loops, self.meeting.barrier)
        self.budget = Budget(arguments.seconds, arguments.most_calls) if self.rank == 0 else None

    def run(self) -> None:
        """Measure all cells under each load."""
        for load in self.loads:
            self._run_load(load)

    def _run_load(self, load: str) -> None:
        kind, count = load.split(":")
        is_first = self.rank == 0 and int(count) > 0
        around = burning(kind, int(count), self.arguments.folder) if is_first else None
        with around or contextlib.nullcontext():
            self.meeting.barrier()
            for place, cell in enumerate(self.cells):
                self._run_cell(cell, load, place)
            self.meeting.barrier()

    def _run_cell(self, cell: Cell, load: str, place: int) -> None:
        calls, moved, trips = self._calls_of(cell)
        found: dict[str, list[dict[str, int]]] = {name: [] for name in calls}
        between_ns = cell.between_ns
        if cell.op == WAIT:
            between_ns = WAITED_NS if self.rank == self.ranks - 1 else 0
        first = (self.arguments.round + place) % len(self.names)
        order = [*self.names[first:], *self.names[:first]]
        is_led = cell.op in _LED
        for _ in range(self.arguments.loops):
            for name in order:
                self.meeting.barrier()
                words = self.ends.take()
                found[name].append(loop(calls[name], between_ns, words, self.budget, is_led=is_led))
        for name, loops in found.items():
            self._say(name, cell, load, moved, trips, loops)

    def _calls_of(self, cell: Cell) -> tuple[dict[str, Iteration], int, int]:
        """Return each backend's call, the bytes it moves, and its trips."""
        if cell.op == DDP:
            batch = self.batch
            steps: dict[str, Iteration] = {
                name: functools.partial(one.step, batch) for name, one in self.trainees.items()
            }
            return steps, cell.size, 1
        name = "barrier" if cell.op == WAIT else cell.op
        operation = operations.Operation(name, cell.size, self.rank, self.ranks)
        rows.verify(self.binds, set(), operation, self.meeting)  # and they are warm
        calls: dict[str, Iteration] = {who: bind(operation) for who, bind in self.binds.items()}
        return calls, operation.size_bytes, operation.trips

    def _say(
        self,
        name: str,
        cell: Cell,
        load: str,
        moved: int,
        trips: int,
        loops: list[dict[str, int]],
    ) -> None:
        kind, count = load.split(":")
        harness.emit(
            name=name,
            op=cell.op,
            size=cell.size,
            moved_bytes=moved,
            row=f"{load}, {cell.between_ns}",
            kind=kind,
            burners=int(count),
            between_ms=cell.between_ns / 1e6,
            ranks=self.ranks,
            rank=self.rank,
            calls=[one["calls"] for one in loops],
            **{key: [one[key] // trips for one in loops] for key in loops[0] if key != "calls"},
        )

    def close(self) -> None:
        """Before the group ends."""
        for trainee in self.trainees.values():
            trainee.close()
        self.meeting.barrier()


def cells(arguments: SimpleNamespace) -> Iterator[Cell]:
    """All cells of a load. A step and a wait have their own computing."""
    for op in arguments.calls:
        if op == DDP:
            yield Cell(op, LAYERS * WIDTH * WIDTH * operations.ELEMENT_BYTES, 0)
        elif op == WAIT:
            yield Cell(op, 0, 0)
        else:
            for between_ms in arguments.between_ms:
                for size in [0] if op == "barrier" else arguments.sizes:
                    yield Cell(op, size, round(between_ms * 1e6))


def main(arguments: SimpleNamespace) -> None:
    harness.join_gloo(arguments.folder, arguments.rank, arguments.ranks, PATIENCE)
    job = Job(arguments)
    job.run()
    job.close()
    dist.destroy_process_group()
