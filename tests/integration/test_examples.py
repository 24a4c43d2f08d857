"""Examples in the docstrings of the modules that need torch, in a group of one rank."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import graph_analysis
import rdmatensor
from rdmatensor import compress

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PARTS = ("policy", "process", "result", "sensitivity", "export", "wire")
MODULES = (
    *(f"rdmatensor.compress.{part}" for part in PARTS),
    *("graph_analysis.thin", "rdmatensor.distributed", "rdmatensor.plan", "rdmatensor.symmetric"),
    *("rdmatensor.hooks", "rdmatensor.torch", "rdmatensor._torch.hooks"),
    "rdmatensor._torch.split",
)


def _examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in MODULES:
        module = importlib.import_module(name)
        yield from (one for one in finder.find(module, module.__name__) if one.examples)


EXAMPLES = {one.name: one for one in _examples()}


@pytest.fixture(scope="module")
def handle() -> Iterator[object]:
    """A group of one rank, and a symmetric tensor in it."""
    dist.init_process_group("rdmatensor", store=dist.HashStore(), rank=0, world_size=1)
    symm_mem.set_backend("rdmatensor")
    tensor = symm_mem.empty(1024, device="cpu")
    yield symm_mem.rendezvous(tensor, dist.group.WORLD)
    dist.destroy_process_group()


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples_run(
    name: str,
    handle: object,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    example = EXAMPLES[name]
    example.globs = {
        **{name: getattr(compress, name) for name in compress.__all__},
        **{name: getattr(graph_analysis, name) for name in graph_analysis.__all__},
        **example.globs,
        "rdmatensor": rdmatensor,
        "torch": torch,
        "graph_analysis": graph_analysis,
        "timedelta": timedelta,
        "default_hooks": default_hooks,
        "handle": handle,
    }
    with capsys.disabled():
        result = doctest.DocTestRunner(optionflags=FLAGS).run(example)
    assert result.failed == 0


def test_most_examples_run() -> None:
    skipped = [
        name
        for name, example in EXAMPLES.items()
        if all(one.options.get(doctest.SKIP) for one in example.examples)
    ]
    assert len(skipped) < len(EXAMPLES) / 5, skipped
