"""One operation of this rank, from its submission to its result."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field
from typing import Any

import torch

Kind = str  # allreduce, allgather, broadcast, alltoall, reducescatter, barrier, join, *_process_set
Signature = dict[str, Any]  # what ranks must agree on, and what differs: as JSON has it

AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT = range(6)
OP_NAMES = ("Average", "Sum", "Adasum", "Min", "Max", "Product")


class Mode(enum.IntEnum):
    """What this rank contributes to an allreduce."""

    OWN = 0
    CARRY = 1  # a sum over the ranks that had begun when the fast lane was left
    VOID = 2  # nothing: its own part is in the sum that another rank carries


@dataclass(slots=True, eq=False)
class Entry:
    """An operation.

    lane_key: equal for operations that can take each other's place; None: never in a fast lane.
    """

    set_id: int
    name: str
    kind: Kind
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    signature: Signature
    lane_key: tuple[object, ...] | None = None
    is_list: bool = False
    has_splits: bool = False
    is_gradient: bool = False  # of an optimizer, which lets it travel in a bucket
    mode: Mode = Mode.OWN
    run: Any = None  # _execute.Run
    is_done: bool = False
    error: str | None = None
    result: Any = None
    since_s: float = field(default_factory=time.monotonic)
    key: tuple[int, str] = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.set_id, self.name

    def renew(self, tensors: list[Any]) -> None:
        """Make it an operation that was not submitted, in place of these tensors."""
        self.inputs = self.outputs = tensors
        self.mode, self.run, self.is_done = Mode.OWN, None, False
        self.error = self.result = None
        self.since_s = time.monotonic()

    def finish(self, result: object) -> None:
        """Set the result."""
        self.result, self.is_done = result, True
        self.inputs = []
        self.run = None

    def drop(self) -> None:
        """Let the tensors of an operation that has ended go."""
        self.inputs = self.outputs = []
        self.result = None

    def fail(self, why: str) -> None:
        """Set the reason why it has failed."""
        self.error, self.is_done = why, True
        self.inputs = []
        self.run = None


def dtype_name(dtype: torch.dtype) -> str:
    """Return "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def lane_key_of(signature: Signature) -> tuple[object, ...]:
    """Return an allreduce's signature as a value that compares fast."""
    return (
        tuple(signature["dtypes"]),
        tuple(tuple(shape) for shape in signature["shapes"]),
        signature["op"],
        signature["prescale"],
        signature["postscale"],
    )


def must_agree(kind: Kind, signature: Signature) -> dict[str, object]:
    """Return what must be equal on all ranks, by the name that an error gives it."""
    found = {name: signature[name] for name in _EQUAL[kind] if name in signature}
    if kind in ("allgather", "alltoall"):
        found["shapes after the first dimension"] = [shape[1:] for shape in signature["shapes"]]
    return found


_REDUCTION = ("dtypes", "shapes", "op", "prescale", "postscale")
_EQUAL: dict[Kind, tuple[str, ...]] = {
    "allreduce": _REDUCTION,
    "reducescatter": _REDUCTION,
    "allgather": ("dtypes",),
    "alltoall": ("dtypes",),
    "broadcast": ("dtypes", "shapes", "root"),
    "barrier": (),
    "join": (),
    "add_process_set": ("ranks",),
    "remove_process_set": ("ranks",),
}


def bytes_of(signature: Signature) -> int:
    """Return the bytes of an allreduce's tensors."""
    total = 0
    for dtype, shape in zip(signature["dtypes"], signature["shapes"], strict=True):
        count = 1
        for dim in shape:
            count *= dim
        total += count * _ITEM_BYTES.get(dtype, 8)
    return total


_ITEM_BYTES = {
    **dict.fromkeys(("uint8", "int8", "bool"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16"), 2),
    **dict.fromkeys(("float32", "int32"), 4),
}
