"""Pipeline stages: buffers in the arena, and a check of what is sent into them.

torch allocates a stage's buffers for activations and their gradients before the first micro-batch,
in three places, and receives into them in each step, so that neighbours may write there. Before a
stage sends, what it sends is compared with these buffers (stage_check.py). What a stage sends is
placed in the arena if devices read it (stage_buffers.py).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

import torch
import torch.distributed as dist

from rdmatensor._torch.adoption import adopting, context_of_groups, is_our_group, note
from rdmatensor._torch.pipeline.stage_buffers import StageBuffers
from rdmatensor._torch.pipeline.stage_check import Direction, check_sends
from rdmatensor.context import Context

_STAGES = "torch.distributed.pipelining.stage"


class _WhenStagesCome(importlib.abc.MetaPathFinder):
    """Wraps the stages when a program imports them after it has made its group.

    It stays installed permanently. Removing it would shorten the list while another thread iterates
    over it; and a module that was only looked up, or failed to import, is imported later.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Leave every module to the other finders, and wrap the stages once they were executed."""
        if fullname != _STAGES or getattr(self._local, "is_asking", False):
            return None
        self._local.is_asking = True
        try:
            spec = self._ask_others(fullname, path, target)
        finally:
            self._local.is_asking = False
        execute = getattr(spec.loader, "exec_module", None) if spec is not None else None
        if spec is None or execute is None:
            return spec

        def execute_and_wrap(module: ModuleType) -> None:
            execute(module)
            if module.__name__ == _STAGES:  # a loader may serve other modules too
                _wrap_stages(module)

        with contextlib.suppress(AttributeError):  # the loader does not accept attributes
            spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign, union-attr]
        return spec

    def _ask_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            spec = (
                None if finder is self or find_spec is None else find_spec(fullname, path, target)
            )
            if spec is not None:
                return cast("ModuleSpec", spec)
        return None


_finder = _WhenStagesCome()
_wrapping = threading.Lock()


def watch_stages() -> None:
    """Wrap the stages, now or when a program imports them; again is harmless."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)  # a thread that iterates over it sees one finder twice
    module = sys.modules.get(_STAGES)
    if module is None:  # the import takes seconds, which only programs with pipelines should pay
        return
    if getattr(
        getattr(module, "__spec__", None), "_initializing", False
    ):  # another thread is importing it: wait for it
        with contextlib.suppress(Exception):  # reported to the thread that imports it
            importlib.import_module(_STAGES)
    _wrap_stages(module)


def _wrap_stages(module: Any) -> None:  # noqa: ANN401 - torch's module
    """Wrap the places that this torch has; torch 2.12 and older allocate some buffers elsewhere."""
    with _wrapping:
        _wrap_stage(getattr(module, "PipelineStage", None), "_setup_forward_recv_info")
        _wrap_stage(getattr(module, "_PipelineStage", None), "_create_act_recv_info")
        _wrap_stage(getattr(module, "_PipelineStageBase", None), "_setup_backward_recv_info")
        _wrap_pass(getattr(module, "_PipelineStageBase", None), "forward_one_chunk", _activations)
        _wrap_pass(getattr(module, "_PipelineStageBase", None), "backward_one_chunk", _gradients)
        _wrap_sends(getattr(module, "_PipelineStageBase", None), "get_fwd_send_ops", "forward")
        _wrap_sends(getattr(module, "_PipelineStageBase", None), "get_bwd_send_ops", "backward")


def _wrap_stage(kind: Any, name: str) -> None:  # noqa: ANN401 - torch's class
    before = getattr(kind, name, None)
    if before is None or hasattr(before, "_is_adopting"):
        return

    @functools.wraps(before)
    def wrapped(self: Any, *args: object, **kwargs: object) -> object:  # noqa: ANN401
        context = context_of_groups()
        if not _is_adopting(self, context):
            return before(self, *args, **kwargs)
        with adopting(context) as allocations:
            result = before(self, *args, **kwargs)
        note(f"buffers of stage {self.stage_index}", allocations)
        return result

    wrapped._is_adopting = True  # type: ignore[attr-defined]
    setattr(kind, name, wrapped)


def _is_adopting(stage: Any, context: Context) -> bool:  # noqa: ANN401
    is_wanted = context.settings.adopt and not context.is_closed and stage.device.type == "cpu"
    return is_wanted and is_our_group(dist.group.WORLD if stage.group is None else stage.group)


def _activations(stage: Any, chunk: object) -> Iterable[object]:  # noqa: ANN401
    """Return what a forward pass sends to the next stage."""
    made, _ = stage.fwd_cache.get(chunk, ((), ()))
    return () if stage.is_last else made


def _gradients(stage: Any, chunk: object) -> Iterable[object]:  # noqa: ANN401
    """Return what a backward pass sends to the previous stage."""
    return () if stage.is_first else stage.bwd_cache.get(chunk, ())


def _wrap_pass(
    kind: Any,  # noqa: ANN401 - torch's class
    name: str,
    sent: Callable[[Any, object], Iterable[object]],
) -> None:
    before = getattr(kind, name, None)
    if before is None or hasattr(before, "_is_adopting"):
        return

    @functools.wraps(before)
    def wrapped(self: Any, *args: object, **kwargs: object) -> object:  # noqa: ANN401
        context = context_of_groups()
        if not args or torch.compiler.is_compiling() or not _is_adopting(self, context):
            return before(self, *args, **kwargs)
        directions: dict[str, StageBuffers] = self.__dict__.setdefault("_rdmatensor_sent", {})
        if name not in directions:
            what = f"{sent.__name__.removeprefix('_')} that stage {self.stage_index} sends"
            directions[name] = StageBuffers(context, functools.partial(note, what))
        return directions[name].run(
            lambda: before(self, *args, **kwargs), lambda: sent(self, args[0])
        )

    wrapped._is_adopting = True  # type: ignore[attr-defined]
    setattr(kind, name, wrapped)


def _wrap_sends(kind: Any, name: str, direction: Direction) -> None:  # noqa: ANN401
    before = getattr(kind, name, None)
    if before is None or hasattr(before, "_is_adopting"):
        return

    @functools.wraps(before)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> object:  # noqa: ANN401
        context = context_of_groups()
        # Older torches keep no record of the planned shapes.
        if args and hasattr(self, "_stage_meta") and _is_adopting(self, context):
            check_sends(self, args[0], direction)
        return before(self, *args, **kwargs)

    wrapped._is_adopting = True  # type: ignore[attr-defined]
    setattr(kind, name, wrapped)
