"""The gradients of an optimizer on their way through the ranks."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from rdmatensor.horovod import _runtime
from rdmatensor.horovod._entry import Entry
from rdmatensor.horovod.process_sets import ProcessSet
from rdmatensor.horovod.torch import _submit
from rdmatensor.horovod.torch.handles import synchronize
from rdmatensor.horovod.torch.reductions import (
    CompressorLike,
    allreduce_async_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
)

Named = list[tuple[str, torch.Tensor]]
Group = tuple[torch.Tensor, ...]
Waiter = Callable[[], object]


class Part:
    """Gradients that are reduced together; one, unless there are groups.

    left: backward passes of each until they are sent; entry: the operation, which is used again in
    each step; wait: while they are sent.
    """

    __slots__ = ("entry", "left", "name", "parameters", "wait")

    def __init__(self, parameters: Group, name: str, passes: int) -> None:
        self.parameters, self.name = parameters, name
        self.left = [passes] * len(parameters)
        self.entry: Entry | None = None
        self.wait: Waiter | None = None


class Reducer:
    """The reduction of an optimizer's gradients, from the hooks of backward() to step()."""

    def __init__(
        self,
        named: Named,
        groups: list[Group],
        compression: CompressorLike,
        passes: int,
        op: int,
        predivide: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.names = {parameter: name for name, parameter in named}
        self.passes = passes
        self.compression, self.op, self.process_set = compression, op, process_set
        # An average divides by the number of ranks after the sum.
        self.factors: dict[str, Any] = {
            "prescale_factor": 1.0 / predivide,
            "postscale_factor": predivide,
        }
        self.sparse_as_dense = sparse_as_dense
        self.parts = [Part(group, self.names[group[0]], passes) for group in groups]
        self.is_sending = False

    def listen(self) -> None:
        """Have backward() call ready()."""
        method = weakref.WeakMethod(self.ready)  # parameters outlive the optimizer

        def hook_of(part: Part, index: int) -> Callable[[torch.Tensor], None]:
            def hook(_: torch.Tensor) -> None:
                ready = method()
                if ready is not None:
                    ready(part, index)

            return hook

        for part in self.parts:
            for index, parameter in enumerate(part.parameters):
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    hook_of(part, index)
                )

    def reset(self) -> None:
        """Forget the gradients of an unfinished step."""
        self.is_sending = False
        for part in self.parts:
            part.wait = None
            part.left = [self.passes] * len(part.left)

    def ready(self, part: Part, index: int) -> None:
        """Take note that a backward pass has added to a gradient."""
        if part.left[index] <= 0:
            raise AssertionError(
                f"the gradient of {self.names[part.parameters[index]]} was computed more than "
                f"backward_passes_per_step={self.passes} times before step(): give "
                "DistributedOptimizer() the number of passes"
            )
        part.left[index] -= 1
        if not any(part.left):
            self._send(part)

    def synchronize(self) -> None:
        """Send what was not sent, as it is or as zeros; wait for all sums."""
        for part in self.parts:
            if part.wait is None:
                self._send(part)
        try:
            for part in self.parts:
                assert part.wait is not None
                part.wait()
        finally:
            self.reset()

    def _send(self, part: Part) -> None:
        self.is_sending = True
        for one in part.parameters:
            if one.grad is None:  # another rank may have one
                one.grad = torch.zeros_like(one, memory_format=torch.contiguous_format)
        if not self._send_again(part):
            part.wait = self._waiter(part)

    def _send_again(self, part: Part) -> bool:
        """Send by the operation of the last step, if the gradients are as they were."""
        entry = part.entry
        if entry is None:
            return False
        grads = [one.grad for one in part.parameters]
        if not entry.can_take(grads):
            return False
        entry.renew(grads)
        controller = _runtime.controller()
        controller.submit(entry)
        part.wait = functools.partial(controller.wait, entry)
        return True

    def _waiter(self, part: Part) -> Waiter:
        group = part.parameters
        arguments: dict[str, Any] = {"op": self.op, "process_set": self.process_set}
        if len(group) == 1 and _gradient(group[0]).is_sparse:
            return self._send_sparse(group[0], part.name)
        pairs = [self.compression.compress(_dense(_gradient(one))) for one in group]
        sent = [_contiguous(tensor) for tensor, _ in pairs]
        arguments |= self.factors
        if len(group) == 1:
            handle = allreduce_async_(sent[0], name=part.name, **arguments)
        else:
            handle = grouped_allreduce_async_(sent, name=part.name, **arguments)
        if all(tensor is one.grad for tensor, one in zip(sent, group, strict=True)):
            part.entry = _submit.entry_of(handle)  # nothing is to be done but the reduction

        def wait() -> None:
            found = synchronize(handle)
            results = [found] if len(group) == 1 else found
            for one, result, (_, ctx) in zip(group, results, pairs, strict=True):
                self._put(one, self.compression.decompress(result, ctx))

        return wait

    def _send_sparse(self, parameter: torch.Tensor, name: str) -> Waiter:
        gradient = _gradient(parameter)
        if not self.sparse_as_dense:
            result = sparse_allreduce_async(gradient, name, self.op, self.process_set)
            return lambda: self._put(parameter, result())
        compressed, ctx = self.compression.compress(gradient.to_dense())
        handle = allreduce_async_(
            compressed, name=name, op=self.op, process_set=self.process_set, **self.factors
        )

        def wait() -> None:
            dense = self.compression.decompress(synchronize(handle), ctx)
            self._put(parameter, dense.to_sparse())

        return wait

    @staticmethod
    def _put(parameter: torch.Tensor, reduced: torch.Tensor) -> None:
        gradient = _gradient(parameter)
        if gradient.is_sparse:
            parameter.grad = reduced.to(gradient.dtype)
        elif gradient.data_ptr() != reduced.data_ptr():
            gradient.copy_(reduced)


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_contiguous() else tensor.contiguous()
