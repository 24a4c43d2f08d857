"""In-graph training: one process has the data, workers run its functions."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import jobs
import ps_clusters
import pytest
import torch

from rdmatensor import errors, ps
from rdmatensor.ps.driving import take_part

DIM, ROWS = 4, 30
INIT = ps.uniform(-0.5, 0.5)


def drive(
    folder: Path,
    main: Callable[[ps.Driver], Any],
    *,
    workers: int,
    servers: int = 1,
    in_flight: int | None = None,
    **options: Any,
) -> tuple[Any, list[dict[str, object]]]:
    """Run main(driver) on one more worker; returns what it returned, and the servers' states."""
    results: list[Any] = []

    def play(w: ps.Worker) -> None:
        take_part(w, lambda driver: results.append(main(driver)), in_flight)

    _, states = ps_clusters.run(folder, play, workers=workers + 1, servers=servers, **options)
    return results[0], states


def table_of(w: ps.Worker) -> ps.Table:
    return w.table("t", DIM, rows=ROWS, rule=ps.SGD(0.1), init=INIT)


def embed(w: ps.Worker, ids: torch.Tensor, goal: torch.Tensor) -> float:
    loss = (ps.Embedding(table_of(w))(ids) - goal).square().mean()
    loss.backward()
    return float(loss)


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(4)
    sizes = [(7, 1, 20, 3)[i % 4] for i in range(count)]
    return [
        (torch.randint(0, ROWS, (size,), generator=draw), torch.randn(size, DIM, generator=draw))
        for size in sizes
    ]


