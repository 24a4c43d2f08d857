"""A rank that ends at a chosen phase of a job, at a random moment of it; the others tell.

It is killed, leaves by an exception, or is stopped: that one goes on once the others have told.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import holdings
import torch
import torch.distributed as dist
from meeting import SCALE, has_come, meet
from roles_plan import loss_of, make

import rdmatensor
from graph_analysis.plan_json import plan_from_json

SIZES = (2, 1024, 1 << 18)  # floats: words, pages, and more than a ring holds at once
# Then each phase takes a while, and a random moment of it is within it: fewer do where all is slow.
ROUNDS = max(6, round(24 / SCALE))
# Who dies before it comes is missed at this deadline only; nothing else may last so long.
SET_UP_LIMIT = timedelta(seconds=6 * SCALE)
LIMIT = timedelta(seconds=60 * SCALE)
# Then one that is stopped goes on in any case: the job has failed, and its deadline is near.
LONGEST_STOP_S = 30.0 * SCALE
STOPPED_IN = "stopped-in"  # the byte of its diary while it was stopped
PLAN_VARIABLE = "SWEEP_PLAN"  # a file: to make the plan takes seconds


class Left(BaseException):
    """What the rank leaves by that is not killed; torch swallows many an Exception."""


def all_reduce(_rank: int, _world: int) -> None:
    for size in SIZES:
        dist.all_reduce(torch.ones(size))


def all_gather(_rank: int, world: int) -> None:
    for size in SIZES:
        dist.all_gather_into_tensor(torch.empty(size * world), torch.ones(size))


def reduce_scatter(_rank: int, world: int) -> None:
    for size in SIZES:
        dist.reduce_scatter_tensor(torch.empty(size), torch.ones(size * world))


def broadcast(_rank: int, world: int) -> None:
    for root, size in enumerate(SIZES):
        dist.broadcast(torch.ones(size), src=root % world)


def all_to_all(_rank: int, world: int) -> None:
    for size in SIZES:
        dist.all_to_all_single(torch.empty(size * world), torch.ones(size * world))


def gather_and_scatter(rank: int, world: int) -> None:
    for root, size in enumerate(SIZES):
        root %= world
        parts = [torch.empty(size) for _ in range(world)] if rank == root else None
        dist.gather(torch.ones(size), parts, dst=root)
        dist.scatter(torch.empty(size), parts, src=root)


def barrier(_rank: int, _world: int) -> None:
    for _ in range(20):
        dist.barrier()


def objects(rank: int, world: int) -> None:
    everybody: list[object] = [None] * world
    dist.all_gather_object(everybody, {"rank": rank, "words": "x" * 5000})


def send(rank: int, world: int) -> None:
    """Each to the next, all at once."""
    for size in SIZES:
        went = dist.isend(torch.ones(size), (rank + 1) % world)
        dist.recv(torch.empty(size), (rank - 1) % world)
        if went is not None:
            went.wait()


class PlanSteps:
    """Steps of a model that is planned when the first of them comes.

    prepare() takes seconds, in which torch imports much: before anybody waits for anybody.
    """

    _planned: rdmatensor.plan.PlannedModel | None = None

    @property
    def has_planned(self) -> bool:
        return self._planned is not None

    def prepare(self) -> None:
        self._model, self._batch_of = make("mlp")
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        words = Path(os.environ[PLAN_VARIABLE]).read_text(encoding="utf-8")
        self._plan = plan_from_json(words)

    def __call__(self, rank: int, _world: int) -> None:
        if self._planned is None:
            self._planned = rdmatensor.plan.apply(self._model, self._plan, self._optimizer)
        self._optimizer.zero_grad()
        loss_of(self._planned(self._batch_of(0, rank))).backward()
        self._optimizer.step()


plan_steps = PlanSteps()


# In the order in which a job goes through them.
PHASES: dict[str, Callable[[int, int], None] | None] = {
    "set-up": None,
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "broadcast": broadcast,
    "all_to_all": all_to_all,
    "gather and scatter": gather_and_scatter,
    "barrier": barrier,
    "objects": objects,
    "send": send,
    "plan step": plan_steps,
    "teardown": None,
}
LAST_SUM = "all_reduce"  # of a rank that went through its phases and hears of the end then
# What an error of a phase calls the operation that it ended, one of them. Set-up: torch's store, or
# what the backend asks of it, has failed before there is an operation.
OPERATIONS: dict[str, tuple[str, ...]] = {
    "set-up": (
        "rdmatensor:all_reduce",
        "did not join the group",
        "rdmatensor:init_process_group: the store did not answer",
        "rdmatensor:init_process_group: rank 0, which hosts the store, did not answer",
    ),
    "all_reduce": ("rdmatensor:all_reduce",),
    "all_gather": ("rdmatensor:all_gather",),
    "reduce_scatter": ("rdmatensor:reduce_scatter",),
    "broadcast": ("rdmatensor:broadcast",),
    "all_to_all": ("rdmatensor:all_to_all",),
    "gather and scatter": ("rdmatensor:gather", "rdmatensor:scatter"),
    "barrier": ("rdmatensor:barrier",),
    "objects": ("rdmatensor:all_gather",),
    "send": ("rdmatensor:send", "rdmatensor:recv"),
    "plan step": ("rdmatensor:",),
    "teardown": (),  # waits for nobody
}


class Diary:
    """What the rank did last, in memory that outlives it."""

    def __init__(self, place: Path, rank: int) -> None:
        path = place / f"phase-{rank}"
        path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 0)

    def note(self, phase: str) -> None:
        self._page[0] = list(PHASES).index(phase)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Left


def _note_time(place: Path, at_s: float) -> None:
    (place / "died_at").write_text(str(at_s), encoding="utf-8")


class Victim:
    """Dies, or leaves by an exception, a while after a phase has begun."""

    def __init__(self, how: str, delay_s: float, place: Path) -> None:
        self._delay_s = delay_s
        self._place = place
        # The timer's signal kills at any instruction, inside the library's own code too.
        signal.signal(signal.SIGALRM, signal.SIG_DFL if how == "killed" else _leave)

    def begin(self) -> None:
        _note_time(self._place, time.monotonic() + self._delay_s)
        signal.setitimer(signal.ITIMER_REAL, self._delay_s)

    def wait(self) -> None:
        """Wait for the end, where the job was faster."""
        signal.pause()


class Stopped:
    """Is stopped by a child of its own, at any instruction, until the others have told.

    Made before the library has threads or descriptors, so that the child has none of them.
    """

    def __init__(self, delay_s: float, place: Path, rank: int, others: list[int]) -> None:
        parent = os.pidfd_open(os.getpid())
        begun, self._begin = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            status = 1
            try:
                os.close(self._begin)
                if os.read(begun, 1):  # nothing: the rank has ended before
                    time.sleep(delay_s)
                    self._stop(parent, place, rank, others)
                status = 0
            finally:
                os._exit(status)
        os.close(begun)
        os.close(parent)

    @staticmethod
    def _stop(parent: int, place: Path, rank: int, others: list[int]) -> None:
        _note_time(place, time.monotonic())
        signal.pidfd_send_signal(parent, signal.SIGSTOP)
        until_s = time.monotonic() + LONGEST_STOP_S
        while not all(has_come("told", other) for other in others) and time.monotonic() < until_s:
            time.sleep(0.01)
        (place / STOPPED_IN).write_bytes((place / f"phase-{rank}").read_bytes()[:1])
        signal.pidfd_send_signal(parent, signal.SIGCONT)

    def begin(self) -> None:
        os.write(self._begin, b".")

    def wait(self) -> None:
        """Return once it was stopped and goes on."""
        if self._child != 0:
            _, status = os.waitpid(self._child, 0)
            self._child = 0
            assert status == 0, "the child that stops this rank failed"


def _make_victim(
    how: str, delay_s: float, place: Path, rank: int, others: list[int]
) -> Victim | Stopped:
    if how == "stopped":
        return Stopped(delay_s, place, rank, others)
    return Victim(how, delay_s, place)


def _meeting_place(how: str, rank: int, world: int, place: Path) -> dict[str, Any]:
    """Return what init_process_group() is to be told.

    A rank that is stopped in the midst of a call may hold the lock of torch's FileStore, and the
    others cannot know that it is that rank's fault: then rank 0 serves the store, stopped or not.
    """
    if how != "stopped":
        return {"init_method": f"file://{place / 'store'}"}
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(
        "127.0.0.1", port, world, rank == 0, timeout=SET_UP_LIMIT, wait_for_workers=False
    )
    return {"store": store}


def a_rank_dies(
    rank: int,
    world: int,
    *,
    victim: int,
    phase: str,
    how: str,
    delay_s: float,
    folder: str,
) -> dict[str, object]:
    """Return what was seen, when, and, of survivors, a sum of theirs and what is left behind."""
    place, before = Path(folder), holdings.count(has_store=how == "stopped")
    left = [other for other in range(world) if other != victim]
    diary = Diary(place, rank)
    dies = _make_victim(how, delay_s, place, rank, left) if rank == victim else None
    torch.set_num_threads(1)
    # The victim goes as far as the phase after its own, the others one further, if that.
    going = list(PHASES)[: list(PHASES).index(phase) + (2 if rank == victim else 3)]
    if "plan step" in going:
        plan_steps.prepare()
    where = _meeting_place(how, rank, world, place)
    meet("start", rank, range(world))
    seen: dict[str, object] = {"type": "", "text": "", "at_s": time.monotonic()}
    try:
        for doing in going:
            diary.note(doing)
            if dies is not None and doing == phase:
                dies.begin()
            if doing == "set-up":
                _set_up(rank, world, where, is_short=phase == doing)
            else:
                _go_through(doing, rank, world)
        if dies is not None:
            dies.wait()
        if dist.is_initialized():  # the last that it sent was all that some were waiting for
            doing = LAST_SUM
            dist.all_reduce(torch.ones(10))
    except RuntimeError as error:
        seen = _what_ended(doing, error)
        if how == "exception":
            _abort()
    if dies is not None:  # it was stopped, and the others have gone on without it
        dies.wait()
        _tear_down()
        return seen
    # Nobody leaves the old group before all have told: the victim is to be blamed.
    meet("told", rank, left)
    _tear_down()
    total = _total_of_the_rest(left.index(rank), len(left), place / "second-store")
    return {**seen, "total": total, "left": _left(before)}


def _left(before: dict[str, int]) -> dict[str, int]:
    """Return what the groups left; what is planned keeps the arena for as long as it lives."""
    return {} if plan_steps.has_planned else holdings.left(before)


def _what_ended(phase: str, error: RuntimeError) -> dict[str, object]:
    said = {"type": type(error).__name__, "text": str(error), "phase": phase}
    return {**said, "at_s": time.monotonic()}


def _tear_down() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _total_of_the_rest(rank: int, world: int, store: Path) -> float:
    dist.init_process_group(
        "rdmatensor", init_method=f"file://{store}", rank=rank, world_size=world, timeout=LIMIT
    )
    total = torch.ones(1000)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return float(total.sum())


def _abort() -> None:
    """End what others still wait for from us: who leaves by an exception breaks no group.

    A receive from such a rank is one rank's error; others may wait for what that one never sends.
    """
    if dist.is_initialized():
        group = dist.distributed_c10d._get_default_group()
        group._get_backend(torch.device("cpu")).abort()


def _set_up(rank: int, world: int, where: dict[str, Any], *, is_short: bool) -> None:
    limit = SET_UP_LIMIT if is_short else LIMIT
    dist.init_process_group("rdmatensor", rank=rank, world_size=world, timeout=limit, **where)
    dist.all_reduce(torch.ones(10))  # connects


def _go_through(phase: str, rank: int, world: int) -> None:
    call = PHASES[phase]
    if phase == "teardown":
        dist.destroy_process_group()
    elif call is not None:
        for _ in range(ROUNDS):
            call(rank, world)
