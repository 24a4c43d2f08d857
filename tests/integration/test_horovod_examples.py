"""The examples in the docstrings of Horovod's API run, in a job of one rank."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Iterator

import pytest
import torch

import rdmatensor.horovod.torch as hvd

MODULES = (
    *("basics", "exceptions", "process_sets", "torch.compression", "torch.functions"),
    *("torch.handles", "torch.moves", "torch.optimizer", "torch.reductions"),
    *("torch.scatters", "torch.sync_batch_norm"),
)
OPTIONS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


@pytest.fixture(scope="module", autouse=True)
def job() -> Iterator[None]:
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")  # an example initialises again
    module = importlib.import_module(f"rdmatensor.horovod.{name}")
    hvd.init()
    shared = {**{one: getattr(hvd, one) for one in hvd.__all__}, "torch": torch}
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [one for one in finder.find(module, globs=shared) if one.examples]
    assert found
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    said: list[str] = []
    for one in found:
        runner.run(one, out=said.append)
    assert runner.failures == 0, "".join(said)
