"""A lender's memory as the place of saved tensors: transfers, their price, and a lender's death."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

import rdmatensor.torch
from rdmatensor._lend.lent import Lent, Place
from rdmatensor._lend.ranks import Ranks
from rdmatensor._lend.sizes import shown
from rdmatensor.budget.swap import LEAST_BYTES, Move
from rdmatensor.errors import PeerError, TransferTimeoutError
from rdmatensor.transfer import Transfer

_LARGE_BYTES = 4 << 20
_REPEATS = 3


class PeerMover:
    """Moves saved tensors to a lender and back."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def write(self, source: torch.Tensor, offset: int) -> Move:
        """Start to write."""
        with _naming(self._place):
            return _Named(self._place.write(source, offset), self._place)

    def read(self, target: torch.Tensor, offset: int) -> Move:
        """Start to read."""
        with _naming(self._place):
            return _Named(self._place.read(target, offset), self._place)

    def empty(self, len_bytes: int) -> torch.Tensor:
        """Return bytes: of the arena where a device writes them, else of torch's allocator."""
        if self._place.is_direct:
            return rdmatensor.torch.empty(len_bytes, dtype=torch.uint8)
        return torch.empty(len_bytes, dtype=torch.uint8)


@contextlib.contextmanager
def _naming(place: Place) -> Iterator[None]:
    """Name the lender in what its death raises."""
    try:
        yield
    except PeerError as error:
        words = f"rank {place.lender}, which lends memory for saved tensors, cannot be reached"
        named = PeerError(error.code, "budget", f"{words}: {error.detail}")
        named.rank = place.lender
        raise named from error


class _Named:
    def __init__(self, transfer: Transfer, place: Place) -> None:
        self._transfer, self._place = transfer, place

    def wait(self) -> object:
        """Return when it has ended."""
        with _naming(self._place):
            return self._transfer.wait()

    def done(self) -> bool:
        """Whether it has ended."""
        return self._transfer.done()


@dataclass(frozen=True, slots=True)
class Price:
    """Of one transfer: fixed_ns, and so much for each MiB; cpu_ns of the caller, for each MiB."""

    fixed_ns: int
    mib_ns: int
    cpu_mib_ns: int

    def link_ns(self, sizes: tuple[int, ...]) -> int:
        """Return the time in which the link moves tensors of these sizes."""
        return sum(self.fixed_ns + size * self.mib_ns // (1 << 20) for size in sizes)

    def cpu_ns(self, sizes: tuple[int, ...]) -> int:
        """Return the processor time of the caller."""
        return sum(size * self.cpu_mib_ns // (1 << 20) for size in sizes)


def measure(lent: Lent, ranks: Ranks) -> tuple[Price, Price]:
    """Return the prices of writes and reads, with all borrowers at once."""
    small, large = LEAST_BYTES, min(_LARGE_BYTES, lent.free_bytes)
    error: Exception | None = None
    place, found = None, []
    try:
        place = lent._take(large, "fit")
    except Exception as raised:  # noqa: BLE001 - raised below, when the other ranks know
        error = raised
    for is_write in (True, False):
        for size in (small, large):
            ranks.all(True)  # also of a rank that has failed: the others wait for it here
            if place is None or error is not None:
                continue
            try:
                found.append(_times(PeerMover(place), size, is_write=is_write))
            except Exception as raised:  # noqa: BLE001 - as above
                error = raised
    if place is not None and not isinstance(error, TransferTimeoutError):  # or it is in flight
        lent._give_back(place)
    ranks.check_errors(error)
    return _price(found[:2], small, large), _price(found[2:], small, large)


def _times(mover: PeerMover, size: int, *, is_write: bool) -> tuple[int, int]:
    """Return how long a transfer takes, and the processor time of the caller."""
    tensor, start = mover.empty(size).zero_(), mover.write if is_write else mover.read
    times = []
    for _ in range(_REPEATS):
        began_ns, busy_ns = time.perf_counter_ns(), time.thread_time_ns()
        move = start(tensor, 0)
        busy_ns = time.thread_time_ns() - busy_ns  # not that of waiting, which may spin
        move.wait()
        times.append((max(0, time.perf_counter_ns() - began_ns - busy_ns), busy_ns))
    return sorted(times)[_REPEATS // 2]


def _price(found: Sequence[tuple[int, int]], small: int, large: int) -> Price:
    """Return the price of which these are the times of a small and a large transfer."""
    (small_ns, _), (large_ns, busy_ns) = found
    mib_ns = max(0, large_ns - small_ns) * (1 << 20) // max(1, large - small)
    fixed_ns = max(0, small_ns - small * mib_ns // (1 << 20))
    return Price(fixed_ns, mib_ns, busy_ns * (1 << 20) // max(1, large))


def notes(lent: Lent) -> tuple[str, ...]:
    """Return what a person should know of the lender."""
    assert lent.place is not None
    found = [f"rank {lent.lender} lends {shown(lent.borrowed_bytes)}"]
    if lent.place.is_on_host:
        found.append(
            "the lender's memory is on the same host: it helps where limits are per process"
        )
    return tuple(found)