def oracle(first: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """Mean of `width` batches in each step, in one process; the last step may have fewer."""
    weight = torch.nn.Parameter(first)
    optimizer = torch.optim.SGD([weight], 0.1)
    data = batches(count)
    for start in range(0, count, width):
        step = data[start : start + width]
        losses = [(weight[ids] - goal).square().mean() for ids, goal in step]
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return weight.detach()


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_synchronous_step_has_the_mean_of_one_batch_for_each_worker(
    workers: int, servers: int, transport: str, tmp_path: Path
) -> None:
    count = 2 * workers + 1  # the last step has one batch

    def main(d: ps.Driver) -> tuple[torch.Tensor, torch.Tensor]:
        assert (d.workers, repr(d)) == (workers, f"<Driver of {workers} workers>")
        first = table_of(d.worker).pull(range(ROWS))
        for one in batches(count):
            d.schedule(embed, *one)
        losses = d.gather()
        assert len(losses) == count
        assert all(isinstance(one, float) and one > 0 for one in losses)
        assert d.gather() == []
        return first, table_of(d.worker).pull(range(ROWS))

    (first, rows), states = drive(
        tmp_path, main, workers=workers, servers=servers, transport=transport
    )
    torch.testing.assert_close(rows, oracle(first, count, workers), rtol=1e-5, atol=1e-6)
    assert [one["rounds"] for one in states] == [3] * servers


@pytest.mark.parametrize("mode", ["async", ps.SSP(1)])
def test_each_batch_is_applied_once_and_results_are_in_order(mode: Any, tmp_path: Path) -> None:
    def main(d: ps.Driver) -> list[float]:
        futures = [d.schedule(count, torch.tensor([i % 10])) for i in range(100)]
        assert futures[57].result(30) == 7
        assert d.gather() == [i % 10 for i in range(100)]
        counts = d.worker.table("counts", 1, rows=10, rule=ps.Add())
        rows: list[float] = counts.pull(range(10)).flatten().tolist()
        return rows

    counts, states = drive(tmp_path, main, workers=3, servers=2, mode=mode)
    assert counts == [10.0] * 10
    assert [one["replays"] for one in states] == [0, 0]


def count(w: ps.Worker, ids: torch.Tensor) -> int:
    w.table("counts", 1, rows=10, rule=ps.Add()).push(ids, torch.ones(len(ids), 1))
    return int(ids[0])


def linear(scale: float) -> torch.nn.Module:
    model = torch.nn.Linear(3, 2)
    for one in model.parameters():
        one.data.copy_(torch.linspace(-scale, scale, one.numel()).view(one.shape))
    return model


@functools.cache
def model_of(w: ps.Worker) -> tuple[torch.nn.Module, ps.Dense]:
    model = linear(1.0 + w.rank)
    return model, w.dense(model, ps.SGD(0.1, momentum=0.9))


def dense_step(w: ps.Worker, x: torch.Tensor, y: torch.Tensor) -> None:
    model, dense = model_of(w)
    torch.nn.functional.mse_loss(model(x), y).backward()
    dense.step()


def weights(w: ps.Worker) -> list[torch.Tensor]:
    return [one.detach() for one in model_of(w)[0].parameters()]


def test_a_dense_model_follows_torch(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    data = [(torch.randn(8, 3, generator=draw), torch.randn(8, 2, generator=draw)) for _ in "12345"]

    def main(d: ps.Driver) -> Any:
        for x, y in data:
            d.schedule(dense_step, x, y)
        d.join()
        return [d.schedule(weights).result() for _ in range(2)]

    (one, other), _ = drive(tmp_path, main, workers=2)
    model = linear(1.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for first in (0, 2, 4):
        step = data[first : first + 2]
        losses = [torch.nn.functional.mse_loss(model(x), y) for x, y in step]
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for found in (one, other):
        for got, want in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(got, want.detach(), rtol=1e-5, atol=1e-6)


def echo(w: ps.Worker, *values: Any) -> Any:
    return values


VALUES: list[Any] = [
    torch.arange(6).reshape(2, 3).t(),
    torch.tensor(2.5, dtype=torch.bfloat16),
    torch.zeros(0, 4, dtype=torch.bool),
    torch.tensor([1 + 2j]).conj(),
    torch.arange(1_000_003, dtype=torch.int16),
    {"a": [1, 2.5, None, True, "x" * 5000], "b": (torch.ones(3), (), {})},
]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_values_come_back_as_they_were(transport: str, tmp_path: Path) -> None:
    def main(d: ps.Driver) -> None:
        for _ in range(3):
            d.schedule(echo, *VALUES)
        for found in d.gather():
            assert _same(tuple(VALUES), found)
        kept = d.schedule(echo, torch.zeros(300_000)).result()[0]
        for number in range(20):  # what a slot holds later does not change what came before
            d.schedule(echo, torch.full((300_000,), float(number)))
        assert [float(one[0].max()) for one in d.gather()[-20:]] == [float(i) for i in range(20)]
        assert float(kept.abs().max()) == 0

    drive(tmp_path, main, workers=2, transport=transport, mode="async")


@ps.register("a name")
def _named(w: ps.Worker, x: int) -> tuple[int, int]:
    return w.rank, x + w.workers


def test_functions_have_names(tmp_path: Path) -> None:
    def main(d: ps.Driver) -> None:
        assert d.schedule(_named, 5).result()[1] == 7
        for wrong in (lambda: None, main, "embed", functools.partial(count, ids=1)):
            with pytest.raises(errors.InvalidArgumentError, match="at the top of a module"):
                d.schedule(wrong)  # type: ignore[arg-type]
        for value in (object(), {1: 2}, torch.zeros(2).to_sparse(), "x" * 2_000_000):
            with pytest.raises(errors.InvalidArgumentError, match="schedule"):
                d.schedule(echo, value)
        with pytest.raises(errors.InvalidArgumentError, match="has no steps"):
            table_of(d.worker).push([0], torch.zeros(1, DIM))
        with pytest.raises(errors.InvalidArgumentError, match="has no steps"):
            d.worker.clock()
        with pytest.raises(errors.InvalidArgumentError, match="is the name of"):
            ps.register("a name")(echo)

    drive(tmp_path, main, workers=2)


def fails(w: ps.Worker, ids: torch.Tensor, when: str) -> int:
    table = w.table("counts", 1, rows=10, rule=ps.Add())
    table.push(ids, torch.ones(len(ids), 1))
    if when == "refused":
        table.push([10], torch.ones(1, 1))
    if when == "before":
        raise ValueError(f"no {ids.tolist()}")
    return int(ids[0]) if when != "result" else object()  # type: ignore[return-value]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_exception_comes_back_with_its_traceback(mode: str, tmp_path: Path) -> None:
    def main(d: ps.Driver) -> list[float]:
        good = [d.schedule(fails, torch.tensor([i]), "no") for i in range(4)]
        for when in ("before", "result", "refused"):
            with pytest.raises(ps.FunctionError) as caught:
                d.schedule(fails, torch.tensor([5]), when).result(30)
            assert "in fails" in caught.value.traceback or when == "result"
            assert "fails failed on worker" in str(caught.value)
            if when == "before":
                assert caught.value.kind == "ValueError"
                assert "ValueError: no [5]" in str(caught.value)
                assert caught.value.worker in (0, 1)
            with pytest.raises(ps.FunctionError):
                d.join()
            d.join()
        assert [one.result() for one in good] == [0, 1, 2, 3]
        assert d.schedule(fails, torch.tensor([9]), "no").result(30) == 9
        counts = d.worker.table("counts", 1, rows=10, rule=ps.Add())
        rows: list[float] = counts.pull(range(10)).flatten().tolist()
        return rows

    rows, _ = drive(tmp_path, main, workers=2, servers=2, mode=mode)
    assert rows == [1.0, 1.0, 1.0, 1.0, 0, 0, 0, 0, 0, 1.0], "a failed batch leaves nothing"


_gate = threading.Event()


def waits(w: ps.Worker, number: int) -> int:
    assert _gate.wait(30)
    return number


def test_schedule_waits_for_room_and_batches_can_be_cancelled(tmp_path: Path) -> None:
    _gate.clear()

    def main(d: ps.Driver) -> None:
        assert d.in_flight == 2
        first, second = d.schedule(waits, 1), d.schedule(waits, 2)
        deadline = time.monotonic() + 30
        while not first.running() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert second.cancel()
        threading.Timer(0.2, _gate.set).start()
        begun = time.monotonic()
        assert d.schedule(waits, 3).result(30) == 3
        assert time.monotonic() - begun > 0.1, "it did not wait for room"
        assert first.result() == 1
        with pytest.raises(CancelledError):
            d.gather()

    drive(tmp_path, main, workers=1, in_flight=2, mode="async")


def test_a_driver_saves_and_its_workers_go_on_where_they_were(tmp_path: Path) -> None:
    data = batches(8)

    def first(d: ps.Driver) -> torch.Tensor:
        for number, one in enumerate(data):
            d.schedule(embed, *one)
            if number == 3:
                d.worker.save(tmp_path / "saved").wait()
        d.join()
        return table_of(d.worker).pull(range(ROWS))

    def again(d: ps.Driver) -> torch.Tensor:
        steps = d.schedule(clock_of).result()
        assert steps <= 2
        for one in data[2 * steps :]:
            d.schedule(embed, *one)
        d.join()
        return table_of(d.worker).pull(range(ROWS))

    whole, _ = drive(tmp_path / "1", first, workers=2, servers=2)
    rest, _ = drive(tmp_path / "2", again, workers=2, servers=1, restore=tmp_path / "saved")
    assert torch.equal(whole, rest)


def clock_of(w: ps.Worker) -> int:
    table_of(w)
    return w.steps


def test_an_exception_of_the_driver_ends_the_job(tmp_path: Path) -> None:
    def main(d: ps.Driver) -> None:
        d.schedule(echo, 1)
        raise KeyError("of the driver")

    with pytest.raises(KeyError, match="of the driver"):
        drive(tmp_path, main, workers=2, servers=2)


def test_wrong_jobs_are_refused(tmp_path: Path) -> None:
    def play(w: ps.Worker) -> None:
        wanted = errors.InvalidArgumentError if w.rank == 2 else errors.PeerError
        with pytest.raises(wanted, match="in_flight=1 for 2 workers" if w.rank == 2 else None):
            take_part(w, lambda _: None, in_flight=1)

    ps_clusters.run(tmp_path / "1", play, workers=3, servers=1)
    with pytest.raises(errors.InvalidArgumentError, match="at least one worker"):
        drive(tmp_path / "2", lambda _: None, workers=0)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_dead_worker_s_batch_runs_again(mode: str, tmp_path: Path) -> None:
    ranks = jobs.run("roles_ps_drive:victims", 6, tmp_path, mode=mode, on_worker_death="continue")
    exits = [rank.exit for rank in ranks]
    assert exits.count(-9) == 2, [rank.log for rank in ranks]
    assert [exits[0], *exits[3:]] == [0, 0, 0, 0], [rank.log for rank in ranks]
    assert ranks[3].result["counts"] == [1.0] * 60
    assert ranks[3].result["results"] == list(range(60))


@pytest.mark.parametrize("who", ["worker", "server", "driver"])
def test_all_end_when_a_process_dies(who: str, tmp_path: Path) -> None:
    ranks = jobs.run("roles_ps_drive:dies", 4, tmp_path, who=who)
    lost = {"worker": 1, "driver": 2, "server": 3}[who]
    assert [rank.exit for rank in ranks] == [-9 if rank == lost else 0 for rank in range(4)], [
        rank.log for rank in ranks
    ]
    for rank in ranks:
        if rank.number != lost:
            assert rank.result["error"].startswith("PeerError"), rank.result
    if who != "driver":
        assert f"rank {lost}" in ranks[2].result["error"], ranks[2].result


def test_workers_end_when_the_driver_dies_and_the_job_would_go_on(tmp_path: Path) -> None:
    ranks = jobs.run("roles_ps_drive:dies", 4, tmp_path, who="driver", on_worker_death="continue")
    assert [rank.exit for rank in ranks] == [0, 0, -9, 0], [rank.log for rank in ranks]
    for rank in ranks[:2]:
        assert "rank 2" in rank.result["error"], rank.result
