"""Compression of gradients on the wire; a user's own subclasses Compressor."""

# ruff: noqa: ANN401, ARG004 - a compressor's context is its own

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """Makes a tensor smaller before it is reduced, and undoes that to the sum.

    Example:
        >>> class Halved(Compressor):
        ...     @staticmethod
        ...     def compress(tensor):
        ...         return tensor.bfloat16(), tensor.dtype
        ...
        ...     @staticmethod
        ...     def decompress(tensor, ctx):
        ...         return tensor.to(ctx)
    """

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return what is sent, and what decompress() needs to know.

        Args:
            tensor: This rank's tensor.

        Returns:
            The smaller tensor, and a context.

        Raises:
            NotImplementedError: A subclass has none.

        Example:
            >>> Compression.none.compress(torch.ones(1))
            (tensor([1.]), None)
        """
        raise NotImplementedError("a Compressor has a static method compress(tensor)")

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the reduced tensor as compress() had it.

        Args:
            tensor: The sum of what compress() returned on all ranks.
            ctx: The context of compress() on this rank.

        Returns:
            The tensor of the original kind.

        Raises:
            NotImplementedError: A subclass has none.

        Example:
            >>> Compression.none.decompress(torch.ones(1), None)
            tensor([1.])
        """
        raise NotImplementedError("a Compressor has a static method decompress(tensor, ctx)")


class _None(Compressor):
    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class _Cast(Compressor):
    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        ctx = tensor.dtype
        return (tensor.to(cls.dtype) if ctx.is_floating_point else tensor), ctx

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx) if ctx.is_floating_point else tensor


class _Half(_Cast):
    dtype = torch.float16


class _Brain(_Cast):
    dtype = torch.bfloat16


class Compression:
    """The compressors that there are.

    Attributes:
        none: Send tensors as they are.
        fp16: Send floating-point tensors as float16, and sum them so: large sums overflow.
        bf16: Send floating-point tensors as bfloat16, which does not overflow; no part of Horovod.

    Example:
        >>> Compression.fp16.compress(torch.ones(1))[0].dtype
        torch.float16
    """

    none = _None
    fp16 = _Half
    bf16 = _Brain
