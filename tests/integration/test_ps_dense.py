"""Dense models on a parameter server."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ps_clusters
import pytest
import torch

from rdmatensor import errors, ps

STEPS, BATCH = 15, 12
RULES: dict[str, tuple[ps.Rule, Callable[[list[torch.Tensor]], torch.optim.Optimizer]]] = {
    "sgd": (ps.SGD(0.05), lambda p: torch.optim.SGD(p, 0.05)),
    "momentum": (
        ps.SGD(0.05, 0.9, nesterov=True, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, 0.05, 0.9, nesterov=True, weight_decay=0.01),
    ),
    "adagrad": (ps.Adagrad(0.05), lambda p: torch.optim.Adagrad(p, 0.05)),
    "adam": (ps.Adam(0.01, lazy=False), lambda p: torch.optim.Adam(p, 0.01)),
    "adamw": (ps.AdamW(0.01), lambda p: torch.optim.AdamW(p, 0.01)),
}


_random_numbers = threading.Lock()  # all threads share torch's generator


def make_model(seed: int) -> torch.nn.Module:
    """A model whose parameters do not end where pieces and blocks of 16,384 do."""
    with _random_numbers, torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            torch.nn.Linear(20, 1000), torch.nn.Tanh(), torch.nn.Linear(1000, 3)
        )


def batch(worker: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1000 * worker + step)
    return torch.randn(BATCH, 20, generator=draw), torch.randn(BATCH, 3, generator=draw)


def train(
    folder: Path, rule: ps.Rule, workers: int, servers: int, transport: str, mode: ps.Mode = "sync"
) -> torch.Tensor:
    def main(w: ps.Worker) -> torch.Tensor:
        model = make_model(w.rank)  # all begin with worker 0's
        dense = w.dense(model, rule, split_bytes=10_000)
        assert dense.pieces == 10
        for step in range(STEPS):
            time.sleep(random.random() * 0.002)
            x, y = batch(w.rank, step)
            halves = torch.nn.functional.mse_loss(model(x), y) / 2
            halves.backward(retain_graph=True)
            halves.backward()  # gradients are added up in a step
            if step % 4 == 3:
                for one in model.parameters():
                    one.grad = one.grad.clone()  # as zero_grad() and other code may do
            assert dense.step() == step + 1
            assert all(not one.grad.any() for one in model.parameters())
        return torch.cat([one.detach().flatten() for one in model.parameters()])

    results, _ = ps_clusters.run(
        folder, main, workers=workers, servers=servers, transport=transport, mode=mode
    )
    if mode == "sync":
        assert all(torch.equal(results[0], other) for other in results)
    return results[0]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 1), (3, 3)])
def test_sync_is_one_process_with_all_batches(
    rule: str, workers: int, servers: int, transport: str, tmp_path: Path
) -> None:
    mine, make = RULES[rule]
    got = train(tmp_path, mine, workers, servers, transport)
    model = make_model(0)
    optimizer = make(list(model.parameters()))
    for step in range(STEPS):
        parts = [batch(worker, step) for worker in range(workers)]
        x, y = (torch.cat(one) for one in zip(*parts, strict=True))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    want = torch.cat([one.detach().flatten() for one in model.parameters()])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_sync_gives_the_same_bits_in_each_run(transport: str, tmp_path: Path) -> None:
    rule = ps.SGD(0.05, 0.9)
    runs = [train(tmp_path / str(i), rule, 3, 2, transport) for i in range(3)]
    assert all(torch.equal(runs[0], other) for other in runs)


@pytest.mark.parametrize("mode", ["async", ps.SSP(1)])
def test_one_worker_is_the_same_in_all_modes(mode: ps.Mode, transport: str, tmp_path: Path) -> None:
    rule = ps.AdamW(0.01)
    want = train(tmp_path / "sync", rule, 1, 2, transport)
    assert torch.equal(want, train(tmp_path / "other", rule, 1, 2, transport, mode))


@pytest.mark.parametrize("mode", ["async", ps.SSP(1)])
def test_workers_that_are_not_in_step_train_too(
    mode: ps.Mode, transport: str, tmp_path: Path
) -> None:
    got = train(tmp_path, ps.SGD(0.02), 3, 2, transport, mode)
    assert got.isfinite().all()
    model = make_model(0)
    assert not torch.equal(got, torch.cat([one.detach().flatten() for one in model.parameters()]))


def test_a_repeated_step_copies_nothing_and_sends_no_control_message(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> dict[str, int]:
        model = make_model(0)
        dense = w.dense(model, ps.SGD(0.05, 0.9), split_bytes=1 << 20)
        x, y = batch(w.rank, 0)

        def step() -> None:
            torch.nn.functional.mse_loss(model(x), y).backward()
            dense.step()

        def counters() -> dict[str, int]:
            servers = w.describe()["servers"]
            assert isinstance(servers, list)
            mine = w._context.counters()
            names = ("copied_bytes", "control_messages", "writes", "moved_bytes")
            return {
                name: getattr(mine, name) + sum(one["counters"][name] for one in servers)
                for name in names
            }

        step()
        before = counters()
        for _ in range(10):
            step()
        after = counters()
        return {name: after[name] - before[name] for name in after}

    results, _ = ps_clusters.run(tmp_path, main, workers=1, servers=1, transport="shm")
    assert results[0]["copied_bytes"] == 0
    assert results[0]["control_messages"] == 0
    # A step: the gradients, the tick, the values, its answer; describe() is a request and answer.
    assert results[0]["writes"] == 10 * 4 + 2
    payload = 2 * 4 * sum(one.numel() for one in make_model(0).parameters())
    assert 10 * payload <= results[0]["moved_bytes"] < 10 * payload + 16384


def test_batches_and_a_dense_model_are_the_same_in_each_run(tmp_path: Path) -> None:
    """The last batches are too few for all workers; the others get the new values later."""
    x = torch.randn(50, 20, generator=torch.Generator().manual_seed(1))

    def main(w: ps.Worker) -> torch.Tensor:
        model = make_model(0)
        dense = w.dense(model, ps.SGD(0.05, 0.9))
        for (part,) in w.batches([x], batch_size=7, epochs=3):
            (model(part) ** 2).mean().backward()
            dense.step()
        return torch.cat([one.detach().flatten() for one in model.parameters()])

    for transport in ("shm", "tcp"):
        runs = [
            ps_clusters.run(
                tmp_path / f"{transport}{i}", main, workers=3, servers=2, transport=transport
            )[0]
            for i in range(2)
        ]
        assert all(torch.equal(runs[0][0], other) for run in runs for other in run)


def test_wrong_models_are_refused(tmp_path: Path) -> None:
    is_made = threading.Event()

    def main(w: ps.Worker) -> str:
        wrong = errors.InvalidArgumentError
        with pytest.raises(wrong, match="no parameters"):
            w.dense(torch.nn.Tanh(), ps.SGD(0.1))
        with pytest.raises(wrong, match="float64"):
            w.dense(torch.nn.Linear(2, 2, dtype=torch.float64), ps.SGD(0.1))
        with pytest.raises(wrong, match="ps rule"):
            w.dense(torch.nn.Linear(2, 2), "sgd")
        with pytest.raises(wrong, match="for rows"):
            w.dense(torch.nn.Linear(2, 2), ps.Adam())
        if w.rank == 1:
            assert is_made.wait(30)
        try:
            w.dense(torch.nn.Linear(2, 2 + w.rank), ps.SGD(0.1), name="other")
        except errors.MismatchError as error:
            return str(error)
        is_made.set()
        return ""

    results, _ = ps_clusters.run(tmp_path, main, workers=2, servers=1)
    assert results[0] == ""
    assert "is wanted" in results[1] or "worker 1 has" in results[1]


def test_changed_and_skipped_gradients_are_torch_s(transport: str, tmp_path: Path) -> None:
    """Clipping, another model's backward pass, and a step that is not made."""

    def main(w: ps.Worker) -> None:
        model, oracle, other = make_model(0), make_model(0), make_model(1)
        dense = w.dense(model, ps.SGD(0.05, 0.9), split_bytes=10_000)
        more = w.dense(other, ps.SGD(0.05), split_bytes=10_000, name="other")
        kept = [one.detach().clone() for one in other.parameters()]
        optimizer = torch.optim.SGD(oracle.parameters(), 0.05, 0.9)
        for step in range(8):
            x, y = batch(0, step)
            for one in (model, oracle):
                torch.nn.functional.mse_loss(one(x), y).backward()
            if step == 2:
                for one in (model, oracle):
                    one.zero_grad(set_to_none=True)
                continue
            torch.nn.functional.mse_loss(other(x), y).backward()
            for one in (model, oracle):
                torch.nn.utils.clip_grad_norm_(one.parameters(), 0.01 * (1 + step))
            dense.step()
            optimizer.step()
            optimizer.zero_grad()
            for got, want in zip(model.parameters(), oracle.parameters(), strict=True):
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        assert all(map(torch.equal, other.parameters(), kept)), "other.step() was not called"
        dense.release()
        more.release()
        with pytest.raises(errors.ClosedError, match="released"):
            dense.step()
        for got, want in zip(model.parameters(), oracle.parameters(), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)

    ps_clusters.run(tmp_path, main, workers=1, servers=2, transport=transport)


