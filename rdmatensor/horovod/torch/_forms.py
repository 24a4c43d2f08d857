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
    """A row of the table: how it is submitted, and what autograd does of it."""

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


def _to_new(tensors: Tensors, *arguments: Any, is_list: bool) -> int:  # noqa: ANN401
    return _calls.allreduce(tensors, None, *arguments, is_list=is_list)


ALLREDUCE = Reduction(_to_new, _gradients.Allreduce)
REDUCESCATTER = Reduction(_calls.reducescatter, _gradients.Reducescatter)


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
