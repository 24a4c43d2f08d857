"""Gradients of FSDP2 by a lossy wire."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from rdmatensor._backend import lossy
from rdmatensor._backend.lossy import Wire
from rdmatensor.compress.wire import reduce_scatter


class ReduceScatter:
    """What FSDP2 calls in place of reduce_scatter: gradients are sent in fewer bytes.

    Make one object for each module, since it keeps what encoding lost of that module's gradients.
    FSDP does not name the module that it calls for: one object for two modules of different sizes
    is an error, but of equal sizes it adds what was lost of one module to the other's gradients.

    Example:
        >>> fully_shard(model)  # doctest: +SKIP
        >>> model.set_custom_reduce_scatter(ReduceScatter("q8"))  # doctest: +SKIP
    """

    def __init__(
        self, wire: Wire = "q8", *, block: int = lossy.BLOCK, error_feedback: bool = True
    ) -> None:
        """Make one.

        Args:
            wire: As all_reduce().
            block: As all_reduce().
            error_feedback: Add what encoding lost to the next gradients.

        Raises:
            ValueError: The wire or the block is unknown.
        """
        lossy.format_of(wire, block, "ReduceScatter")
        self._wire: Wire = wire
        self._block = block
        self._is_fed_back = error_feedback and wire != "exact"
        self.residual: torch.Tensor | None = None

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return memory for gradients, which FSDP fills.

        Args:
            size: Its shape.
            dtype: Its type.
            device: Its device.

        Returns:
            A tensor that is not initialized.

        Example:
            >>> ReduceScatter().allocate((4,), dtype=torch.float32, device="cpu").shape
            torch.Size([4])
        """
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Sum the gradients of all ranks; FSDP calls it."""
        if self._is_fed_back:
            if self.residual is None:
                self.residual = torch.zeros(input_tensor.numel(), dtype=torch.float32)
            elif self.residual.numel() != input_tensor.numel():
                raise ValueError(
                    f"ReduceScatter: {input_tensor.numel()} gradients after "
                    f"{self.residual.numel()}: give each module one of its own"
                )
        return reduce_scatter(
            output_tensor,
            input_tensor,
            wire=self._wire,
            block=self._block,
            residual=self.residual,
            op=op,
            group=group,
            async_op=async_op,
        )
