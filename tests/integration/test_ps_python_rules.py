"""Rules in Python against the rules in C of the same arithmetic."""

# ruff: noqa: ARG002 - rules and functions get what they may not need
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ps_clusters
import pytest
import torch

from rdmatensor import errors, ps
from rdmatensor.ps.pyrules import rule as rules

DIM, ROWS = 5, 400
_PUSHED = 40  # rows that steps push, after one that pushes all
INIT = ps.uniform(-0.5, 0.5)


@dataclass
class Momentum(ps.PythonRule):
    lr: float
    momentum: float

    def state(self, dim: int) -> int:
        return dim

    def apply(
        self,
        values: torch.Tensor,
        state: torch.Tensor,
        gradients: torch.Tensor,
        step: int,
        lr_scale: float,
    ) -> None:
        state.mul_(self.momentum).add_(gradients)
        values.sub_(self.lr * lr_scale * state)


@dataclass
class Adagrad(ps.PythonRule):
    lr: float
    initial: float = 0.5

    def state(self, dim: int) -> int:
        return dim

    def apply(
        self,
        values: torch.Tensor,
        state: torch.Tensor,
        gradients: torch.Tensor,
        step: int,
        lr_scale: float,
    ) -> None:
        state.add_(gradients * gradients)
        values.sub_(self.lr * lr_scale * (gradients / (state.sqrt() + 1e-10)))


@dataclass
class LazyAdam(ps.PythonRule):
    lr: float

    def state(self, dim: int) -> int:
        return 2 * dim

    def apply(
        self,
        values: torch.Tensor,
        state: torch.Tensor,
        gradients: torch.Tensor,
        step: int,
        lr_scale: float,
    ) -> None:
        mean, square = state.chunk(2, dim=1)
        mean.add_(0.1 * (gradients - mean))
        square.add_(0.001 * (gradients * gradients - square))
        size = self.lr * lr_scale * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)
        values.sub_(size * (mean / (square.sqrt() + 1e-8)))


class Added(ps.PythonRule):
    is_mean = False

    def apply(
        self,
        values: torch.Tensor,
        state: torch.Tensor,
        gradients: torch.Tensor,
        step: int,
        lr_scale: float,
    ) -> None:
        assert state.shape == (len(values), 0)
        values.add_(gradients)


@dataclass
class Failing(Added):
    after: int = 2

    def apply(
        self,
        values: torch.Tensor,
        state: torch.Tensor,
        gradients: torch.Tensor,
        step: int,
        lr_scale: float,
    ) -> None:
        values.fill_(1000)
        if step > self.after:
            raise ZeroDivisionError("of this rule")


PAIRS: dict[str, tuple[ps.PythonRule, ps.Rule]] = {
    "momentum": (Momentum(0.1, 0.9), ps.SGD(0.1, momentum=0.9)),
    "adagrad": (Adagrad(0.1), ps.Adagrad(0.1, initial=0.5)),
    "lazy adam": (LazyAdam(0.01), ps.Adam(0.01)),
    "added": (Added(), ps.Add()),
}
KINDS: dict[str, dict[str, Any]] = {
    "ids": {"rows": ROWS},
    "row consistency": {"rows": ROWS, "consistency": "row"},
    "keys": {"keys": ps.Keys(admit_after=2, capacity=24)},
    "file": {"rows": ROWS, "memory": 16384},
}


def _steps(w: ps.Worker, tables: list[ps.Table], first: int, count: int) -> None:
    """Push the same rows to all tables, with duplicates and an empty batch."""
    for step in range(first, first + count):
        draw = torch.Generator().manual_seed(100 * step + w.rank)
        size = (6, 0, 50)[step % 3]
        ids = torch.randint(0, _PUSHED, (size,), generator=draw)
        rows = torch.randn(size, DIM, generator=draw)
        for table in tables:
            table.push(ids, rows)
        w.clock(lr_scale=1.0 - 0.05 * step)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PAIRS)
def test_a_rule_in_python_does_what_the_rule_in_c_does(
    name: str, kind: str, tmp_path: Path
) -> None:
    options = {**KINDS[kind], "init": INIT, "seed": 5}
    if kind == "file":
        options["spill"] = tmp_path

    def main(w: ps.Worker) -> torch.Tensor:
        mine, native = (
            w.table("t" if rule is PAIRS[name][0] else "n", DIM, rule=rule, **options)
            for rule in PAIRS[name]
        )
        first = mine.pull(range(ROWS)), native.pull(range(ROWS))
        native.push(range(ROWS), torch.zeros(ROWS, DIM))
        mine.push(range(ROWS), torch.zeros(ROWS, DIM))
        w.clock()
        _steps(w, [mine, native], 0, 8)
        got, want = mine.pull(range(ROWS)), native.pull(range(ROWS))
        return torch.stack([got - first[0], want - first[1]])

    results, states = ps_clusters.run(tmp_path / "store", main, workers=2, servers=2)
    for got, want in results:
        assert float(want.abs().max()) > 0.01
        torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-6)
    tables: Any = states[0]["tables"]
    assert tables["t"]["rule"]["name"] == f"{__name__}.{type(PAIRS[name][0]).__name__}"


