"""The forms of an operation: at once or asynchronous, of one tensor or several, in place or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rdmatensor.horovod.process_sets import ProcessSet
from rdmatensor.horovod.torch import _calls, _gradients, _submit
from rdmatensor.horovod.torch.compression import Compressor
from rdmatensor.horovod.torch.handles import synchronize

Tensors = Sequence[torch.Tensor]
CompressorLike = type[Compressor] | Compressor


@dataclass(slots=True)
class Options:
    """The arguments of a reduction except its tensors."""

    name: str | None
    op: int
    factors: _calls.Factors
    process_set: ProcessSet


@dataclass(frozen=True, slots=True)
class Reduction:
    """A row for an operation that computes: how it is submitted, and what autograd does of it."""

    submit: Callable[..., int]
    function: type[torch.autograd.Function]

    def start(self, tensors: Tensors, options: Options, *, is_list: bool) -> int:
        """Submit it, with new tensors for the results; return its handle."""
        return self.submit(
            tensors,
            options.name,
            options.op,
            options.factors,
            options.process_set,
            is_list=is_list,
        )

    def run(
        self, tensors: Tensors, compression: CompressorLike, options: Options
    ) -> list[torch.Tensor]:
        """Compress, reduce and decompress; differentiable."""
        pairs = [compression.compress(tensor) for tensor in tensors]
        given = [tensor for tensor, _ in pairs]
        if _gradients.is_needed(*given):
            one = options
            found = _gradients.applied(
                self.function, one.name, one.op, one.factors, one.process_set, *given
            )
        else:
            found = synchronize(self.start(given, options, is_list=True))
        return [
            compression.decompress(reduced, ctx)
            for reduced, (_, ctx) in zip(found, pairs, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Move:
    """A row for an operation that does not compute; both functions have the same arguments."""

    start: Callable[..., int]
    function: type[torch.autograd.Function]

    def run(self, *arguments: object) -> Any:  # noqa: ANN401 - a tensor or several
        """Move tensors, and wait; differentiable."""
        tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
        if _gradients.is_needed(*tensors):
            return _gradients.applied(self.function, *arguments)
        return synchronize(self.start(*arguments))


def _gather(name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> int:
    return _calls.allgather(tensors, name, process_set, is_list=True)


def _copy(tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet) -> int:
    output = torch.empty_like(tensor, requires_grad=False)
    return _calls.broadcast(tensor, output, root, name, process_set)


def _to_new(tensors: Tensors, *arguments: Any, is_list: bool) -> int:  # noqa: ANN401
    return _calls.allreduce(tensors, None, *arguments, is_list=is_list)


ALLREDUCE = Reduction(_to_new, _gradients.Allreduce)
REDUCESCATTER = Reduction(_calls.reducescatter, _gradients.Reducescatter)
ALLGATHER = Move(_gather, _gradients.Allgather)
BROADCAST = Move(_copy, _gradients.Broadcast)
ALLTOALL = Move(_calls.alltoall, _gradients.Alltoall)


def of_allreduce(
    average: bool | None,
    name: str | None,
    op: int | None,
    factors: _calls.Factors,
    process_set: ProcessSet,
) -> Options:
    """Return an allreduce's options."""
    return Options(name, _submit.op_of(op, average), factors, process_set)


def of_reducescatter(
    name: str | None, op: int, factors: _calls.Factors, process_set: ProcessSet
) -> Options:
    """Return a reducescatter's options."""
    return Options(name, _submit.check_op(op), factors, process_set)


def start_in_place(tensors: list[torch.Tensor], options: Options, *, is_list: bool) -> int:
    """Submit an allreduce in place."""
    one = options
    return _calls.allreduce(
        tensors, tensors, one.name, one.op, one.factors, one.process_set, is_list=is_list
    )