def test_a_worker_without_gradients_counts_in_the_mean(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> torch.Tensor:
        model = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        dense = w.dense(model, ps.SGD(1.0))
        table = w.table("t", 3, rows=1, rule=ps.SGD(1.0))
        if w.rank == 0:
            model.weight.grad = torch.full((1, 3), -3.0)
            table.push([0], torch.full((1, 3), -3.0))
            dense.push()
        w.clock()
        return torch.cat([model.weight.detach(), table.pull([0])])

    results, _ = ps_clusters.run(tmp_path, main, workers=3, servers=1)
    assert all((one == 1.0).all() for one in results)


def test_a_refused_model_is_as_before(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> str:
        first = torch.nn.Linear(4, 6)
        w.dense(first, ps.SGD(0.1))
        assert first._ddp_params_and_buffers_to_ignore == ["weight", "bias"]
        with pytest.raises(errors.InvalidArgumentError, match="not a new text"):
            w.dense(torch.nn.Linear(4, 6), ps.SGD(0.1))
        with pytest.raises(errors.InvalidArgumentError, match="Assign"):
            w.dense(torch.nn.Linear(4, 6), ps.Assign(), name="assigned")
        frozen = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        frozen[0].requires_grad_(False)
        if w.rank == 1:
            frozen[1].register_buffer("another", torch.zeros(2))
        torn = torch.nn.Linear(*((6, 4) if w.rank else (4, 6)), bias=False)  # as many floats
        said = []
        for name, model in (("frozen", frozen), ("torn", torn)):
            values = [one.detach().clone() for one in model.parameters()]
            try:
                w.dense(model, ps.SGD(0.1), name=name)
            except errors.MismatchError as error:
                said.append(str(error))
                assert all(map(torch.equal, model.parameters(), values))
                assert all(one.grad is None for one in model.parameters())
                assert all(not one._post_accumulate_grad_hooks for one in model.parameters())
        return " ".join(said)

    results, _ = ps_clusters.run(tmp_path, main, workers=2, servers=2)
    assert "".join(results).count("shapes of frozen") == 2
    assert results[1].count("RDT_EMISMATCH") == 2, "it hears it also if it came first"


def test_frozen_parameters_and_buffers_begin_as_worker_0_s(transport: str, tmp_path: Path) -> None:
    def main(w: ps.Worker) -> dict[str, torch.Tensor]:
        torch.manual_seed(w.rank)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        model[0].bias.requires_grad_(False)
        model.register_buffer("offset", torch.randn(2, 2).to(torch.bfloat16) + w.rank)
        model[1].num_batches_tracked += w.rank
        first = {name: one.clone() for name, one in model.state_dict().items()}
        dense = w.dense(model, ps.SGD(0.1), name="m")
        got = {name: one.clone() for name, one in model.state_dict().items()}
        assert torch.equal(w.kv.get("m/0.bias"), got["0.bias"])
        if w.rank == 0:
            assert all(torch.equal(got[name], one) for name, one in first.items())
        else:
            assert not torch.equal(got["0.bias"], first["0.bias"])
        model(torch.randn(5, 4)).sum().backward()
        dense.step()
        assert torch.equal(model[0].bias, got["0.bias"])
        return got

    results, _ = ps_clusters.run(tmp_path, main, workers=2, servers=2, transport=transport)
    assert set(results[0]) >= {"0.bias", "offset", "1.running_mean", "1.num_batches_tracked"}
    for name, one in results[0].items():
        assert torch.equal(one, results[1][name]), name


def test_a_step_may_end_in_a_thread(transport: str, tmp_path: Path) -> None:
    """The same bits as with step(); the caller goes on meanwhile."""

    def main(w: ps.Worker, is_async: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 2)
        dense = w.dense(model, ps.SGD(0.1, momentum=0.9))
        for step in range(6):
            draw = torch.Generator().manual_seed(10 * w.rank + step)
            model(torch.randn(8, 6, generator=draw)).square().mean().backward()
            if is_async:
                ending = dense.step_async(lr_scale=1.0 / (1 + step))
                assert ending.result(timeout=30) == step + 1
            else:
                dense.step(lr_scale=1.0 / (1 + step))
        values = torch.cat([one.detach().flatten() for one in model.parameters()]).clone()
        dense.release()
        with pytest.raises(errors.ClosedError):
            dense.step_async()
        return values

    results = [
        ps_clusters.run(
            tmp_path / str(is_async), partial(main, is_async=is_async), workers=2, servers=1,
            transport=transport,
        )[0][0]
        for is_async in (False, True)
    ]  # fmt: skip
    assert torch.equal(*results)


def test_two_backward_passes_with_checksums(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("RDMATENSOR_VERIFY", "crc32c")
    for mode in ("sync", "async"):
        train(tmp_path / mode, ps.SGD(0.05), 2, 2, "tcp", mode)
