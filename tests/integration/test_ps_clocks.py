"""When pushes of several workers are applied, and who waits for whom."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import ps_clusters
import pytest
import torch

from rdmatensor import errors, ps

ROWS, DIM, STEPS = 400, 4, 12
ALL = torch.arange(ROWS)
RULES: dict[str, tuple[ps.Rule, Callable[[list[torch.Tensor]], torch.optim.Optimizer]]] = {
    "sgd": (ps.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "adagrad": (ps.Adagrad(0.1), lambda p: torch.optim.Adagrad(p, 0.1)),
    "adam": (ps.Adam(0.01), lambda p: torch.optim.SparseAdam(p, 0.01)),
}


def batch(worker: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A worker's ids, some of them twice, and their gradients; step 5 has none on worker 1."""
    draw = torch.Generator().manual_seed(1000 * worker + step)
    size = 0 if (worker, step) == (1, 5) else 60
    return torch.randint(0, ROWS, (size,), generator=draw), torch.randn(size, DIM, generator=draw)


def train(folder: Path, rule: ps.Rule, workers: int, servers: int, transport: str) -> torch.Tensor:
    def main(w: ps.Worker) -> torch.Tensor:
        table = w.table("t", DIM, rows=ROWS, rule=rule, init=ps.normal(0.0, 0.1))
        for step in range(STEPS):
            ids, gradients = batch(w.rank, step)
            time.sleep(random.random() * 0.003)
            for half in (slice(0, 20), slice(20, None)):  # several pushes in a step
                table.push(ids[half], gradients[half])
            w.clock(lr_scale=1.0 / (1 + step))
        return table.pull(ALL)

    results, states = ps_clusters.run(
        folder, main, workers=workers, servers=servers, transport=transport, mode="sync"
    )
    assert all(torch.equal(results[0], other) for other in results)
    assert [state["rounds"] for state in states] == [STEPS] * servers
    return results[0]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (3, 2)])
def test_sync_is_one_process_with_the_mean_gradient(
    rule: str, workers: int, servers: int, transport: str, tmp_path: Path
) -> None:
    mine, make = RULES[rule]
    got = train(tmp_path / "a", mine, workers, servers, transport)

    def first(w: ps.Worker) -> torch.Tensor:
        return w.table("t", DIM, rows=ROWS, rule=mine, init=ps.normal(0.0, 0.1)).pull(ALL)

    weight = torch.nn.Parameter(ps_clusters.run(tmp_path / "b", first, workers=1, servers=1)[0][0])
    optimizer = make([weight])
    rates = [group["lr"] for group in optimizer.param_groups]
    for step in range(STEPS):
        batches = [batch(worker, step) for worker in range(workers)]
        ids = torch.cat([one[0] for one in batches])
        gradients = torch.cat([one[1] for one in batches]) / workers
        weight.grad = torch.sparse_coo_tensor(
            ids[None], gradients, (ROWS, DIM), check_invariants=True
        )
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate / (1 + step)
        optimizer.step()
    torch.testing.assert_close(got, weight.detach(), rtol=2e-5, atol=2e-6)


def test_sync_gives_the_same_bits_in_each_run(transport: str, tmp_path: Path) -> None:
    runs = [train(tmp_path / str(i), ps.Adagrad(0.1), 3, 2, transport) for i in range(3)]
    assert all(torch.equal(runs[0], other) for other in runs)
    assert torch.equal(runs[0], train(tmp_path / "one", ps.Adagrad(0.1), 3, 1, transport))


