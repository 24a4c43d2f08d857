"""What a worker may see, in each schedule of steps: bounds on staleness, and its histogram."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ps_clusters
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rdmatensor import errors, ps

WORKERS, SERVERS, PATIENCE_S = 3, 2, 20.0
IDS = torch.arange(SERVERS)  # a row on each server
SCHEDULES = st.lists(
    st.tuples(st.integers(0, WORKERS - 1), st.sampled_from(["pull", "step"])), max_size=40
)


@dataclass
class Actor:
    """A worker that does one thing at a time, and what it has done."""

    orders: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    done: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    ticked: int = 0  # steps whose clock() was called
    ended: int = 0  # steps whose clock() has returned
    is_held: bool = False

    def act(self, w: ps.Worker) -> None:
        """Be the worker until "stop" comes."""
        table = w.table("counts", WORKERS, rows=SERVERS, rule=ps.Add())
        mine = torch.zeros(SERVERS, WORKERS)
        mine[:, w.rank] = 1
        self.done.put("begun")
        while (order := self.orders.get()) != "stop":
            if order == "pull":
                self.done.put(table.pull(IDS))
            else:
                table.push(IDS, mine)
                self.done.put(w.clock(timeout_s=PATIENCE_S))


class Play:
    """The workers of one cluster, one of which moves at a time."""

    def __init__(self, staleness: int | None) -> None:
        self.actors = [Actor() for _ in range(WORKERS)]
        self.staleness = staleness  # None: no worker is held
        self.stale: list[int] = []  # of each step: the steps of others since its worker's last one
        self.seen = [0] * WORKERS
        self.applied = 0
        self.held = self.pulls = 0

    def must_wait(self, actor: Actor) -> bool:
        """Return whether SSP holds this worker's clock()."""
        if self.staleness is None:
            return False
        return actor.ticked - self.staleness > min(one.ticked for one in self.actors)

    def release(self) -> None:
        """Await the end of each clock() that is held no more; no other one may have ended."""
        for actor in self.actors:
            if not actor.is_held:
                continue
            if self.must_wait(actor):
                assert actor.done.empty(), "clock() returned too early"
                continue
            assert actor.done.get(timeout=PATIENCE_S) == actor.ticked
            actor.ended, actor.is_held = actor.ticked, False

    def step(self, worker: int) -> None:
        """Let a worker push and call clock(), unless it is held in one."""
        actor = self.actors[worker]
        if actor.is_held:
            return
        actor.ticked += 1
        actor.is_held = True
        actor.orders.put("step")
        self.stale.append(self.applied - self.seen[worker])
        self.applied += 1
        self.seen[worker] = self.applied
        if self.must_wait(actor):
            self.held += 1
            self.await_tick(worker)
        self.release()

    def await_tick(self, worker: int) -> None:
        """Wait until the servers have the tick: any other worker that may pull sees its step."""
        free = next((one for one in self.actors if not one.is_held), None)
        while free is not None:
            free.orders.put("pull")
            if float(free.done.get(timeout=PATIENCE_S)[:, worker].min()) == (
                self.actors[worker].ticked
            ):
                return

    def pull(self, worker: int) -> None:
        """Check what a worker sees."""
        actor = self.actors[worker]
        if actor.is_held:
            return
        self.pulls += 1
        actor.orders.put("pull")
        rows = actor.done.get(timeout=PATIENCE_S)
        for other, one in enumerate(self.actors):
            least, most = float(rows[:, other].min()), float(rows[:, other].max())
            assert least >= one.ended, "a step whose clock() has returned is not there"
            assert most <= one.ticked
            if self.staleness is not None:
                assert least >= actor.ended - self.staleness, "staler than SSP permits"

    def level(self) -> None:
        """Bring all workers to the same step."""
        goal = max(one.ticked for one in self.actors)
        while any(one.ticked < goal for one in self.actors):
            for worker, one in enumerate(self.actors):
                if one.ticked < goal:
                    self.step(worker)


@contextmanager
def playing(folder: Path, mode: ps.Mode, staleness: int | None) -> Iterator[Play]:
    play, ends = Play(staleness), []

    def run() -> None:
        ends.append(
            ps_clusters.run(
                folder,
                lambda w: play.actors[w.rank].act(w),
                workers=WORKERS,
                servers=SERVERS,
                mode=mode,
            )
        )

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    for actor in play.actors:
        assert actor.done.get(timeout=PATIENCE_S) == "begun"
    yield play
    play.level()
    for actor in play.actors:
        actor.orders.put("stop")
    thread.join(PATIENCE_S)
    assert ends, "a worker or a server failed"
    _, states = ends[0]
    want = [0] * 16
    for stale in play.stale:
        want[min(stale, 15)] += 1
    for state in states:
        assert state["staleness"] == want


