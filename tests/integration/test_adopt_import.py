"""The import hook for pipeline stages: it breaks no import, and misses none."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch.nn.parallel import DistributedDataParallel

from rdmatensor._torch import adopt, adoption
from rdmatensor._torch.pipeline import stages as stages_wrapper
from rdmatensor.context import Context

pytestmark = pytest.mark.timeout(60)

NAME = "stages_for_tests"
AS_TORCH_HAS_IT = """
class _PipelineStageBase:
    def _setup_backward_recv_info(self): ...
class _PipelineStage(_PipelineStageBase):
    def _create_act_recv_info(self): ...
class PipelineStage(_PipelineStageBase):
    def _setup_forward_recv_info(self): ...
"""
AS_TORCH_HAD_IT = """
class _PipelineStageBase: ...
class _PipelineStage(_PipelineStageBase):
    def _create_act_recv_info(self): ...
class PipelineStage(_PipelineStageBase): ...
"""


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that stands in for torch's; what install() changes is put back."""
    monkeypatch.setattr(stages_wrapper, "_STAGES", NAME)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("_ddp_init_helper", "_pre_forward", "_post_forward"):
        monkeypatch.setattr(DistributedDataParallel, name, getattr(DistributedDataParallel, name))
    monkeypatch.setattr(adoption.process, "context", None)
    path = tmp_path / f"{NAME}.py"
    path.write_text(AS_TORCH_HAS_IT)
    yield path
    sys.modules.pop(NAME, None)


def install(is_adopting: bool = True) -> None:
    context = SimpleNamespace(settings=SimpleNamespace(adopt=is_adopting), is_closed=False)
    adopt.install(cast("Context", context), on_module=lambda _module: None)


def wrapped(module: Any) -> list[bool]:
    places = [
        module.PipelineStage._setup_forward_recv_info,
        module._PipelineStage._create_act_recv_info,
        module._PipelineStageBase._setup_backward_recv_info,
    ]
    return [hasattr(place, "__wrapped__") for place in places]


@pytest.mark.parametrize("is_imported_first", [True, False])
def test_places_that_torch_lacks_are_skipped(stages: Path, is_imported_first: bool) -> None:
    stages.write_text(AS_TORCH_HAD_IT)
    if is_imported_first:
        importlib.import_module(NAME)
    install()
    module = importlib.import_module(NAME)
    assert hasattr(module._PipelineStage._create_act_recv_info, "__wrapped__")
    assert not hasattr(module.PipelineStage, "_setup_forward_recv_info")


@pytest.mark.parametrize("is_imported_first", [True, False])
def test_nothing_is_touched_without_adoption(stages: Path, is_imported_first: bool) -> None:
    if is_imported_first:
        importlib.import_module(NAME)
    before = list(sys.meta_path)
    install(is_adopting=False)
    assert sys.meta_path == before
    assert not any(wrapped(importlib.import_module(NAME)))


def test_a_look_and_an_import_that_fails_use_nothing_up(stages: Path) -> None:
    install()
    assert importlib.util.find_spec(NAME) is not None
    stages.write_text("raise RuntimeError('not today')")
    with pytest.raises(RuntimeError, match="not today"):
        importlib.import_module(NAME)
    stages.write_text(AS_TORCH_HAS_IT)
    importlib.invalidate_caches()
    module = importlib.import_module(NAME)
    assert wrapped(module) == [True, True, True]
    install()  # again is nothing
    assert not hasattr(module.PipelineStage._setup_forward_recv_info.__wrapped__, "__wrapped__")
    assert wrapped(importlib.reload(module)) == [True, True, True]


def test_the_list_of_finders_does_not_shrink_under_another_thread(stages: Path) -> None:
    """Who walks through it by number would miss the one behind."""
    install()
    before = list(sys.meta_path)
    importlib.import_module(NAME)
    assert sys.meta_path == before


def test_a_module_that_is_being_imported_is_waited_for(stages: Path) -> None:
    """It is in sys.modules, but its classes are not there yet."""
    gate = threading.Event()
    has_begun = threading.Event()
    sys._gate_for_tests = (has_begun, gate)  # type: ignore[attr-defined]
    stages.write_text(
        "import sys\nsys._gate_for_tests[0].set()\nsys._gate_for_tests[1].wait(30)\n"
        + AS_TORCH_HAS_IT
    )
    importing = threading.Thread(target=importlib.import_module, args=(NAME,))
    importing.start()
    assert has_begun.wait(30)
    threading.Timer(0.2, gate.set).start()
    install()
    importing.join(30)
    del sys._gate_for_tests  # type: ignore[attr-defined]
    assert wrapped(sys.modules[NAME]) == [True, True, True]
