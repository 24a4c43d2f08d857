"""torch modules over tables: forward pulls rows, backward pushes their gradients."""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch.autograd.function import once_differentiable

from rdmatensor._native.arguments import invalid
from rdmatensor.ps.table import Table


class _Saved(Protocol):
    """What forward leaves for backward."""

    table: Table
    ids: torch.Tensor


class _Rows(torch.autograd.Function):
    """Rows of a table; the anchor makes autograd call backward."""

    @staticmethod
    def forward(
        ctx: _Saved, table: Table, ids: torch.Tensor, _anchor: torch.Tensor
    ) -> torch.Tensor:
        ctx.table, ctx.ids = table, ids.clone()
        return table.pull(ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Saved, gradient: torch.Tensor) -> tuple[None, None, None]:
        ctx.table.push(ctx.ids, gradient)
        return None, None, None


class Embedding(torch.nn.Module):
    """Rows of a table as torch.nn.Embedding gives rows of its weight.

    Backward pushes the gradients; they are applied after the next Worker.clock().

    Args:
        table: The table.

    Shapes: ids of any shape; the result has (*ids.shape, dim).
    """

    def __init__(self, table: Table) -> None:
        super().__init__()
        if not isinstance(table, Table):
            raise invalid("Embedding", f"table={table!r} is a {type(table).__name__}, not a Table")
        self.table = table
        self._anchor = torch.zeros((), requires_grad=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ids; see the class.

        Args:
            ids: Integers of any shape.

        Returns:
            Rows of shape (*ids.shape, dim).

        Example:
            >>> Embedding(table)(torch.tensor([[3, 4]])).shape
            torch.Size([1, 2, 2])
        """
        rows = _Rows.apply(self.table, ids, self._anchor)  # type: ignore[no-untyped-call]
        return cast("torch.Tensor", rows)

    def extra_repr(self) -> str:
        """Describe the table.

        Returns:
            Its name, rows and dim.

        Example:
            >>> Embedding(table)
            Embedding('t', 10, 2)
        """
        return f"{self.table.name!r}, {self.table.rows}, {self.table.dim}"


class EmbeddingBag(Embedding):
    """Sums or means of rows, as torch.nn.EmbeddingBag gives.

    Args:
        table: The table.
        mode: "sum" or "mean"; of an empty bag the result is zeros.

    Shapes: ids of shape (bags, n) without offsets, or of shape (n,) with offsets of shape (bags,),
        the index of each bag's first id. The result has (bags, dim).
    """

    def __init__(self, table: Table, mode: str = "mean") -> None:
        super().__init__(table)
        if mode not in ("sum", "mean"):
            raise invalid("EmbeddingBag", f"mode={mode!r} is not 'sum' or 'mean'")
        self.mode = mode

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
        """Return a row for each bag; see the class.

        Args:
            ids: Integers of shape (bags, n), or (n,) with offsets.
            offsets: The index of each bag's first id, or None.

        Returns:
            Rows of shape (bags, dim).

        Example:
            >>> EmbeddingBag(table, "sum")(torch.tensor([1, 2, 3]), torch.tensor([0, 2])).shape
            torch.Size([2, 2])
        """
        if ids.dim() == 2 and offsets is None:
            offsets = torch.arange(0, ids.numel(), max(1, ids.shape[1]))
            if ids.shape[1] == 0:
                offsets = torch.zeros(ids.shape[0], dtype=torch.int64)
        elif ids.dim() != 1 or offsets is None:
            raise invalid(
                "EmbeddingBag",
                f"ids of shape {tuple(ids.shape)}: (bags, n), or (n,) with offsets",
            )
        rows = super().forward(ids.reshape(-1))
        own = torch.arange(rows.shape[0])
        return torch.nn.functional.embedding_bag(own, rows, offsets, mode=self.mode)
