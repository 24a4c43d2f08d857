"""What is right: the oracle's values on each rank, and one copy of the model on all.

Two ranks: a sum of two floats is the same in either order, and a half of it is exact, so that the
values must be Gloo's to the bit. The exception is numbers so small that a half of them loses bits:
DistributedDataParallel halves before the sum, and a plan after it. Three ranks: Gloo adds in an
order of its own, so the oracle gathers and adds in rdmatensor's (wraps.py), to the bit. Where it
cannot (Case.is_summed_by_rank()), a multiple of the precision of the model's shortest type is
allowed, of the tensor's largest element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

# Of three ranks, a part of the largest element: some hundred units in the last place of float32 in
# the first step. A model's next step enlarges what differs by its own derivative, and an optimizer
# that divides by a small gradient's size more than that.
PART_FIRST = 256.0 * 2.0**-23
PART_LATER = 0.05
# Where a model has a part of a short type: some units in its last place in the first step. From
# then on an activation that is rounded the other way changes a gradient, in which much may cancel,
# by a fifth of its largest element, and each step adds to it: only that the ranks have the same
# bits is judged.
PART_SHORT = 16.0 * 2.0**-10
# Of what two ranks have halved before they add: half of the smallest number each, as often as
# a gradient is added up.
HALVES = {"torch.float16": 2.0**-24, "torch.bfloat16": 2.0**-130}
HALVES_ELSE = 2.0**-126  # float32: below its smallest normal number, and so for float64


@dataclass(frozen=True)
class Value:
    """A tensor as it was."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    is_sparse: bool = False

    def tensor(self) -> torch.Tensor:
        dtype = getattr(torch, self.dtype.removeprefix("torch."))
        if not self.data:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(bytearray(self.data), dtype=dtype).view(self.shape)


def value_of(tensor: torch.Tensor) -> Value:
    """Return a copy of a tensor."""
    dense = tensor.detach().to_dense().contiguous()
    data = dense.reshape(-1).view(torch.uint8) if dense.numel() > 0 else torch.empty(0)
    return Value(
        str(dense.dtype), tuple(dense.shape), bytes(data.numpy()), is_sparse=tensor.is_sparse
    )


def difference(wanted: Mapping[str, Value], found: Mapping[str, Value], *, part: float) -> str:
    """Return how the values of a step differ from the oracle's; "" if they do not.

    part: of the largest element that a tensor may be off by.
    """
    for name in [*wanted, *(name for name in found if name not in wanted)]:
        if name not in found or name not in wanted:
            return f"{name} is {'missing' if name not in found else 'there'}, unlike the oracle's"
        why = _difference(wanted[name], found[name], part=part)
        if why:
            return f"{name}: {why}"
    return ""


def _difference(wanted: Value, found: Value, *, part: float) -> str:
    if wanted == found:
        return ""
    for of in ("dtype", "shape", "is_sparse"):
        if getattr(wanted, of) != getattr(found, of):
            return f"{of} is {getattr(found, of)}, of the oracle's {getattr(wanted, of)}"
    mine, theirs = found.tensor(), wanted.tensor()
    if not (mine.is_floating_point() or mine.is_complex()):
        return f"{mine.tolist()} instead of {theirs.tolist()}"
    kind = torch.complex128 if mine.is_complex() else torch.float64
    mine, theirs = mine.to(kind), theirs.to(kind)
    same_nan = torch.equal(torch.isnan(mine), torch.isnan(theirs))
    off = torch.nan_to_num((mine - theirs).abs(), nan=0.0)
    largest = float(torch.nan_to_num(theirs.abs(), nan=0.0, posinf=0.0).max())
    allowed = HALVES.get(wanted.dtype, HALVES_ELSE)
    allowed += part * max(largest, 1e-3)
    if same_nan and float(off.max()) <= allowed:
        return ""
    return (
        f"off by {float(off.max()):.3g} where the largest is {largest:.3g}, allowed {allowed:.3g}"
    )


def _is_same(one: Value | None, other: Value | None) -> bool:
    if one == other or one is None or other is None:
        return one == other
    if (one.dtype, one.shape, one.is_sparse) != (other.dtype, other.shape, other.is_sparse):
        return False
    mine, peer = one.tensor(), other.tensor()
    is_nan = torch.isnan(mine)
    return torch.equal(is_nan, torch.isnan(peer)) and (
        value_of(mine.masked_fill(is_nan, 0)).data == value_of(peer.masked_fill(is_nan, 0)).data
    )


def ranks_part(ranks: Sequence[Mapping[str, Value]], oracle: Sequence[Mapping[str, Value]]) -> str:
    """Return which value differs between ranks, to the bit, that the oracle's ranks share.

    A NaN is a NaN: which one comes out of a training that has diverged says nothing.
    """
    for name, value in ranks[0].items():
        shared = [other.get(name) for other in oracle]
        if shared[0] is None or any(not _is_same(other, shared[0]) for other in shared):
            continue
        if any(not _is_same(other.get(name), value) for other in ranks):
            return f"{name} differs between the ranks"
    return ""
