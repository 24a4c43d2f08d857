"""A matrix in a lender's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

import rdmatensor.torch
from rdmatensor._lend.lent import Lent, Place
from rdmatensor._native.arguments import invalid
from rdmatensor.errors import PeerError
from rdmatensor.transfer import Transfer

SEGMENT_BYTES = 4 << 20


class Remote:
    """A matrix in a lender's memory, of which segments of rows come when they are needed.

    Made by place(). Freed with the Lent; calls after that raise InvalidArgumentError.

    Attributes:
        shape: Rows and columns.
        dtype: Of the elements.
        lender: Rank of the lender.
        segment_rows: Rows that are read at once.

    Example:
        >>> remote = place(torch.ones(4, 4), lent)  # doctest: +SKIP
        >>> remote.fetch().sum()  # doctest: +SKIP
        tensor(16.)
    """

    def __init__(
        self, place: Place, shape: tuple[int, int], dtype: torch.dtype, segment_bytes: int
    ) -> None:
        self.shape, self.dtype, self.lender = shape, dtype, place.lender
        self._place = place
        self._row_bytes = shape[1] * dtype.itemsize
        self.segment_rows = max(1, min(shape[0], segment_bytes // max(1, self._row_bytes)))

    def _map(self) -> torch.Tensor:
        """Return the mapped matrix, if the lender still has it."""
        with self._named():
            found = self._place.mapped()
        assert found is not None
        return torch.frombuffer(found, dtype=self.dtype).view(self.shape)

    @property
    def is_mapped(self) -> bool:
        """Whether the lender's memory is mapped here: then products read it in place."""
        return self._place.is_on_host

    def fetch(self) -> torch.Tensor:
        """Read the whole matrix.

        Returns:
            A copy in this process's memory.

        Raises:
            PeerError: The lender died or left.

        Example:
            >>> place(torch.ones(4, 4), lent).fetch().sum()  # doctest: +SKIP
            tensor(16.)
        """
        made = self._landing(self.shape[0])
        with self._named():
            self._place.read(made, 0).wait()
        return made

    def put(self, matrix: torch.Tensor) -> None:
        """Replace the whole matrix.

        Args:
            matrix: Of the same shape and dtype, contiguous.

        Raises:
            InvalidArgumentError: It has another shape or dtype.
            PeerError: The lender died or left.

        Example:
            >>> place(torch.ones(4, 4), lent).put(torch.zeros(4, 4))  # doctest: +SKIP
        """
        if tuple(matrix.shape) != self.shape or matrix.dtype != self.dtype:
            raise invalid(
                "put",
                f"a matrix {tuple(matrix.shape)} of {matrix.dtype} for one {self.shape} of "
                f"{self.dtype}",
            )
        self._put(0, matrix.detach().contiguous())

    def _segments(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yield (first row, end, rows); the next segment is read meanwhile.

        A mapped matrix is one segment, in place. A segment is valid until the next but one.
        """
        rows = self.shape[0]
        if self.is_mapped:
            yield 0, rows, self._map()
            return
        starts = list(range(0, rows, self.segment_rows))
        buffers = [self._landing(self.segment_rows) for _ in starts[:2]]
        reading = self._read(0, buffers[0])
        for index, start in enumerate(starts):
            with self._named():
                reading.wait()
            end = min(rows, start + self.segment_rows)
            if index + 1 < len(starts):
                reading = self._read(starts[index + 1], buffers[(index + 1) % 2])
            yield start, end, buffers[index % 2][: end - start]

    def _read(self, start: int, buffer: torch.Tensor) -> Transfer:
        count = min(self.segment_rows, self.shape[0] - start)
        with self._named():
            return self._place.read(buffer[:count], start * self._row_bytes)

    def _write(self, start: int, rows: torch.Tensor) -> Transfer:
        """Start to write rows; they must not change until it is done."""
        with self._named():
            return self._place.write(rows, start * self._row_bytes)

    def _put(self, start: int, rows: torch.Tensor) -> None:
        writing = self._write(start, rows)
        with self._named():
            writing.wait()

    def _landing(self, rows: int) -> torch.Tensor:
        make = rdmatensor.torch.empty if self._place.is_direct else torch.empty
        return make((rows, self.shape[1]), dtype=self.dtype)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except PeerError as error:
            text = (
                f"rank {self.lender} lends memory for a matrix {self.shape} and cannot be reached"
            )
            raise PeerError(error.code, "stream", f"{text}: {error.detail}") from error

    def __repr__(self) -> str:
        return f"<Remote {self.shape} of {self.dtype} at rank {self.lender}>"


def place(weight: torch.Tensor, lent: Lent, *, segment_bytes: int = SEGMENT_BYTES) -> Remote:
    """Move a matrix into the memory that this rank borrows.

    Args:
        weight: Two dims; its values are copied.
        lent: What lend() returned.
        segment_bytes: How much is read at once where the memory is not mapped.

    Returns:
        The matrix there.

    Raises:
        InvalidArgumentError: It is not a matrix, or the lender lends too little.
        PeerError: The lender died or left.

    Example:
        >>> place(torch.ones(4, 4), lent)  # doctest: +SKIP
        <Remote (4, 4) of torch.float32 at rank 1>
    """
    if weight.dim() != 2 or not weight.is_floating_point() or weight.numel() == 0:
        raise invalid("place", f"weight {tuple(weight.shape)} of {weight.dtype} is not a matrix")
    if segment_bytes < 1:
        raise invalid("place", f"segment_bytes={segment_bytes} is not positive")
    shape = (int(weight.shape[0]), int(weight.shape[1]))
    taken = lent._take(weight.numel() * weight.element_size(), "place")
    made = Remote(taken, shape, weight.dtype, segment_bytes)
    made.put(weight)
    return made
