"""Batch normalisation with the statistics of all ranks' batches."""

from __future__ import annotations

from typing import cast

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from rdmatensor.horovod import basics
from rdmatensor.horovod.basics import Sum
from rdmatensor.horovod.torch.reductions import allreduce

_NAME = "sync_batch_norm"


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation over the batches of all ranks while it trains, as torch's own elsewhere.

    Inputs are of at least two dimensions, batch and channels first; batches of ranks may differ in
    size. Arguments are those of torch.nn.BatchNorm2d.

    Example:
        >>> SyncBatchNorm(3)(torch.ones(2, 3, 4)).shape
        torch.Size([2, 3, 4])
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - torch's name
        if input.dim() < 2:
            raise ValueError(f"expected an input of at least two dimensions, not {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """Return the normalised input.

        Args:
            input: Of shape (batch, num_features, ...).

        Returns:
            A tensor of the same shape.

        Raises:
            ValueError: Fewer than two dimensions, or one value for each channel on all ranks.
            HorovodInternalError: A rank died or left.

        Example:
            >>> SyncBatchNorm(1).eval()(torch.ones(1, 1)).shape
            torch.Size([1, 1])
        """
        self._check_input_dim(input)
        uses_batch = self.training or self.running_mean is None
        if not uses_batch or basics.size() == 1:
            return super().forward(input)
        dims = [0, *range(2, input.dim())]
        count = input.numel() // input.shape[1]
        # One reduction for the sums, and one for the squares around the common mean.
        sums = torch.cat([input.sum(dims), input.new_tensor([count])])
        sums = allreduce(sums, name=f"{_NAME}.sums", op=Sum)
        total = sums[-1].detach()
        mean = sums[:-1] / total
        shape = [1, -1] + [1] * (input.dim() - 2)
        centred = input - mean.view(shape)
        variance = allreduce((centred**2).sum(dims), name=f"{_NAME}.squares", op=Sum) / total
        if self.training:
            self._note(mean.detach(), variance.detach(), float(total))
        normal = centred * torch.rsqrt(variance + self.eps).view(shape)
        if not self.affine:
            return normal
        return normal * self.weight.view(shape) + self.bias.view(shape)

    def _note(self, mean: torch.Tensor, variance: torch.Tensor, total: float) -> None:
        """Update the running statistics."""
        if total < 2:
            raise ValueError("expected more than one value for each channel while it trains")
        if self.running_mean is None or self.running_var is None:
            return
        tracked = cast("torch.Tensor", self.num_batches_tracked)
        tracked += 1
        momentum = 1.0 / float(tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        unbiased = variance * (total / (total - 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)
