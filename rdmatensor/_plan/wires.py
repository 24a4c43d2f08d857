"""Which wire each bucket of a plan takes, and its residual."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from graph_analysis import TransferPlan
from rdmatensor._backend import lossy
from rdmatensor._plan.agree import BoundBucket, StartedBucket, on_all_ranks
from rdmatensor._plan.memory import Bucket

AUTO = "auto"
_LEAST_BYTES = 256 << 10  # of a bucket for which a lossy wire is tried
_WORTH = 0.9  # of the exact time: a lossy wire that takes longer is not worth what it loses
_TRIALS = 3


@dataclass(frozen=True, slots=True)
class _Room:
    """What a bucket needs for a lossy wire.

    residual: zero. gaps: positions of elements that belong to no gradient.
    """

    residual: torch.Tensor
    gaps: torch.Tensor


class LossyBucket:
    """The average of a bucket by a lossy wire. What it loses is added in the next pass."""

    def __init__(self, room: _Room, fmt: lossy.Format, group: dist.ProcessGroup) -> None:
        self.residual = room.residual
        self._gaps = room.gaps
        self._format, self._group = fmt, group

    def start(self, flat: torch.Tensor, label: int) -> dist.Work:
        """Average the bucket, or a copy of it, in place; fails if the ranks' labels differ."""
        # A block that was not finite was decoded as NaN, also in gaps.
        flat.index_fill_(0, self._gaps, 0.0)
        work = lossy.all_reduce(
            flat,
            self._format,
            dist.ReduceOp.AVG,
            self.residual,
            self._group,
            is_async=True,
            label=label,
        )
        assert work is not None
        return work

    def close(self) -> None:
        """Let the residual go. Idempotent."""
        self.residual = torch.empty(0)


