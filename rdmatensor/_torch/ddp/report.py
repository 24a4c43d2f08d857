"""What was not adopted, and why; determined again at each describe().

rdmatensor cannot track whether memory is in the arena: share_memory_(), a gradient that the program
replaces, and parameters that are given other data move it without notice. So each gradient, each
parameter and each tensor adopted on request is checked now.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.nn.parallel import DistributedDataParallel

from rdmatensor._torch.adoption import NO_ROOM
from rdmatensor._torch.ddp import gradients
from rdmatensor.state import NotAdoptedState
from rdmatensor.torch import MIN_BYTES, has_allocator, is_in_arena, requests

_TAKEN = "another library has taken over torch's allocator of CPU memory"
_IGNORED = "DistributedDataParallel ignores the parameter: its gradient is not sent"
_SPARSE = "sparse: its memory has another size each time"
_SHARED = "shared with other processes, whose memory it is too"
_COPIED = (
    "gradient_as_bucket_view=False: it is memory of autograd's, and copied into its bucket and "
    "back; gradient_as_bucket_view=True spares that"
)
_ANEW = (
    "zero_grad(set_to_none=True): autograd allocated each one again, and torch's division by "
    "the ranks copied it into its bucket"
)
_LEARNING = (
    f"after the first steps it is allocated there, if it has {gradients.LEAST_BYTES} B and one "
    "node makes it for no other use"
)
_SMALL = f"its bucket is smaller than {MIN_BYTES} B"
_ELSEWHERE = (
    "allocated outside the arena: replaced by the program, or its bucket was made where "
    "torch.compile traced"
)
_REQUEST = "only on request: rdmatensor.torch.adopt()"
_MOVED = "resized, or given other memory, after it was adopted"
_NAMES = 8  # for each reason; a model has thousands


class _Tensor(NamedTuple):
    what: str
    reason: str
    name: str
    size_bytes: int


# Not a set: keyrefs() is a copy by one call in C, while a training thread may be adding.
_modules: WeakKeyDictionary[DistributedDataParallel, None] = WeakKeyDictionary()
_without_room: WeakSet[DistributedDataParallel] = WeakSet()
# Forward passes that began without gradients: each module's first, and those after zero_grad().
_bare_passes: WeakKeyDictionary[DistributedDataParallel, int] = WeakKeyDictionary()


def watch(module: DistributedDataParallel) -> None:
    """Report the module's gradients and parameters for as long as it lives."""
    _modules[module] = None


def is_watched(module: DistributedDataParallel) -> bool:
    """Whether the module was made over this backend."""
    return module in _modules


def note_no_room(module: DistributedDataParallel) -> None:
    """Note that some of the module's buckets did not fit into the arena."""
    _without_room.add(module)


def note_forward(module: DistributedDataParallel) -> None:
    """Note a forward pass: check whether the gradients of the previous step still exist."""
    is_passed = not module.gradient_as_bucket_view or not torch.is_grad_enabled()
    if is_passed or torch.compiler.is_compiling() or module not in _modules:
        return
    trained = next((p for p in module.module.parameters() if p.requires_grad), None)
    if trained is not None and trained.grad is None:
        _bare_passes[module] = _bare_passes.get(module, 0) + 1


def not_adopted(off_by: str | None) -> list[NotAdoptedState]:
    """Return what is outside the arena now, by kind and reason.

    off_by: the setting that switches adoption off.
    """
    found: dict[tuple[str, str], NotAdoptedState] = {}
    if off_by is not None or not has_allocator():
        what = "buckets of DistributedDataParallel, buffers of pipeline stages"
        reason = off_by or _TAKEN
        found[what, reason] = NotAdoptedState(
            what=what, reason=reason, tensors=0, bytes=0, names=[]
        )
    for one in _outside(off_by):
        entry = found.setdefault(
            (one.what, one.reason),
            NotAdoptedState(what=one.what, reason=one.reason, tensors=0, bytes=0, names=[]),
        )
        entry["tensors"] += 1
        entry["bytes"] += one.size_bytes
        if len(entry["names"]) < _NAMES:
            entry["names"].append(one.name)
    return list(found.values())


def _outside(off_by: str | None) -> Iterator[_Tensor]:
    for module in filter(None, (weak() for weak in _modules.keyrefs())):
        kind = type(module.module).__name__
        copied, why_off = gradients.copied_last(module)
        for name, parameter in module.module.named_parameters():
            grad = parameter.grad
            if grad is not None and not is_in_arena(grad):
                reason = _why_gradient(module, name, grad, off_by)
                yield _Tensor(f"gradients of {kind}", reason, name, _bytes_of(grad))
            elif grad is not None and name in copied and _bare_passes.get(module, 0) > 1:
                what = f"gradients of {kind}, until torch has moved them"
                yield _Tensor(what, f"{_ANEW}; {why_off or _LEARNING}", name, _bytes_of(grad))
            if not is_in_arena(parameter):
                yield _Tensor(f"parameters of {kind}", _REQUEST, name, _bytes_of(parameter))
    for request in requests():
        tensor = request.tensor()
        if request.refusal:
            yield _Tensor("adopt()", request.refusal, request.name, request.size_bytes)
        elif tensor is not None and not is_in_arena(tensor):
            reason = _SHARED if tensor.untyped_storage().is_shared() else _MOVED
            yield _Tensor("adopt()", reason, request.name, _bytes_of(tensor))


def _why_gradient(
    module: DistributedDataParallel, name: str, grad: torch.Tensor, off_by: str | None
) -> str:
    storage = grad.untyped_storage() if grad.layout == torch.strided else None
    reasons = (
        (off_by is not None, off_by or ""),
        (name in module.parameters_to_ignore, _IGNORED),
        (storage is None, _SPARSE),
        (storage is not None and storage.is_shared(), _SHARED),
        (not module.gradient_as_bucket_view, _COPIED),
        (storage is not None and storage.nbytes() < MIN_BYTES, _SMALL),
        (module in _without_room, NO_ROOM),
        (not has_allocator(), _TAKEN),
    )
    return next((reason for holds, reason in reasons if holds), _ELSEWHERE)


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else 0
