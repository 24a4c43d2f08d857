"""What autograd does of the operations."""

# ruff: noqa: ANN401 - autograd's context has what its functions put there

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from rdmatensor.horovod.basics import Average, Sum
from rdmatensor.horovod.process_sets import ProcessSet
from rdmatensor.horovod.torch import _calls
from rdmatensor.horovod.torch.handles import synchronize

Tensor = torch.Tensor


def applied(function: type[torch.autograd.Function], *arguments: object) -> Any:
    """Return what the function returns; autograd records it."""
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def is_needed(*tensors: Tensor) -> bool:
    """Return whether autograd records."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


class Allreduce(torch.autograd.Function):
    """The gradient is reduced in the same manner."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: int, factors: Any, one: ProcessSet, *tensors: Tensor
    ) -> Any:
        ctx.arguments = None if name is None else f"{name}.grad", op, factors, one
        handle = _calls.allreduce(tensors, None, name, op, factors, one, is_list=True)
        return tuple(synchronize(handle))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        name, op, factors, one = ctx.arguments
        handle = _calls.allreduce(
            [grad.contiguous() for grad in grads], None, name, op, factors, one, is_list=True
        )
        return (None, None, None, None, *synchronize(handle))


class Allgather(torch.autograd.Function):
    """Each rank gets the average of the gradients of its own rows."""

    @staticmethod
    def forward(ctx: Any, name: str | None, one: ProcessSet, *tensors: Tensor) -> Any:
        ctx.process_set = one
        ctx.shapes = [tensor.shape for tensor in tensors]
        return tuple(synchronize(_calls.allgather(tensors, name, one, is_list=True)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        one, factors = ctx.process_set, (1.0, 1.0)
        rows = [shape[0] if shape else 1 for shape in ctx.shapes]
        given = [grad.contiguous() for grad in grads]
        handle = _calls.allreduce(given, None, None, Average, factors, one, is_list=True)
        averages = synchronize(handle)
        all_rows = synchronize(_calls.allgather([torch.tensor([rows])], None, one))
        before = all_rows[: one.rank()].sum(0).tolist()
        return (
            None,
            None,
            *(
                average.narrow(0, first, count).reshape(shape)
                for average, first, count, shape in zip(
                    averages, before, rows, ctx.shapes, strict=True
                )
            ),
        )


class Broadcast(torch.autograd.Function):
    """The root gets the average of the gradients, the others zeros."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int, name: str | None, one: ProcessSet) -> Any:
        ctx.arguments = root, one
        return synchronize(_calls.broadcast(tensor, torch.empty_like(tensor), root, name, one))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        root, one = ctx.arguments
        handle = _calls.allreduce([grad.contiguous()], None, None, Average, (1.0, 1.0), one)
        average = synchronize(handle)
        if one.ranks[one.rank()] != root:
            average = torch.zeros_like(average)
        return average, None, None, None


class Alltoall(torch.autograd.Function):
    """The gradients return to the ranks that sent the rows."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: str | None, one: ProcessSet) -> Any:
        output, received = synchronize(_calls.alltoall(tensor, splits, name, one))
        ctx.process_set, ctx.received = one, received
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _received: Tensor) -> Any:
        handle = _calls.alltoall(grad.contiguous(), ctx.received, None, ctx.process_set)
        return synchronize(handle)[0], None, None, None


class Reducescatter(torch.autograd.Function):
    """The gradient of a sum is gathered times the number of ranks, that of an average as it is."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: int, factors: Any, one: ProcessSet, *tensors: Tensor
    ) -> Any:
        ctx.arguments = op, factors, one
        return tuple(
            synchronize(_calls.reducescatter(tensors, name, op, factors, one, is_list=True))
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        op, (prescale, postscale), one = ctx.arguments
        factor = prescale * postscale * (one.size() if op == Sum else 1)
        scaled = [grad.contiguous() if factor == 1.0 else grad * factor for grad in grads]
        gathered = synchronize(_calls.allgather(scaled, None, one, is_list=True))
        return (None, None, None, None, *gathered)