@pytest.mark.parametrize("staleness", [None, 0, 1, 2])
def test_no_schedule_shows_data_that_is_too_stale(staleness: int | None, tmp_path: Path) -> None:
    mode: ps.Mode = "async" if staleness is None else ps.SSP(staleness)
    with playing(tmp_path, mode, staleness) as play:

        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
        @given(SCHEDULES)
        @example([(0, "step")] * 5 + [(1, "pull"), (2, "pull")])
        @example([(0, "step"), (0, "step"), (1, "step"), (2, "step"), (0, "pull")] * 3)
        def check(schedule: list[tuple[int, str]]) -> None:
            for worker, what in schedule:
                getattr(play, what)(worker)
            play.level()

        check()
    assert play.pulls > 40
    assert (play.held > 0) == (staleness is not None)


def test_the_first_pulls_in_sync_are_equal_and_in_ssp_0_need_not_be(tmp_path: Path) -> None:
    """A worker has ended its first step before another one begins it.

    SSP(0) bounds what a worker lacks, and not what it has in addition: the late worker sees the
    step. In "sync" the step is applied when all have ended it, so that all begin from one state.
    """

    def first_pulls(mode: ps.Mode) -> list[torch.Tensor]:
        has_ticked = threading.Event()

        def main(w: ps.Worker) -> list[torch.Tensor]:
            table = w.table("t", 1, rows=SERVERS, rule=ps.Add())
            if w.rank == 1:
                assert has_ticked.wait(PATIENCE_S)
                while not w.describe()["servers"][0]["ticks"]:  # type: ignore[index]
                    pass
            seen = [table.pull(IDS)]
            table.push(IDS, torch.ones(SERVERS, 1))
            has_ticked.set()
            w.clock()
            seen.append(table.pull(IDS))
            return seen

        folder = tmp_path / str(mode)
        results, _ = ps_clusters.run(folder, main, workers=2, servers=SERVERS, mode=mode)
        assert all(float(seen[1].min()) == 2.0 for seen in results)
        return [seen[0] for seen in results]

    early, late = first_pulls("sync")
    assert torch.equal(early, late)
    early, late = first_pulls(ps.SSP(0))
    assert float(early.max()) == 0.0
    assert float(late.min()) == 1.0


def test_prefetched_rows_are_as_stale_as_they_are(tmp_path: Path) -> None:
    turns = [threading.Event() for _ in range(4)]

    def ahead(w: ps.Worker, table: ps.Table) -> None:
        first, second = table.prefetch([0]), table.prefetch([1])
        assert first.exception(PATIENCE_S) is None
        assert second.exception(PATIENCE_S) is None
        with pytest.raises(errors.BusyError, match="in_flight=2: call clock"):
            table.prefetch([2])
        with pytest.raises(errors.InvalidArgumentError, match="opened with in_flight=2"):
            w.table("t", 1, rows=4, rule=ps.Add())
        turns[0].set()
        assert turns[1].wait(PATIENCE_S)
        assert float(first.result()) == 0.0
        w.clock()  # 3 steps of the other since the pull
        third = table.prefetch([1])
        assert third.exception(PATIENCE_S) is None
        with pytest.raises(errors.BusyError, match="in_flight=2"):
            table.prefetch([2])
        turns[2].set()
        assert turns[3].wait(PATIENCE_S)
        assert float(second.result()) == 0.0
        w.clock()  # 4 since the pull, 1 since the last step
        assert float(third.result(PATIENCE_S)) == 3.0
        w.clock()  # 1 since the pull

    def main(w: ps.Worker) -> None:
        table = w.table("t", 1, rows=4, rule=ps.Add(), in_flight=2 if w.rank == 0 else None)
        if w.rank == 0:
            return ahead(w, table)
        for turn, steps in ((0, 3), (2, 1)):
            assert turns[turn].wait(PATIENCE_S)
            for _ in range(steps):
                table.push(range(4), torch.ones(4, 1))
                w.clock()
            turns[turn + 1].set()
        return None

    _, states = ps_clusters.run(tmp_path, main, workers=2, servers=SERVERS, mode="async")
    for state in states:
        # The other worker's steps: three that lack none, and one that lacks one.
        assert state["staleness"] == [3, 2, 0, 1, 1] + [0] * 11


def test_a_step_that_uses_no_row_ahead_counts_from_the_last_one(tmp_path: Path) -> None:
    """Also more than the servers remember: then as far back as they do."""

    def main(w: ps.Worker) -> None:
        table = w.table("t", 1, rows=4, rule=ps.Add())
        old = table.prefetch([0])
        for _ in range(100):
            w.clock()
        assert float(old.result(PATIENCE_S)) == 0.0
        w.clock()

    _, states = ps_clusters.run(tmp_path, main, workers=1, servers=1, mode="async")
    assert states[0]["staleness"] == [101] + [0] * 15