def test_added_rows_of_all_workers_are_summed(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> torch.Tensor:
        table = w.table("t", 1, rows=3, rule=ps.Add())
        for _ in range(10):
            table.push([1], torch.ones(1, 1))
            w.clock()
        return table.pull([1])

    for mode in ("sync", "async", ps.SSP(1)):
        results, _ = ps_clusters.run(tmp_path / str(mode), main, workers=3, servers=2, mode=mode)
        assert max(float(one) for one in results) == 30.0, mode


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_ssp_holds_the_fastest_worker(staleness: int, transport: str, tmp_path: Path) -> None:
    """A worker that clock() has let go is at most `staleness` steps ahead of all others."""
    ended = [0, 0, 0]
    leads: list[int] = []
    guard = threading.Lock()

    def main(w: ps.Worker) -> int:
        table = w.table("t", DIM, rows=ROWS, rule=ps.SGD(0.1))
        draw = random.Random(w.rank)
        for step in range(40):
            time.sleep(draw.random() * (0.004 if w.rank == 0 else 0.001))
            table.push([step], torch.ones(1, DIM))
            with guard:  # before the tick: a server cannot know it earlier
                ended[w.rank] = step + 1
            w.clock()
            with guard:
                leads.append(step + 1 - min(ended))
        return step

    _, states = ps_clusters.run(
        tmp_path, main, workers=3, servers=2, transport=transport, mode=ps.SSP(staleness)
    )
    assert max(leads) <= staleness
    assert max(leads) == staleness, "no worker was ever held: the test shows nothing"
    for state in states:
        histogram = state["staleness"]
        assert isinstance(histogram, list)
        assert sum(histogram) == 120
        # Another worker's clock goes from at least k - 1 - s to at most k + 1 + s meanwhile.
        assert sum(histogram[2 * (2 * staleness + 2) + 1 :]) == 0


def test_async_waits_for_no_worker(tmp_path: Path) -> None:
    may_end = threading.Event()

    def main(w: ps.Worker) -> int:
        table = w.table("t", DIM, rows=ROWS, rule=ps.SGD(0.1))
        if w.rank == 1:
            assert may_end.wait(30)
            return w.clock()
        for step in range(50):
            table.push([step], torch.ones(1, DIM))
            w.clock()
            assert float(table.pull([step])[0, 0]) == pytest.approx(-0.1), "its own push is applied"
        may_end.set()
        return step

    ps_clusters.run(tmp_path, main, workers=2, servers=1, mode="async")


@pytest.mark.parametrize("mode", ["sync", ps.SSP(0)])
def test_workers_may_have_different_numbers_of_steps(mode: ps.Mode, tmp_path: Path) -> None:
    def main(w: ps.Worker) -> float:
        table = w.table("t", 1, rows=1, rule=ps.SGD(1.0))
        for _ in range(3 + 4 * w.rank):
            table.push([0], torch.full((1, 1), -1.0))
            w.clock()
        return float(table.pull([0]))

    results, _ = ps_clusters.run(tmp_path, main, workers=2, servers=2, mode=mode)
    if mode == "sync":
        assert results[1] == 7.0  # a mean of fewer, as one has left
    else:
        assert results[1] == 10.0


def test_pushes_without_a_clock_are_dropped_when_a_worker_leaves(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> float:
        table = w.table("t", 1, rows=1, rule=ps.Add())
        if w.rank == 0:
            table.push([0], torch.ones(1, 1))
            w.leave()
            return 0.0
        w.clock()
        return float(table.pull([0]))

    results, _ = ps_clusters.run(tmp_path, main, workers=2, servers=1)
    assert results[1] == 0.0


def test_workers_that_scale_the_rate_differently_in_sync_fail(tmp_path: Path) -> None:
    caught: list[Exception] = []

    def main(w: ps.Worker) -> None:
        w.table("t", 1, rows=1, rule=ps.SGD(1.0))
        try:
            w.clock(0.5 + w.rank)
        except errors.PeerError as error:
            caught.append(error)
            raise

    with pytest.raises(errors.RdmaTensorError, match="scales the learning rate of this step"):
        ps_clusters.run(tmp_path, main, workers=2, servers=1)
    assert len(caught) == 2


def test_a_worker_that_never_ends_its_step_times_the_others_out(tmp_path: Path) -> None:
    over = threading.Event()

    def main(w: ps.Worker) -> None:
        table = w.table("t", 1, rows=1, rule=ps.Add())
        if w.rank == 1:
            assert over.wait(30)
            w.clock()
            assert float(table.pull([0])) == 0.0, "the step of a worker that gave up is dropped"
            return
        table.push([0], torch.ones(1, 1))
        with pytest.raises(
            errors.TransferTimeoutError, match=r"worker 1 has not ended step 1 by clock\(\)"
        ):
            w.clock(timeout_s=0.3)
        for later in (w.clock, lambda: table.push([0], torch.ones(1, 1)), lambda: table.pull([0])):
            with pytest.raises(errors.RdmaTensorError, match="only leave"):
                later()
        w.leave()
        over.set()

    ps_clusters.run(tmp_path, main, workers=2, servers=1)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_who_holds_a_lease_is_named(mode: str, tmp_path: Path) -> None:
    is_leased, over = threading.Event(), threading.Event()

    def main(w: ps.Worker) -> None:
        if w.rank == 0:  # in "sync" the first of those that ask together
            for _ in w.queue("q", 1):
                is_leased.set()
                assert over.wait(30)
                w.clock()
            return
        if mode == "async":
            assert is_leased.wait(30)
        w._core.timeout_s = 0.5
        chunks = iter(w.queue("q", 1))
        with pytest.raises(errors.TransferTimeoutError, match="worker 0 has not ended step 1"):
            next(chunks)
        over.set()

    ps_clusters.run(tmp_path, main, workers=2, servers=1, mode=mode)


def test_a_worker_that_never_calls_clock_gets_the_reason(tmp_path: Path) -> None:
    """Worker 0 gives up; the job ends, and worker 1, which is at fault, is given the reason."""
    said: list[str] = []

    def main(w: ps.Worker) -> None:
        table = w.table("t", 1, rows=1, rule=ps.Add())
        if w.rank == 0:
            w.clock(timeout_s=0.5)
        end_s = time.monotonic() + 20
        try:
            while time.monotonic() < end_s:
                table.pull([0])
        except errors.PeerError as error:
            said.append(str(error))
            raise

    with pytest.raises(errors.TransferTimeoutError, match="worker 1 has not ended step 1"):
        ps_clusters.run(tmp_path, main, workers=2, servers=1)
    assert len(said) == 1
    assert "worker 0 is gone" in said[0]
    assert "it had waited: worker 1 has not ended step 1 by clock()" in said[0]


def push_often(table: ps.Table, ids: torch.Tensor, rows: torch.Tensor, count: int) -> None:
    for _ in range(count):
        table.push(ids, rows)


def test_pushing_for_ever_without_a_clock_is_refused(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        table = w.table("t", 1024, rows=4096, rule=ps.Add())
        ids, rows = torch.arange(4096), torch.ones(4096, 1024)  # 16 MiB
        table.push(ids[:1], rows[:1])
        w.clock()
        with pytest.raises(errors.OutOfMemoryError, match="pushed since the last"):
            push_often(table, ids, rows, 80)
        with pytest.raises(errors.OutOfMemoryError, match="pushed since the last"):
            w.clock()
        assert w.clock() == 3
        assert table.pull(ids).sum() == 1024

    ps_clusters.run(tmp_path, main, workers=1, servers=1)


def test_a_refused_push_drops_the_step_on_all_servers(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        table = w.table("t", 1024, rows=4096, rule=ps.Add())
        other = w.table("other", 1, rows=ROWS, rule=ps.Add())
        owner = torch.arange(1, 4096, 2)  # rows of server 1 alone
        rows = torch.ones(len(owner), 1024)
        for chunk in w.queue("q", 1):
            assert chunk == 0
            other.push(ALL, torch.ones(ROWS, 1))
            with pytest.raises(errors.OutOfMemoryError, match="pushed since the last"):
                push_often(table, owner, rows, 140)
            with pytest.raises(errors.OutOfMemoryError, match="pushed since the last"):
                w.clock()
            assert not other.pull(ALL).any()
            assert not table.pull(owner).any()
            break
        for chunk in w.queue("q", 1):  # it came back
            other.push(ALL, torch.ones(ROWS, 1))
            assert w.clock() == 2, chunk
        assert (other.pull(ALL) == 1).all()

    ps_clusters.run(tmp_path, main, workers=1, servers=2)


def test_ssp_bounds_what_rows_and_dense_values_lack(transport: str, tmp_path: Path) -> None:
    """After clock() has returned at c, each server has at least c - s steps of each worker."""
    staleness, steps, workers = 1, 25, 3

    def main(w: ps.Worker) -> int:
        table = w.table("t", workers, rows=64, rule=ps.Add())  # on both servers
        model = torch.nn.Linear(40, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        dense = w.dense(model, ps.Add(), split_bytes=80)  # a half on each server
        mine = torch.zeros(64, workers)
        mine[:, w.rank] = 1
        draw = random.Random(w.rank)
        for _ in range(steps):
            time.sleep(draw.random() * (0.004 if w.rank == 0 else 0.0005))
            table.push(range(64), mine)
            model.weight.grad = torch.ones_like(model.weight)
            clock = dense.step()
            least = clock - staleness
            assert float(table.pull(range(64)).min()) >= least
            assert float(model.weight.detach().min()) >= clock + (workers - 1) * least
        return clock

    ps_clusters.run(
        tmp_path, main, workers=workers, servers=2, transport=transport, mode=ps.SSP(staleness)
    )
