"""The copy floor: what an operation's bytes cost, without any message, call or waiting.

Each rank has a block of memory that all map and no rank writes any more. An operation is what each
rank has to move at the least: memcpy out of the blocks into memory of the rank's own, and what is
summed, by torch, one block's share onto memory of the rank's own in one pass. All ranks work at
once, as they do in the operation, and never wait: so no line is written by one while another reads
it, which would cost more than an operation pays that has its steps one after another.

all_reduce has two shots: each rank sums its share of all tensors (n - 1 passes over size / n) and
copies the n - 1 other shares. all_gather and all_to_all copy all of their output, the own part too,
broadcast all of it to each receiver; of gather and scatter each rank copies one share; of reduce
each sums one, as of reduce_scatter. send is one copy.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from bench.workers.operations import ELEMENT_BYTES, Call, Operation

LEAST_BYTES = 64 << 10  # below it Python's own time counts for more than the copies'
_PIECE_ELEMENTS = 64 << 10  # of sums of more than two: the last piece is still in the cache
# The first with room: in a container /dev/shm is small as a rule.
_FOLDERS = (Path("/dev/shm"), Path(tempfile.gettempdir()))


def _make(name: str, len_bytes: int) -> Path:
    """Make a file of zeros where it has room."""
    for folder in _FOLDERS:
        if shutil.disk_usage(folder).free > len_bytes:
            path = folder / name
            with path.open("xb") as file:
                os.posix_fallocate(file.fileno(), 0, len_bytes)
            return path
    raise OSError(f"no room for {len_bytes} bytes in {' or '.join(map(str, _FOLDERS))}")


class Copies:
    """The blocks of all ranks; most_bytes: of the largest operation.

    meet: a barrier. The blocks are gone with their last process.
    """

    def __init__(
        self, name: str, rank: int, ranks: int, most_bytes: int, meet: Callable[[], object]
    ) -> None:
        # Whole pages: blocks that lie some bytes apart of each other's place in a page copy slowly.
        elements = -(-(most_bytes + ranks * ELEMENT_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
        elements //= ELEMENT_BYTES
        len_bytes = elements * ELEMENT_BYTES * ranks
        path = _make(name, len_bytes) if rank == 0 else None
        try:
            meet()
            found = path or next(folder / name for folder in _FOLDERS if (folder / name).exists())
            file_number = os.open(found, os.O_RDWR)
            memory = mmap.mmap(file_number, len_bytes)
            os.close(file_number)
            meet()
        finally:
            if path is not None:
                path.unlink()
        whole = torch.frombuffer(memory, dtype=torch.float32)  # keeps the mapping
        self._blocks = [whole[at : at + elements] for at in range(0, whole.numel(), elements)]
        self._blocks[rank].zero_()
        meet()

    def call(self, operation: Operation) -> Call:
        """Return what this rank has to move, which must not outlive the operation's tensors."""
        moves = [_move(*pair) for pair in self._copies(operation)]
        sums = [_sum(*three) for three in self._sums(operation)]
        parts = [*sums, *moves] * operation.trips

        def all_parts() -> None:
            for part in parts:
                part()

        return all_parts

    def _copies(self, one: Operation) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What is copied: (to, from)."""
        rank, blocks = one.rank, self._blocks
        others = [other for other in range(one.ranks) if other != rank]
        if one.name == "all_reduce":
            return [(one.block(one.source, i), one.block(blocks[i], i)) for i in others]
        if one.name == "all_gather":
            own = (one.block(one.target, rank), one.source)
            return [own, *((one.block(one.target, i), blocks[i][: one.share]) for i in others)]
        if one.name == "all_to_all":
            own = (one.block(one.target, rank), one.block(one.source, rank))
            return [own, *((one.block(one.target, i), one.block(blocks[i], rank)) for i in others)]
        if one.name == "gather":
            return [(one.source, blocks[others[0]][: one.share])]
        if one.name == "scatter":
            return [(one.target, one.block(blocks[others[0]], rank))]
        if one.name == "broadcast" and rank != 0:
            return [(one.source, blocks[0][: one.whole])]
        if one.name == "send" and rank == 0:
            return [(one.target, blocks[1][: one.whole])]
        return []

    def _sums(self, one: Operation) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """What is summed: (to, one, other), in pieces where more than two are."""
        if one.name not in ("all_reduce", "reduce", "reduce_scatter"):
            return []
        own = one.block(one.source, one.rank)
        into = one.target if one.name == "reduce_scatter" else own
        others = [self._blocks[other] for other in range(one.ranks) if other != one.rank]
        piece = one.share if one.ranks == 2 else _PIECE_ELEMENTS
        return [
            (
                _piece(into, at, piece),
                _piece(into if number else own, at, piece),
                _piece(other, at, piece),
            )
            for at in range(0, one.share, piece)
            for number, other in enumerate(one.block(block, one.rank) for block in others)
        ]


def _piece(tensor: torch.Tensor, at: int, elements: int) -> torch.Tensor:
    return tensor[at : at + elements]


def _move(into: torch.Tensor, source: torch.Tensor) -> Call:
    to, origin, size_bytes = into.data_ptr(), source.data_ptr(), into.nbytes
    if size_bytes != source.nbytes:
        raise RuntimeError(f"{source.nbytes} bytes do not fit into {size_bytes}")
    return lambda: ctypes.memmove(to, origin, size_bytes)


def _sum(into: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> Call:
    return lambda: torch.add(one, other, out=into)
