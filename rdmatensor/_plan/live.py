"""The live blocks of a gradient: into a bucket, and back as a gradient that is zero elsewhere."""

from __future__ import annotations

from math import gcd

import torch

from graph_analysis.plan import LiveBlocks

# Values are moved in the widest pieces that no block cuts: one index moves up to 16 bytes.
_WIDE = ((16, torch.complex128), (8, torch.int64))


class LivePart:
    """What of one gradient is sent, in the order of memory.

    count: elements that are sent.
    """

    def __init__(
        self,
        like: torch.Tensor,
        strides: tuple[int, ...],
        blocks: LiveBlocks,
        alignment_bytes: int,
    ) -> None:
        """Prepare the indices.

        like: the parameter.
        strides: of the gradient, which is dense.
        alignment_bytes: of the parts of buckets.
        """
        self._strides = strides
        positions = _positions(like, strides, blocks)
        self.count = len(positions)
        whole = gcd(like.numel(), _common_length(positions)) * like.element_size()
        self._dtype, per_piece = like.dtype, 1
        for wide_bytes, dtype in _WIDE:
            is_wider = wide_bytes > like.element_size() and wide_bytes <= alignment_bytes
            if is_wider and whole % wide_bytes == 0:
                self._dtype, per_piece = dtype, wide_bytes // like.element_size()
                break
        self._index = positions[::per_piece] // per_piece

    @torch.no_grad()
    def gather(self, grad: torch.Tensor, part: torch.Tensor) -> None:
        """Copy the live blocks of a gradient into its part of a bucket."""
        source = self._pieces(grad)
        if source is None:
            source = self._pieces(self._planned_like(grad).copy_(grad))
        assert source is not None
        torch.index_select(source, 0, self._index, out=part.view(self._dtype))

    @torch.no_grad()
    def scatter(self, part: torch.Tensor, grad: torch.Tensor) -> None:
        """Set a gradient to what its part of a bucket holds, and to zero elsewhere."""
        target = self._pieces(grad)
        if target is None:
            whole = self._planned_like(grad)
            self.scatter(part, whole)
            grad.copy_(whole)
            return
        grad.zero_()
        target.index_copy_(0, self._index, part.view(self._dtype))

    def _planned_like(self, grad: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(grad.shape, self._strides, dtype=grad.dtype)

    def _pieces(self, grad: torch.Tensor) -> torch.Tensor | None:
        """Return the gradient's memory as pieces; None if it has another layout than planned."""
        dims = zip(grad.shape, grad.stride(), self._strides, strict=True)
        if any(size != 1 and stride != planned for size, stride, planned in dims):
            return None
        if grad.is_conj() or grad.is_neg():
            return None
        flat = grad.detach().as_strided((grad.numel(),), (1,))
        if flat.storage_offset() * flat.element_size() % self._dtype.itemsize:
            return None
        return flat.view(self._dtype)


def _positions(like: torch.Tensor, strides: tuple[int, ...], blocks: LiveBlocks) -> torch.Tensor:
    """Return the live elements' positions in the gradient's memory, ascending."""
    rows = like.shape[0] if like.dim() else 1
    columns = like.shape[1:].numel()
    high, wide = (-(-rows // blocks.block[0]), -(-columns // blocks.block[1]))
    alive = torch.zeros(high * wide, dtype=torch.bool)
    alive[torch.tensor(blocks.live, dtype=torch.int64)] = True
    each = alive.view(high, wide).repeat_interleave(blocks.block[0], 0)[:rows]
    each = each.repeat_interleave(blocks.block[1], 1)[:, :columns]
    memory = torch.empty_strided(like.shape, strides, dtype=torch.bool)
    memory.copy_(each.reshape(like.shape))
    return memory.as_strided((like.numel(),), (1,)).nonzero().flatten()


def _common_length(positions: torch.Tensor) -> int:
    """Return the largest length in whole multiples of which runs of positions begin and end."""
    if len(positions) == 0:
        return 0
    is_first = torch.ones(len(positions), dtype=torch.bool)
    is_first[1:] = positions[1:] != positions[:-1] + 1
    starts = positions[is_first]
    lengths = is_first.nonzero().flatten().diff(append=torch.tensor([len(positions)]))
    return gcd(*starts.tolist(), *lengths.tolist())
