"""Names of tensors, from the modules that this process trains."""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch._C import _distributed_c10d as torch_c10d
from torch.nn.parallel import DistributedDataParallel

from graph_analysis import RecordedTensor
from graph_analysis.ir import Role, align_up

_ALIGNMENT_BYTES = 64  # of members of a bucket of rdmatensor.plan


class PackedBuffers(Protocol):
    """The part of a plan's buffers that is used here."""

    def packed(self) -> dict[int, tuple[RecordedTensor, ...]]:
        """Return what is sent packed, by the address from which it is sent."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A module, and the object that sends its buffers by a plan; either may be gone."""

    module: weakref.ref[torch.nn.Module]
    buffers: weakref.ref[PackedBuffers] | None


# In order of creation, which is the same on all ranks: the first module gives the name. Replaced,
# not changed, so that another thread may iterate.
_modules: list[_Known] = []


def know(module: torch.nn.Module, buffers: PackedBuffers | None = None) -> None:
    """Take names for tensors from a module, for as long as it lives.

    buffers: packs its buffers before it sends them, unless DDP does.
    """
    global _modules
    _modules = [known for known in _modules if known.module() not in (None, module)]
    sent = None if buffers is None else weakref.ref(buffers)
    _modules.append(_Known(weakref.ref(module), sent))


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype's name."""
    return str(dtype).removeprefix("torch.")


class Names:
    """The tensors of the known modules, by address and, for DDP's buffers, by size."""

    def __init__(self) -> None:
        self._by_address: dict[int, tuple[RecordedTensor, int]] = {}
        self._buffers: list[tuple[RecordedTensor, ...]] = []
        self._packed: dict[int, tuple[RecordedTensor, ...]] = {}
        for known in _modules:
            module = known.module()
            if module is not None:
                self._take(module)
            sent = known.buffers() if known.buffers is not None else None
            if sent is not None:
                self._packed |= sent.packed()
        self._addresses = sorted(self._by_address)

    def _take(self, module: torch.nn.Module) -> None:
        inner = module.module if isinstance(module, DistributedDataParallel) else module
        for name, parameter in inner.named_parameters():
            self._add(name, "parameter", parameter, None)
            if parameter.grad is not None and parameter.grad.device.type == "cpu":
                self._add(f"{name}.grad", "gradient", parameter.grad, name)
        for name, buffer in inner.named_buffers():
            self._add(name, "buffer", buffer, None)
        if isinstance(module, DistributedDataParallel) and _sends_buffers(module):
            self._buffers += _flattened(module)

    def _add(self, name: str, role: Role, tensor: torch.Tensor, of: str | None) -> None:
        if tensor.layout == torch.strided and tensor.nbytes > 0:
            entry = (_tensor(name, role, tensor, of), tensor.nbytes)
            self._by_address.setdefault(tensor.data_ptr(), entry)

    def at(self, address: int, size_bytes: int, dtype: torch.dtype) -> tuple[RecordedTensor, ...]:
        """Return the tensors at this address, if with a bucket's gaps they fill the bytes."""
        packed = self._packed.get(address, ())
        if packed and sum(tensor.size_bytes for tensor in packed) == size_bytes:
            return packed
        found, end = [], address
        first = bisect_left(self._addresses, address)
        for start in self._addresses[first : bisect_left(self._addresses, address + size_bytes)]:
            tensor, nbytes = self._by_address[start]
            if not end <= start < end + _ALIGNMENT_BYTES or tensor.dtype != name_of(dtype):
                return ()
            end = start + nbytes
            found.append(tensor)
        is_whole = size_bytes in (end - address, align_up(end - address, _ALIGNMENT_BYTES))
        return tuple(found) if is_whole else ()

    def next_buffers(
        self, operation: str, dtype: torch.dtype, size_bytes: int
    ) -> tuple[RecordedTensor, ...]:
        """Return the buffers that DDP sends next, if they are of this size; each is sent once."""
        if operation != "broadcast" or not self._buffers:
            return ()
        first = self._buffers[0]
        same = all(tensor.dtype == name_of(dtype) for tensor in first)
        if not same or sum(tensor.size_bytes for tensor in first) != size_bytes:
            return ()
        return self._buffers.pop(0)


def _tensor(name: str, role: Role, tensor: torch.Tensor, of: str | None) -> RecordedTensor:
    return RecordedTensor(
        name=name,
        role=role,
        dtype=name_of(tensor.dtype),
        item_bytes=tensor.element_size(),
        shape=tuple(tensor.shape),
        of=of,
    )


def _sends_buffers(module: DistributedDataParallel) -> bool:
    return bool(module.will_sync_module_buffers())  # type: ignore[no-untyped-call]


def _flattened(module: DistributedDataParallel) -> Iterable[tuple[RecordedTensor, ...]]:
    """Return what DDP packs into one tensor each before it broadcasts its buffers.

    Those are the tensors that DDP knows: a module that has assigned a new tensor since has another.
    """
    named = cast("dict[str, torch.Tensor]", module.named_module_buffers)
    names, buffers = list(named), list(named.values())
    if not buffers:
        return []
    limit = int(module.broadcast_bucket_size)
    packed, _ = torch_c10d._compute_bucket_assignment_by_size(buffers, [limit])
    return [
        tuple(_tensor(names[i], "buffer", buffers[i], None) for i in indices) for indices in packed
    ]
