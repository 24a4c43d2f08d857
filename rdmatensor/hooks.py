"""Communication hooks that send the gradients of DistributedDataParallel in fewer bytes.

For example::

    state, hook = rdmatensor.hooks.q8()
    model.register_comm_hook(state, hook)

The average is written into the bucket itself, so that gradients stay allocated in their buckets.
Annotations here are not strings: torch compares those of a hook with its types.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket, ProcessGroup
from torch.utils.weak import WeakIdKeyDictionary

from rdmatensor._backend import lossy
from rdmatensor._backend.groups import backend_of, group_of

__all__ = ["HookReport", "LossyState", "bf16", "lossy_hook", "q8"]

Reduced: TypeAlias = torch.futures.Future[torch.Tensor]
Shapes: TypeAlias = tuple[tuple[int, ...], ...]
Numbers: TypeAlias = tuple[int, ...]
_SAMPLED = 64  # the error is measured in the first step, and in each 64th


class HookReport(TypedDict):
    """What a hook did on this rank.

    wire: the format; buckets: how many; sent_bytes, exact_bytes: what lossy collectives of the
    group sent, and exact ones would have; coding_s: time that they spent encoding and decoding;
    not_finite_blocks: blocks with an infinity or a NaN; relative_error: norm of what encoding lost
    of a step's gradients over their norm, as last measured, or None before the first step.
    """

    wire: str
    buckets: int
    sent_bytes: int
    exact_bytes: int
    coding_s: float
    not_finite_blocks: int
    relative_error: float | None


@dataclass
class _Bucket:
    """A bucket between two steps. numbers: of its parameters; residual: if errors are fed back."""

    numbers: Numbers
    shapes: Shapes
    residual: torch.Tensor | None
    calls: int = 0
    lost: float = 0.0
    norm: float = 0.0


class LossyState:
    """State of lossy_hook(), made by q8() or bf16(): what encoding lost, bucket by bucket.

    DistributedDataParallel cuts its buckets again after the first step. What encoding lost in that
    step is dropped then.
    """

    def __init__(
        self, fmt: lossy.Format, group: ProcessGroup | None, *, error_feedback: bool
    ) -> None:
        self._format = fmt
        self._group = group
        self._is_fed_back = error_feedback
        self._buckets: dict[int, _Bucket] = {}
        # In the order of the first step, in which buckets are cut alike in each run.
        self._numbers: Any = WeakIdKeyDictionary()
        self._loaded: dict[tuple[Numbers, Shapes], torch.Tensor] = {}
        self._unseen: Counter[tuple[int, ...]] = Counter()  # of a checkpoint, in this step

    def describe(self) -> HookReport:
        """Return what was saved, what it took, and what was lost.

        Returns:
            The report of this rank.

        Example:
            >>> state, hook = rdmatensor.hooks.q8()
            >>> state.describe()["wire"]
            'q8'
        """
        wire = json.loads(backend_of(group_of(self._group))._collectives()).get("wire", {})
        buckets = self._buckets.values()
        norm = sum(bucket.norm**2 for bucket in buckets) ** 0.5
        lost = sum(bucket.lost**2 for bucket in buckets) ** 0.5
        return {
            "wire": self._format.wire,
            "buckets": len(self._buckets),
            "sent_bytes": wire.get("sent_bytes", 0),
            "exact_bytes": wire.get("exact_bytes", 0),
            "coding_s": wire.get("coding_s", 0.0),
            "not_finite_blocks": wire.get("not_finite_blocks", 0),
            "relative_error": lost / norm if norm else None,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the residuals, for a checkpoint. Each rank has its own.

        Returns:
            Tensors and plain values.

        Example:
            >>> state, hook = rdmatensor.hooks.q8()
            >>> state.state_dict()  # no step was taken
            {'buckets': []}
        """
        return {
            "buckets": [
                {
                    "parameters": bucket.numbers,
                    "shapes": bucket.shapes,
                    "residual": bucket.residual.clone(),
                }
                for _, bucket in sorted(self._buckets.items())
                if bucket.residual is not None
            ]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take residuals of a checkpoint, each when its bucket comes.

        Args:
            state: What state_dict() returned on this rank.

        Raises:
            ValueError: It was not made by state_dict(). A later step raises it if the residuals are
                those of another model, before it sends the first bucket that does not fit.

        Example:
            >>> state, hook = rdmatensor.hooks.q8()
            >>> state.load_state_dict(state.state_dict())
        """
        loaded: dict[tuple[Numbers, Shapes], torch.Tensor] = {}
        try:
            for bucket in state["buckets"]:
                shapes = tuple(tuple(map(int, shape)) for shape in bucket["shapes"])
                numbers = tuple(map(int, bucket["parameters"]))
                loaded[numbers, shapes] = bucket["residual"].to(torch.float32)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"load_state_dict: expected what LossyState.state_dict() returns ({error!r})"
            ) from error
        if loaded and not self._is_fed_back:
            raise ValueError("load_state_dict: it has residuals, and error_feedback is False")
        self._loaded = loaded
        self._buckets = {}
        self._unseen = self._shapes_loaded()

    def _shapes_loaded(self) -> Counter[tuple[int, ...]]:
        return Counter(shape for _, shapes in self._loaded for shape in shapes)

    def _check_loaded(self, bucket: GradBucket, shapes: Shapes) -> None:
        """Raise unless all parameters of this step are those of the checkpoint."""
        unknown = Counter(shapes) - self._unseen
        self._unseen -= Counter(shapes)
        left = list(self._unseen.elements()) if bucket.is_last() else []
        if unknown or left:
            first = next(iter(unknown)) if unknown else left[0]
            whose = "the model has" if unknown else "the residuals have"
            self._unseen = self._shapes_loaded()
            raise ValueError(
                f"lossy_hook: {whose} a parameter of shape {list(first)} more: the residuals that "
                "load_state_dict() got are those of another model"
            )
        if bucket.is_last():
            self._unseen = self._shapes_loaded()

    def _number_of(self, parameter: torch.Tensor) -> int:
        number: int | None = self._numbers.get(parameter)
        if number is None:
            number = self._numbers[parameter] = max(self._numbers.values(), default=-1) + 1
        return number

    def _bucket_of(self, bucket: GradBucket) -> _Bucket:
        parameters = bucket.parameters()
        shapes = tuple(tuple(parameter.shape) for parameter in parameters)
        numbers = tuple(map(self._number_of, parameters))
        if self._loaded:
            self._check_loaded(bucket, shapes)
        index = bucket.index()
        known = self._buckets.get(index)
        if known is None or (known.numbers, known.shapes) != (numbers, shapes):
            residual = self._loaded.pop((numbers, shapes), None) if self._is_fed_back else None
            if residual is None and self._is_fed_back:
                residual = torch.zeros_like(bucket.buffer())
            known = self._buckets[index] = _Bucket(numbers, shapes, residual)
            for other in [each for each in self._buckets if each > index and bucket.is_last()]:
                del self._buckets[other]
        return known


def lossy_hook(state: LossyState, bucket: GradBucket) -> Reduced:
    """Average a bucket by a lossy wire; for DistributedDataParallel.register_comm_hook().

    Args:
        state: Of q8() or bf16().
        bucket: Gradients of float32.

    Returns:
        The future of the average, which lies in the bucket.

    Raises:
        TypeError: The gradients are not float32.

    Example:
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        >>> model.register_comm_hook(*rdmatensor.hooks.bf16())
    """
    buffer = bucket.buffer()
    lossy.check_tensor(buffer, state._format, "lossy_hook")
    known = state._bucket_of(bucket)
    is_sampled = known.calls % _SAMPLED == 0
    known.calls += 1
    residual = known.residual
    norm = 0.0
    if is_sampled and residual is None:
        residual = torch.zeros_like(buffer)
        norm = float(torch.linalg.vector_norm(buffer))
    elif is_sampled and residual is not None:
        norm = float(torch.linalg.vector_norm(buffer + residual))
    work = lossy.all_reduce(
        buffer, state._format, dist.ReduceOp.AVG, residual, state._group, is_async=True
    )
    assert work is not None

    def end(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        reduced = future.value()[0]
        if is_sampled and residual is not None:
            known.norm, known.lost = norm, float(torch.linalg.vector_norm(residual))
        return reduced

    return work.get_future().then(end)


def q8(
    block: int = lossy.BLOCK, *, error_feedback: bool = True, group: ProcessGroup | None = None
) -> tuple[LossyState, Any]:
    """Make a hook that sends about a quarter of the bytes.

    Args:
        block: Gradients that share a scale: 32, 64, 128, 256, 512 or 1024.
        error_feedback: Add what encoding lost to the gradients of the next step. It takes as much
            memory as the gradients. Without it small gradients may never arrive.
        group: The model's process group; None is the default group.

    Returns:
        The state and the hook, in the order of register_comm_hook().

    Raises:
        ValueError: The block is another number.

    Example:
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        >>> state, hook = rdmatensor.hooks.q8()
        >>> model.register_comm_hook(state, hook)
    """
    fmt = lossy.format_of("q8", block, "hooks.q8")
    return LossyState(fmt, group, error_feedback=error_feedback), lossy_hook


def bf16(
    *, error_feedback: bool = True, group: ProcessGroup | None = None
) -> tuple[LossyState, Any]:
    """Make a hook that sends half of the bytes.

    Unlike torch's bf16_compress_hook(), it sums in float32 and writes into the bucket.

    Args:
        error_feedback: As q8().
        group: As q8().

    Returns:
        The state and the hook, in the order of register_comm_hook().

    Example:
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        >>> model.register_comm_hook(*rdmatensor.hooks.bf16())
    """
    fmt = lossy.format_of("bf16", lossy.BLOCK, "hooks.bf16")
    return LossyState(fmt, group, error_feedback=error_feedback), lossy_hook