class Wires:
    """The wires of a plan's buckets, in their order."""

    def __init__(self, wire: str, allow: Sequence[str], group: dist.ProcessGroup) -> None:
        """Check the names; ValueError names what is unknown."""
        call = "plan.apply"
        if wire != AUTO:
            lossy.format_of(wire, lossy.BLOCK, call)
        allowed = [lossy.format_of(name, lossy.BLOCK, call) for name in allow]
        self._tried = [fmt for fmt in allowed if fmt.wire != "exact"]
        self._wire, self._group = wire, group
        self.words = f"{wire} of {', '.join(allow)}" if wire == AUTO else wire
        self._lossy: list[LossyBucket | None] = []
        self.reasons: list[str] = []

    def bind(self, buckets: Sequence[Bucket]) -> Iterator[StartedBucket]:
        """Choose for each bucket, in their order; collective over the group.

        The buckets of the layout before are forgotten, and their residuals, which do not fit.
        """
        self._lossy, self.reasons = [], []
        rooms: list[_Room | None] = [None] * len(buckets)
        if self._wire != "exact":
            rooms = on_all_ranks(partial(self._rooms, buckets), self._group)
        for bucket, room in zip(buckets, rooms, strict=True):
            yield self._bind(bucket.flat, room)

    def _rooms(self, buckets: Sequence[Bucket]) -> list[_Room | None]:
        return [_room_of(bucket) if self._may_lose(bucket.flat) else None for bucket in buckets]

    def _may_lose(self, flat: torch.Tensor) -> bool:
        if flat.dtype != torch.float32:
            return False
        return self._wire != AUTO or (flat.nbytes >= _LEAST_BYTES and bool(self._tried))

    def _bind(self, flat: torch.Tensor, room: _Room | None) -> StartedBucket:
        if room is None:
            is_float = flat.dtype == torch.float32
            why = "exact" if is_float or self._wire == "exact" else f"exact: of {flat.dtype}"
            if self._wire == AUTO and is_float:
                why = f"exact: less than {_LEAST_BYTES >> 10} KiB"
            return self._keep(BoundBucket(flat, self._group), why)
        flat.zero_()  # is encoded when wires are timed
        if self._wire == AUTO:
            return self._keep(*self._faster(flat, room))
        fmt = lossy.format_of(self._wire, lossy.BLOCK, "plan.apply")
        return self._keep(LossyBucket(room, fmt, self._group), fmt.wire)

    def _keep(self, bound: StartedBucket, why: str) -> StartedBucket:
        self._lossy.append(bound if isinstance(bound, LossyBucket) else None)
        self.reasons.append(why)
        return bound

    def _faster(self, flat: torch.Tensor, room: _Room) -> tuple[StartedBucket, str]:
        """Time all wires; all ranks choose alike, by the slowest rank."""
        exact = BoundBucket(flat, self._group)
        # Sums of zeros lose nothing: the residual stays zero.
        others = [LossyBucket(room, fmt, self._group) for fmt in self._tried]
        every: list[StartedBucket] = [exact, *others]
        times = torch.tensor([_time_of(each, flat) for each in every])
        dist.all_reduce(times, op=dist.ReduceOp.MAX, group=self._group)
        shares = (times[1:] / times[0]).tolist()
        share, number = min((share, number) for number, share in enumerate(shares))
        wire = self._tried[number].wire
        is_worth = share < _WORTH
        for place, each in enumerate(every):
            if place != (number + 1 if is_worth else 0):
                each.close()
        if is_worth:
            return others[number], f"{wire}: {share:.2f} of the exact time"
        return exact, f"exact: {wire} takes {share:.2f} of its time"

    def state(self, plan: TransferPlan) -> dict[str, Any]:
        """Return the residuals, in the order of the plan's buckets; None of exact ones."""
        return {
            "plan": plan.fingerprint(),
            "residuals": [
                each.residual.clone() if each is not None else None for each in self._lossy
            ],
        }

    def load(self, state: Mapping[str, Any], plan: TransferPlan) -> None:
        """Take residuals; ValueError if they do not fit. A bucket without any begins at zero."""
        try:
            residuals, before = list(state["residuals"]), state["plan"]
            counts = [0 if each is None else each.numel() for each in residuals]
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"load_wire_state: expected what wire_state() returns ({error!r})"
            ) from error
        if len(residuals) != len(self._lossy):
            raise ValueError(
                f"load_wire_state: it is of {len(residuals)} buckets, the plan has "
                f"{len(self._lossy)}: it belongs to another model or plan"
            )
        for number, (bucket, count) in enumerate(zip(self._lossy, counts, strict=True)):
            if bucket is not None and count not in (0, bucket.residual.numel()):
                raise ValueError(
                    f"load_wire_state: bucket {number} has {count} elements, expected "
                    f"{bucket.residual.numel()}: it belongs to another model or plan"
                )
        if before != plan.fingerprint():
            raise ValueError(
                "load_wire_state: it belongs to another plan, for example one with other masks; "
                "a plan changes in the first forward pass that trains after thin()"
            )
        for bucket, residual in zip(self._lossy, residuals, strict=True):
            if bucket is None:
                continue
            bucket.residual.zero_()
            if residual is not None:
                bucket.residual.copy_(residual.view_as(bucket.residual))


def _room_of(bucket: Bucket) -> _Room:
    is_gap = torch.ones(bucket.flat.numel(), dtype=torch.bool)
    for gradient in bucket.gradients:
        first, count = bucket.reach(gradient)
        is_gap[first : first + count] = False
    return _Room(torch.zeros_like(bucket.flat), is_gap.nonzero().flatten())


def _time_of(bound: StartedBucket, flat: torch.Tensor) -> float:
    """Return the median time of a few sums of the bucket, which is zero."""
    times = []
    for _ in range(_TRIALS):
        began_s = time.perf_counter()
        bound.start(flat, 1).wait()
        times.append(time.perf_counter() - began_s)
    return sorted(times)[_TRIALS // 2]
