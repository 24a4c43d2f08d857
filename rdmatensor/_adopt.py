"""Places the buffers that torch allocates once and receives into in the arena, without a request.

DistributedDataParallel's buckets: with gradient_as_bucket_view=True the gradients are views of the
buckets, so that an all-reduce works on the memory that autograd wrote. torch allocates them in two
places, which are wrapped here.

A pipeline stage's buffers for activations and their gradients: torch allocates them before the
first micro-batch, in three places, and receives into them in each step, so that neighbours may
write there. Before a stage sends, what it sends is compared with these buffers (_stage_check.py).
What a stage sends is placed in the arena if devices read it (_sent.py).

A torch that allocates them elsewhere works as it would without this.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypedDict, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rdmatensor import _adopt_report, _ddp_births, _record
from rdmatensor._autoload import BACKEND_NAME
from rdmatensor._heap import keep_large_blocks
from rdmatensor._sent import Sent
from rdmatensor._stage_check import Direction, check_sends
from rdmatensor.context import Context
from rdmatensor.torch import Births, has_allocator, registered_memory

_STAGES = "torch.distributed.pipelining.stage"
_KEPT = 256  # lines of describe(); bounded, as a program may make modules forever


class Adoption(TypedDict):
    """What was allocated in the arena at one moment, and what was not, with the reason."""

    what: str
    tensors: int
    bytes: int
    missed: int
    missed_bytes: int
    reason: str


_adoptions: list[Adoption] = []


def report(is_adopting: bool) -> dict[str, object]:
    """Return what was adopted so far, oldest first, and what is outside the arena now."""
    return {
        "adopted": list(_adoptions),
        "not_adopted": _adopt_report.not_adopted(is_adopting),
        "born": _ddp_births.told(),
    }


def install(context: Context) -> None:
    """Wrap the places of allocation, once, if the settings of `context` say so."""
    if getattr(DistributedDataParallel, "_rdmatensor_context", None) is None:
        _wrap("_ddp_init_helper", _makes_first_buckets)
        _wrap("_pre_forward", _may_rebuild_buckets)
        _wrap_post_forward()
    DistributedDataParallel._rdmatensor_context = context  # type: ignore[attr-defined]
    if context.settings.adopt:
        keep_large_blocks()
        _watch_stages()


@contextlib.contextmanager
def _adopting(context: Context) -> Iterator[Births]:
    """As registered_memory(), but without effect if another library has torch's allocator."""
    if not has_allocator():
        yield Births()  # describe()["not_adopted"] has the reason
        return
    with registered_memory(context=context) as births:
        yield births


def _wrap(name: str, is_wanted: Callable[[DistributedDataParallel], bool]) -> None:
    before = getattr(DistributedDataParallel, name, None)
    if before is None:
        return

    @functools.wraps(before)
    def wrapped(self: DistributedDataParallel, *args: object, **kwargs: object) -> object:
        context: Context = DistributedDataParallel._rdmatensor_context  # type: ignore[attr-defined]
        if is_wanted is _makes_first_buckets and is_ours(self):
            _record.know(self)
            _adopt_report.watch(self)
        if is_wanted is _may_rebuild_buckets:
            _adopt_report.note_forward(self)
            _ddp_births.before_forward(self)
        is_off = torch.compiler.is_compiling() or not context.settings.adopt or context.is_closed
        if is_off or not is_wanted(self):
            return before(self, *args, **kwargs)
        with _adopting(context) as births:
            result = before(self, *args, **kwargs)
        if births.missed > 0:
            _adopt_report.note_no_room(self)
        _note(f"buckets of {type(self.module).__name__}", births)
        return result

    setattr(DistributedDataParallel, name, wrapped)


def _wrap_post_forward() -> None:
    before = getattr(DistributedDataParallel, "_post_forward", None)
    if before is None:
        return

    @functools.wraps(before)
    def wrapped(self: DistributedDataParallel, output: object) -> object:
        context: Context = DistributedDataParallel._rdmatensor_context  # type: ignore[attr-defined]
        output = before(self, output)
        is_off = torch.compiler.is_compiling() or not context.settings.adopt
        if not is_off and torch.is_grad_enabled() and _adopt_report.is_watched(self):
            _ddp_births.after_forward(self, output, context)
        return output

    DistributedDataParallel._post_forward = wrapped  # type: ignore[method-assign]


def _makes_first_buckets(module: DistributedDataParallel) -> bool:
    return is_ours(module)


def _may_rebuild_buckets(module: DistributedDataParallel) -> bool:
    """Whether the buckets may be rebuilt, permanently, before this forward pass."""
    is_settled = bool(getattr(module, "_has_rebuilt_buckets", False))
    is_rebuilding = module.static_graph or not module.find_unused_parameters
    return is_rebuilding and not is_settled and is_ours(module)


def is_ours(module: DistributedDataParallel) -> bool:
    """Whether this backend sends the module's CPU tensors."""
    return module.device_type == "cpu" and _is_our_group(module.process_group)


def _is_our_group(group: Any) -> bool:  # noqa: ANN401 - torch's class
    backend = group._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # under TORCH_DISTRIBUTED_DEBUG=DETAIL
    return bool(backend.name() == BACKEND_NAME)


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


def _watch_stages() -> None:
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
        context: Context = DistributedDataParallel._rdmatensor_context  # type: ignore[attr-defined]
        if not _is_adopting(self, context):
            return before(self, *args, **kwargs)
        with _adopting(context) as births:
            result = before(self, *args, **kwargs)
        _note(f"buffers of stage {self.stage_index}", births)
        return result

    wrapped._is_adopting = True  # type: ignore[attr-defined]
    setattr(kind, name, wrapped)


def _is_adopting(stage: Any, context: Context) -> bool:  # noqa: ANN401
    is_wanted = context.settings.adopt and not context.is_closed and stage.device.type == "cpu"
    return is_wanted and _is_our_group(dist.group.WORLD if stage.group is None else stage.group)


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
        context: Context = DistributedDataParallel._rdmatensor_context  # type: ignore[attr-defined]
        if not args or torch.compiler.is_compiling() or not _is_adopting(self, context):
            return before(self, *args, **kwargs)
        directions: dict[str, Sent] = self.__dict__.setdefault("_rdmatensor_sent", {})
        if name not in directions:
            what = f"{sent.__name__.removeprefix('_')} that stage {self.stage_index} sends"
            directions[name] = Sent(context, functools.partial(_note, what))
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
        context: Context = DistributedDataParallel._rdmatensor_context  # type: ignore[attr-defined]
        # Older torches keep no record of the planned shapes.
        if args and hasattr(self, "_stage_meta") and _is_adopting(self, context):
            check_sends(self, args[0], direction)
        return before(self, *args, **kwargs)

    wrapped._is_adopting = True  # type: ignore[attr-defined]
    setattr(kind, name, wrapped)


def _note(what: str, births: Births) -> None:
    if births.count == births.missed == 0:
        return
    reason = "" if births.missed == 0 else _adopt_report.NO_ROOM
    if len(_adoptions) == _KEPT:
        del _adoptions[0]
    _adoptions.append(
        Adoption(
            what=what,
            tensors=births.count,
            bytes=births.size_bytes,
            missed=births.missed,
            missed_bytes=births.missed_bytes,
            reason=reason,
        )
    )
