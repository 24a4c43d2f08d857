"""One tensor over a transport of ours in four ways, so that what makes it fast is told apart.

bench/core/tensors.c has the ways: a static slot; a dynamic one, whose address and shape travel; an
RPC made for this transport, with a private ring at the receiver from which the tensor is copied
out; and the same of messages that the tensor was first packed into. All are half a round trip, and
whoever receives reads the whole tensor before answering. The two with copies are a peer of their
own: what a user would have who tuned an RPC instead.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

from bench.benchlib import programs
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import rounds, samples
from bench.suite.peers import COPIES, OURS
from bench.suite.settings import KIB, MIB, Settings

TENSOR = "half a round trip of a tensor, read"
SLOT, DYNAMIC = f"{OURS} slot", f"{OURS} dynamic"
COPY, SERIALISED = "ring and copy out", "packed, ring, copy out"
_CONTESTANTS = {
    "slot": (SLOT, OURS),
    "dynamic": (DYNAMIC, OURS),
    "copy": (COPY, COPIES),
    "serialised": (SERIALISED, COPIES),
}
_LEAST_BYTES = 4 * KIB  # below it there is hardly anything to copy
_MOST_BYTES = 64 * MIB  # of the program
_ROUNDS = 3


def turns(
    settings: Settings, transport: str, *, has_copies: bool
) -> Iterator[tuple[str, rounds.Turn]]:
    """Return a turn for each size; has_copies: whether the peer with copies takes part."""
    for size in settings.sizes_of("p2p"):
        if _LEAST_BYTES <= size <= _MOST_BYTES:
            one = functools.partial(turn, settings, transport, size, has_copies=has_copies)
            yield f"tensors, {transport} {size_text(size)}", one


def turn(
    settings: Settings,
    transport: str,
    size: int,
    *,
    has_copies: bool = True,
    environment: Mapping[str, str] | None = None,
) -> list[Record]:
    """Return the records of one turn of all ways."""
    is_short = settings.is_quick or transport == "verbs"
    most, volume = (100, 4 * MIB) if is_short else (500, 32 * MIB)
    trips = max(2, min(most, volume // size))
    words = ("--transport", transport, "--size", str(size), "--count", str(trips))
    found = programs.run("tensors", *words, "--rounds", str(_ROUNDS), environment=environment)
    return [
        samples.turn(
            samples.p2p_fields(
                name, peer, transport, size, language="C", wait="spinning", timed=TENSOR
            ),
            samples.raw_of(record),
            record,
        )
        for record in found
        for name, peer in [_CONTESTANTS[text(record, "contestant")]]
        if has_copies or peer == OURS
    ]


GAINS_NOTE = (
    "Our receivers, with copies or without, read what came; those of gRPC and UCX do not. What is "
    "gained over gRPC also mixes its sleeping with our spinning."
)
# What is told apart -> whose time over whose; names of several: the fastest of them.
_GRPC = ("gRPC C++ unary", "gRPC C++ stream")
_UCX = ("UCX tag",)
GAINS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("dynamic / slot", (DYNAMIC,), SLOT),
    ("copy / slot", (COPY,), SLOT),
    ("packed / copy", (SERIALISED,), COPY),
    ("gRPC / packed", _GRPC, SERIALISED),
    ("gRPC / slot", _GRPC, SLOT),
    ("UCX tag / copy", _UCX, COPY),
)


def medians_of(records: Sequence[Record]) -> dict[tuple[str, int], dict[str, float]]:
    """Return the medians of all contestants by path and size; none of Python's.

    records: of point to point; rivals count by their half round trips of the same bytes.
    """
    medians: dict[tuple[str, int], dict[str, float]] = {}
    for record in records:
        if record.get("language") != "Python" and record.get("timed") in (TENSOR, samples.HALF):
            cell = (text(record, "transport"), int(number(record, "size")))
            found = medians.setdefault(cell, {})
            found[text(record, "contestant")] = number(record, "median_ns")
    return medians


def ratios(records: Sequence[Record]) -> dict[tuple[str, int], dict[str, float]]:
    """Return by path and size what each thing gains, where both of its sides are known."""
    return {
        cell: {
            name: min(known) / of_cell[below]
            for name, above, below in GAINS
            for known in [[of_cell[one] for one in above if one in of_cell]]
            if known and below in of_cell
        }
        for cell, of_cell in medians_of(records).items()
    }


def gains(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return a line for each path and size that has a slot: its time, and what each thing gains."""
    of_all = ratios(records)
    return [
        (
            f"{transport} {size_text(size)}",
            time_text(of_cell[SLOT]),
            *(
                f"{of_all[transport, size][name]:.2f}" if name in of_all[transport, size] else "-"
                for name, _, _ in GAINS
            ),
        )
        for (transport, size), of_cell in medians_of(records).items()
        if SLOT in of_cell
    ]