def test_checkpoints_have_the_state_of_rules_in_python(tmp_path: Path) -> None:
    rule = Momentum(0.1, 0.9)

    def begin(w: ps.Worker) -> torch.Tensor:
        table = w.table("t", DIM, rows=ROWS, rule=rule, init=INIT)
        _steps(w, [table], 0, 4)
        if w.rank == 0:
            w.save(tmp_path / "saved").wait()
        _steps(w, [table], 4, 3)
        return table.pull(range(ROWS))

    def go_on(w: ps.Worker) -> torch.Tensor:
        table = w.table("t", DIM, rows=ROWS, rule=rule, init=INIT)
        _steps(w, [table], w.steps, 3)
        return table.pull(range(ROWS))

    def refused(w: ps.Worker) -> None:
        with pytest.raises(errors.MismatchError, match="rule"):
            w.table("t", DIM, rows=ROWS, rule=Momentum(0.2, 0.9), init=INIT)

    whole, _ = ps_clusters.run(tmp_path / "1", begin, workers=2, servers=2)
    assert ps.Checkpoint(tmp_path / "saved").table("t")["state"].abs().max() > 0
    for number, main in enumerate((go_on, refused)):
        results, _ = ps_clusters.run(
            tmp_path / f"again {number}", main, workers=2, servers=1, restore=tmp_path / "saved"
        )
        if main is go_on:
            assert torch.equal(results[0], whole[0])


def test_an_exception_ends_the_job_with_table_and_rule(tmp_path: Path) -> None:
    told: list[str] = []

    def main(w: ps.Worker) -> None:
        other = w.table("other", 2, rows=3, rule=ps.Add())
        table = w.table("films", 2, rows=3, rule=Failing(after=1))
        for _ in range(2):
            table.push([1], torch.ones(1, 2))
            other.push([1], torch.ones(1, 2))
            try:
                w.clock()
            except errors.RdmaTensorError as error:
                told.append(str(error))
                raise

    with pytest.raises(errors.RdmaTensorError, match="ZeroDivisionError: of this rule"):
        ps_clusters.run(tmp_path, main, workers=2, servers=1, mode="async")
    wanted = f"table 'films', rule {__name__}.Failing: ZeroDivisionError: of this rule"
    assert any(wanted in one for one in told), told


def _same_name(factor: float) -> type[ps.PythonRule]:
    class Same(ps.PythonRule):
        def apply(
            self,
            values: torch.Tensor,
            state: torch.Tensor,
            gradients: torch.Tensor,
            step: int,
            lr_scale: float,
        ) -> None:
            values.add_(gradients)

    class Other(ps.PythonRule):
        def apply(
            self,
            values: torch.Tensor,
            state: torch.Tensor,
            gradients: torch.Tensor,
            step: int,
            lr_scale: float,
        ) -> None:
            values.sub_(gradients)

    Other.__qualname__ = Same.__qualname__
    return Same if factor > 0 else Other


@pytest.mark.parametrize("differs", ["parameters", "code", "state"])
def test_a_rule_that_differs_between_workers_is_refused(differs: str, tmp_path: Path) -> None:
    same, other = _same_name(1.0), _same_name(-1.0)
    choices: dict[str, tuple[ps.PythonRule, ps.PythonRule]] = {
        "parameters": (Momentum(0.1, 0.9), Momentum(0.1, 0.8)),
        "code": (same(), other()),
        "state": (Adagrad(0.1), Adagrad(0.1, initial=0.25)),
    }

    def main(w: ps.Worker) -> None:
        w.table("t", 2, rows=3, rule=choices[differs][w.rank])

    with pytest.raises(errors.MismatchError, match="rule"):
        ps_clusters.run(tmp_path, main, workers=2, servers=1)


class Broken(ps.PythonRule):
    def __init__(self, thing: object, floats: int = 0) -> None:
        self._thing, self._floats = thing, floats

    def state(self, dim: int) -> int:
        return self._floats


@dataclass
class Field(ps.PythonRule):
    thing: Any
    floats: int = 0

    def state(self, dim: int) -> int:
        return self.floats


def test_wrong_rules_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    wrong: dict[str, ps.PythonRule] = {
        "a field of a @dataclass": Broken(1),
        "not a finite number, a text": Field([1, 2]),
        "finite": Field(float("nan")),
        "state": Field(1, floats=-1),
        "from 0 to": Field(1, floats=1 << 30),
    }

    def main(w: ps.Worker) -> None:
        for message, rule in wrong.items():
            with pytest.raises(errors.InvalidArgumentError, match=message):
                w.table("t", 2, rows=3, rule=rule)
        with pytest.raises(errors.InvalidArgumentError, match="for a table"):
            w.dense(torch.nn.Linear(2, 1), Added())  # type: ignore[arg-type]
        known = rules._known.pop(f"{__name__}.Field")
        try:
            with pytest.raises(errors.RdmaTensorError, match=r"Field' is not known here"):
                w.table("t", 2, rows=3, rule=Field(1))
        finally:
            rules._known[f"{__name__}.Field"] = known
        assert w.table("t", 2, rows=3, rule=Added()).pull([0]).tolist() == [[0, 0]]

    ps_clusters.run(tmp_path, main, workers=1, servers=1)


def test_a_rule_that_returns_rows_or_resizes_them_is_refused(tmp_path: Path) -> None:
    class Returns(Added):
        def apply(self, values: torch.Tensor, *rest: Any) -> None:
            return values + 1  # type: ignore[return-value]

    def main(w: ps.Worker) -> None:
        table = w.table("t", 2, rows=3, rule=Returns())
        table.push([1], torch.ones(1, 2))
        w.clock()

    with pytest.raises(errors.RdmaTensorError, match="in place"):
        ps_clusters.run(tmp_path, main, workers=1, servers=1)
