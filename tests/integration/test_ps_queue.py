"""Leases of samples: each sample counts once."""

from __future__ import annotations

import gc
import random
import time
from pathlib import Path

import ps_clusters
import pytest
import torch

from rdmatensor import errors, ps

SAMPLES = 101


@pytest.mark.parametrize("mode", ["sync", "async", ps.SSP(1)])
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (3, 1), (3, 2)])
def test_each_sample_counts_once_in_an_epoch(
    mode: ps.Mode, workers: int, servers: int, tmp_path: Path
) -> None:
    def main(w: ps.Worker) -> tuple[torch.Tensor, int]:
        table = w.table("t", 1, rows=SAMPLES, rule=ps.Add())
        steps = 0
        for ids, same in w.batches((torch.arange(SAMPLES),) * 2, batch_size=8, epochs=2):
            assert torch.equal(ids, same)
            time.sleep(random.random() * 0.003)
            table.push(ids, torch.ones(len(ids), 1))
            steps = w.clock()
        return table.pull(range(SAMPLES)), steps

    results, states = ps_clusters.run(tmp_path, main, workers=workers, servers=servers, mode=mode)
    for counts, _ in results:
        assert (counts == 2).all()
    assert sum(steps for _, steps in results) == 2 * 13
    assert all(state["replays"] == 0 for state in states)


def test_sync_gives_the_same_bits_in_each_run(tmp_path: Path) -> None:
    goals = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(1))

    def main(w: ps.Worker) -> torch.Tensor:
        table = w.table("t", 3, rows=10, rule=ps.Adagrad(0.1), init=ps.normal())
        rows = ps.Embedding(table)
        for ids, goal in w.batches((torch.arange(SAMPLES) % 10, goals), batch_size=7, epochs=3):
            time.sleep(random.random() * 0.003)
            ((rows(ids) - goal) ** 2).mean().backward()
            w.clock()
        return table.pull(range(10))

    runs = [ps_clusters.run(tmp_path / str(i), main, workers=3, servers=2)[0][0] for i in range(3)]
    assert all(torch.equal(runs[0], other) for other in runs)


def test_a_batch_without_a_clock_is_an_error(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        batches = w.batches([torch.arange(4)], batch_size=2, seed=None)
        assert next(batches)[0].tolist() == [0, 1]
        with pytest.raises(errors.InvalidArgumentError, match="chunk 0 has not ended by a tick"):
            next(batches)
        with pytest.raises(errors.MismatchError, match="2 chunks"):
            w.queue("batches/0", 3)
        for wrong in (lambda: w.queue("", 1), lambda: w.queue("q", -1)):
            with pytest.raises(errors.InvalidArgumentError):
                wrong()
        with pytest.raises(errors.InvalidArgumentError, match="of one length"):
            next(w.batches([torch.arange(4), torch.arange(3)]))

    ps_clusters.run(tmp_path, main, workers=1, servers=2)


def test_the_batch_of_a_worker_that_leaves_goes_to_another(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> torch.Tensor:
        table = w.table("t", 1, rows=SAMPLES, rule=ps.Add())
        for step, (ids,) in enumerate(w.batches([torch.arange(SAMPLES)], batch_size=4)):
            table.push(ids, torch.ones(len(ids), 1))
            if w.rank == 1 and step == 3:
                w.leave()
                return torch.full((SAMPLES, 1), 1.0)
            w.clock()
        return table.pull(range(SAMPLES))

    for mode in ("sync", "async", ps.SSP(0)):
        results, _ = ps_clusters.run(tmp_path / str(mode), main, workers=3, servers=2, mode=mode)
        for counts in results:
            assert (counts == 1).all(), mode


def test_a_pass_may_end_early(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> torch.Tensor:
        table = w.table("t", 1, rows=SAMPLES, rule=ps.Add())
        for (ids,) in w.batches([torch.arange(SAMPLES)], batch_size=4, seed=None, name="first"):
            table.push(ids, torch.ones(len(ids), 1))
            break
        gc.collect()
        _kept = [bytes(range(64)) for _ in range(1000)]  # memory of the queue is used again
        w.clock()
        w.clock()  # a step without a batch
        for (ids,) in w.batches([torch.arange(SAMPLES)], batch_size=4, name="second"):
            table.push(ids, torch.ones(len(ids), 1))
            w.clock()
        return table.pull(range(SAMPLES))

    results, _ = ps_clusters.run(tmp_path, main, workers=1, servers=2)
    assert results[0].flatten().tolist() == [2.0] * 4 + [1.0] * (SAMPLES - 4)


def test_a_step_without_a_batch_while_another_waits_for_one_is_refused(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> str:
        w.table("t", 1, rows=1, rule=ps.Add())
        try:
            for _ in w.queue("q", 3):
                w.clock()
            for chunk in w.queue("r", 3):
                w.clock()
                if chunk == 2:
                    w.clock()
        except errors.RdmaTensorError as error:
            return str(error)
        return ""

    with pytest.raises(errors.RdmaTensorError, match="without a batch while worker 1 waits"):
        ps_clusters.run(tmp_path, main, workers=2, servers=2)
