"""Products with a matrix in a lender's memory, segment by segment, with the epilogue fused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from rdmatensor._native.arguments import invalid
from rdmatensor.stream.remote import Remote
from rdmatensor.transfer import Transfer

Epilogue = Callable[[torch.Tensor], torch.Tensor]
_EPILOGUES: dict[str, Epilogue] = {
    "gelu": nn.functional.gelu,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
}


class Trained:
    """The gradient of a Remote, in the lender's memory as well."""

    def __init__(self, gradient: Remote) -> None:
        self.remote = gradient
        self.is_there = False

    def add(self, start: int, rows: torch.Tensor) -> Transfer:
        """Start to write a segment's gradient, on top of what is there."""
        if self.is_there:
            before = torch.empty_like(rows)
            with self.remote._named():
                self.remote._place.read(before, start * self.remote._row_bytes).wait()
            rows = rows.add_(before)
        return self.remote._write(start, rows)


def _product(
    x: torch.Tensor,
    remote: Remote,
    bias: torch.Tensor | None,
    epilogue: Epilogue | None,
    *,
    is_kept: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return y and, if it is kept, the product before the epilogue, of which backward is made."""
    made = x.new_empty((x.shape[0], remote.shape[0]))
    kept = torch.empty_like(made) if is_kept and epilogue is not None else None
    for start, end, rows in remote._segments():
        part = None if bias is None else bias[start:end]
        product = nn.functional.linear(x, rows, part)
        if kept is not None:
            kept[:, start:end] = product
        made[:, start:end] = product if epilogue is None else epilogue(product)
    return made, kept


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's, of a class without a name
        x: torch.Tensor,
        bias: torch.Tensor | None,
        anchor: torch.Tensor | None,  # noqa: ARG004 - has autograd call backward() for the weight
        remote: Remote,
        epilogue: Epilogue | None,
        trained: Trained | None,
    ) -> torch.Tensor:
        is_kept = any(ctx.needs_input_grad[:3])
        made, kept = _product(x, remote, bias, epilogue, is_kept=is_kept)
        if is_kept:
            ctx.save_for_backward(x, kept)
        ctx.remote, ctx.epilogue, ctx.trained = remote, epilogue, trained
        return made

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401 - as in forward()
        *gradients: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        x, kept = ctx.saved_tensors
        gradient = gradients[0]
        needs_x, needs_bias = ctx.needs_input_grad[:2]
        remote: Remote = ctx.remote
        trained: Trained | None = ctx.trained
        of_x = torch.zeros_like(x) if needs_x else None
        of_bias = gradient.new_empty(remote.shape[0]) if needs_bias else None
        writing: list[tuple[Transfer, torch.Tensor]] = []
        segments: Iterable[tuple[int, int, torch.Tensor | None]] = (
            remote._segments() if needs_x else _ranges(remote)
        )
        for start, end, rows in segments:
            part = gradient[:, start:end]
            if kept is not None:
                part = _through(ctx.epilogue, kept[:, start:end], part)
            if of_x is not None and rows is not None:
                of_x.addmm_(part, rows)
            if of_bias is not None:
                of_bias[start:end] = part.sum(0)
            if trained is not None:
                made = part.t() @ x
                writing.append((trained.add(start, made), made))
                if len(writing) > 1:
                    with remote._named():
                        writing.pop(0)[0].wait()
        for transfer, _ in writing:
            with remote._named():
                transfer.wait()
        if trained is not None:
            trained.is_there = True
        return of_x, of_bias, None, None, None, None


def _ranges(remote: Remote) -> Iterator[tuple[int, int, torch.Tensor | None]]:
    """Yield segments without their rows."""
    for start in range(0, remote.shape[0], remote.segment_rows):
        yield start, min(remote.shape[0], start + remote.segment_rows), None


def _through(epilogue: Epilogue, product: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient before the epilogue."""
    with torch.enable_grad():
        leaf = product.detach().requires_grad_()
        (made,) = torch.autograd.grad(epilogue(leaf), leaf, gradient)
    return made


def linear(
    x: torch.Tensor,
    weight: Remote,
    bias: torch.Tensor | None = None,
    *,
    epilogue: Epilogue | str | None = None,
) -> torch.Tensor:
    """Return epilogue(x @ weight.T + bias) with a weight in a lender's memory.

    Segments of rows of the weight are read while the one before is multiplied. Bias and epilogue
    are applied to each segment's columns while they are in the cache. Where the lender's memory is
    mapped, the product reads it in place, and is equal to the bit to that of a weight in this
    process; streamed, it is equal up to the order of sums in the dtype.

    Args:
        x: At least one dim, the last with as many elements as the weight has columns.
        weight: What place() returned. It gets no gradient; a Linear with `trains` has one.
        bias: One element for each row of the weight, or None.
        epilogue: A pointwise function, or the name of one: "gelu", "relu", "sigmoid", "silu",
            "tanh".

    Returns:
        As x, with as many elements in the last dim as the weight has rows. Differentiable by x
        and bias.

    Raises:
        InvalidArgumentError: Shapes or dtypes do not match, or the epilogue is unknown.
        PeerError: The lender died or left.

    Example:
        >>> linear(torch.ones(2, 4), remote, epilogue="relu").shape  # doctest: +SKIP
        torch.Size([2, 4])
    """
    return product_of(x, weight, bias, epilogue_of(epilogue), None, None)


def product_of(
    x: torch.Tensor,
    weight: Remote,
    bias: torch.Tensor | None,
    epilogue: Epilogue | None,
    anchor: torch.Tensor | None,
    trained: Trained | None,
) -> torch.Tensor:
    """Return what linear() does, and have the backward pass make the weight's gradient."""
    rows, columns = weight.shape
    if x.dim() < 1 or x.shape[-1] != columns or x.dtype != weight.dtype:
        raise invalid("linear", f"x {tuple(x.shape)} of {x.dtype} does not match {weight!r}")
    if bias is not None and (tuple(bias.shape) != (rows,) or bias.dtype != weight.dtype):
        raise invalid("linear", f"bias {tuple(bias.shape)} of {bias.dtype} for {rows} rows")
    flat = x.reshape(-1, columns)
    made: torch.Tensor = _Streamed.apply(  # type: ignore[no-untyped-call]
        flat, bias, anchor, weight, epilogue, trained
    )
    return made.view(*x.shape[:-1], rows)


def epilogue_of(epilogue: Epilogue | str | None) -> Epilogue | None:
    """Return the function of an epilogue."""
    if not isinstance(epilogue, str):
        return epilogue
    if epilogue not in _EPILOGUES:
        raise invalid(
            "linear", f"epilogue {epilogue!r} is unknown: expected one of {sorted(_EPILOGUES)}"
        )
    return _EPILOGUES[epilogue]
