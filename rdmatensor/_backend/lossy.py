"""Lossy wires of torch tensors: checked here, before anything is sent, then started in C++."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist

from rdmatensor._backend.groups import backend_of, group_of
from rdmatensor._native.ffi import lib

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup

Wire = Literal["exact", "bf16", "q8"]
_KINDS: dict[str, int] = {"bf16": lib.RDT_WIRE_BF16, "q8": lib.RDT_WIRE_Q8}
WIRES = ("exact", *_KINDS)
BLOCK: int = lib.RDT_WIRE_BLOCK
BLOCKS = (32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Format:
    """A wire and the block of q8, which is 0 of others."""

    wire: Wire
    block: int

    @property
    def kind(self) -> int:
        """Its number in C."""
        return _KINDS[self.wire]

    def bytes_of(self, elements: int) -> int:
        """Bytes of so many elements, apart from padding."""
        if self.wire == "q8":
            return elements + 2 * -(-elements // self.block)
        return elements * (2 if self.wire == "bf16" else 4)


def format_of(wire: object, block: object, call: str) -> Format:
    """Check a wire and a block; ValueError names the value and what is expected."""
    if wire not in WIRES:
        raise ValueError(f"{call}: wire={wire!r} is not one of {', '.join(WIRES)}")
    if block not in BLOCKS or isinstance(block, bool):
        known = ", ".join(map(str, BLOCKS))
        raise ValueError(f"{call}: block={block!r} is not one of {known}")
    assert isinstance(block, int)
    return Format(wire, block if wire == "q8" else 0)  # type: ignore[arg-type]


def check_tensor(tensor: object, fmt: Format, call: str) -> None:
    """Raise TypeError unless the wire is defined for the tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{call}: expected a torch tensor, got {type(tensor).__name__}")
    if fmt.wire != "exact" and tensor.dtype != torch.float32:
        raise TypeError(f"{call}: the wire {fmt.wire} is for torch.float32, not for {tensor.dtype}")


def check_op(op: object, fmt: Format, call: str) -> None:
    """Raise TypeError unless the wire is defined for the reduction."""
    if fmt.wire != "exact" and op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        name = getattr(op, "name", None) or str(op).rpartition(".")[2]
        raise TypeError(f"{call}: the wire {fmt.wire} is for SUM and AVG, not for {name}")


def check_residual(
    residual: torch.Tensor | None, tensor: torch.Tensor, fmt: Format, call: str
) -> None:
    """Raise unless the residual fits the tensor that is encoded."""
    if residual is None:
        return
    if fmt.wire == "exact":
        raise ValueError(f"{call}: a residual needs a lossy wire, and wire is 'exact'")
    if not isinstance(residual, torch.Tensor) or residual.dtype != torch.float32:
        kind = getattr(residual, "dtype", type(residual).__name__)
        raise TypeError(f"{call}: residual: expected a torch.float32 tensor, got {kind}")
    if residual.numel() != tensor.numel():
        raise ValueError(
            f"{call}: residual has {residual.numel()} elements, expected {tensor.numel()}: it "
            "belongs to another tensor"
        )


def all_reduce(
    tensor: torch.Tensor,
    fmt: Format,
    op: dist.ReduceOp.RedOpType,
    residual: torch.Tensor | None,
    group: ProcessGroup | None,
    *,
    is_async: bool,
    label: int = 0,
) -> dist.Work | None:
    """Sum a float32 tensor that was checked; the work is None unless it is asynchronous.

    Ranks whose labels differ fail.
    """
    backend = backend_of(group_of(group))
    return backend._lossy_all_reduce(
        tensor, dist.ReduceOp(op), fmt.kind, fmt.block, residual, is_async, label
    )


def reduce_scatter(
    output: torch.Tensor,
    tensor: torch.Tensor,
    fmt: Format,
    op: dist.ReduceOp.RedOpType,
    residual: torch.Tensor | None,
    group: ProcessGroup | None,
    *,
    is_async: bool,
) -> dist.Work | None:
    """As all_reduce(); each rank gets its part of the sum."""
    backend = backend_of(group_of(group))
    return backend._lossy_reduce_scatter(
        output, tensor, dist.ReduceOp(op), fmt.kind, fmt.block, residual, is_async
    )


def all_gather(
    output: torch.Tensor,
    tensor: torch.Tensor,
    fmt: Format,
    residual: torch.Tensor | None,
    group: ProcessGroup | None,
    *,
    is_async: bool,
) -> dist.Work | None:
    """Collect the tensors of all ranks, each as its rank encoded it."""
    backend = backend_of(group_of(group))
    return backend._lossy_all_gather(output, tensor, fmt.kind, fmt.block, residual, is_async)
