"""README's tables beside gRPC C++ and, from Python, beside NIXL, Mooncake and gRPC, with the aims.

An aim is met or not by medians alone; the bands beside them say how far samples lie apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.benchlib.record import Record, Result, number, text
from bench.benchlib.verdict import size_text
from bench.suite import samples, tensors
from bench.suite.doc_messages import best_of_peers
from bench.suite.doc_words import ROOM, head, spread, table
from bench.suite.p2p import ANSWERED
from bench.suite.peers import OURS
from bench.suite.settings import KIB, MIB

_SPINS = samples.WAITS["spin"]
_SMALL, _LARGE = 8, 64 * MIB
_HANDLE = f"{OURS}, Python, one handle"
_CALL = f"{OURS}, Python"


@dataclass(frozen=True, slots=True)
class Aim:
    """What a rival's time over ours has to be; of sizes from least to most, all that there are."""

    words: str
    transport: str
    least_size: int
    most_size: int
    wanted: float


_GRPC_AIMS = (
    Aim("gRPC C++, shm, 8 B", "shm", _SMALL, _SMALL, 100.0),
    Aim("gRPC C++, shm, 64 MiB", "shm", _LARGE, _LARGE, 20.0),
    Aim("gRPC C++, tcp, 8 B", "tcp", _SMALL, _SMALL, 3.0),
    Aim("gRPC C++, tcp, 64 MiB", "tcp", _LARGE, _LARGE, 5.0),
)
_UCX_AIMS = (
    Aim("UCX put or tag, the faster, shm, from 4 KiB", "shm", 4 * KIB, _LARGE, ROOM),
    Aim("UCX put or tag, the faster, tcp", "tcp", _SMALL, _LARGE, ROOM),
)
_NIXL_AIMS = (
    Aim("NIXL, shm (which sends these over TCP), 8 B", "shm", _SMALL, _SMALL, 4.0),
    Aim("NIXL, shm, 64 MiB", "shm", _LARGE, _LARGE, 1.5),
    Aim("NIXL, tcp, 8 B", "tcp", _SMALL, _SMALL, 4.0),
    Aim("NIXL, tcp, 64 MiB", "tcp", _LARGE, _LARGE, 1.5),
)


def beside_grpc(result: Result) -> str:
    """Return the table of half a round trip beside gRPC C++, and which aims are met."""
    halves = [
        one
        for one in result.quietest.records
        if one.get("timed") == samples.HALF and one.get("language") != "Python"
    ]
    ours = [one for one in halves if one["peer"] == OURS and one["wait"] == _SPINS]
    sizes = sorted({int(number(one, "size")) for one in ours})
    rows: list[tuple[str, ...]] = []
    paths = [path for path in ("shm", "tcp") if any(one["transport"] == path for one in ours)]
    grpc = {size: _best(halves, "grpc-cpp", paths[0], size) for size in sizes}
    rows.append(("gRPC C++, over TCP", *(_named(one) for one in grpc.values())))
    for transport in paths:
        cells = [_beside(_one(ours, transport, size), grpc[size]) for size in sizes]
        rows.append((f"ours, {transport}", *cells))
    slots = [
        one
        for one in result.quietest.records
        if one.get("contestant") == tensors.SLOT and one.get("timed") == tensors.TENSOR
    ]
    for transport in paths:
        cells = [_beside(_one(slots, transport, size), grpc[size]) for size in sizes]
        rows.append((f"ours, {transport}, a tensor that is read", *cells))

    def ratios(transport: str, size: int, rival: str) -> float | None:
        return _ratio(_one(ours, transport, size), _best(halves, rival, transport, size))

    aims = [
        *_told(_GRPC_AIMS, sizes, lambda path, size: ratios(path, size, "grpc-cpp")),
        *_told(_UCX_AIMS, sizes, lambda path, size: ratios(path, size, "ucx")),
    ]
    heads = ("half a round trip, C, median (10th to 90th hundredth)", *map(size_text, sizes))
    return "\n\n".join(filter(None, (head(result, ours), table(heads, rows), "\n".join(aims))))


def from_python(result: Result) -> str:
    """Return the table of calls from Python, and which aims are met."""
    records = [one for one in result.quietest.records if one.get("language") == "Python"]
    columns = [
        (transport, size, timed)
        for transport in ("shm", "tcp")
        for size, timed in ((_SMALL, samples.HALF), (_LARGE, ANSWERED))
    ]
    names = list(dict.fromkeys(text(one, "contestant").partition(", over")[0] for one in records))
    own = [name for name in (_CALL, _HANDLE) if name in names]
    rows = []
    for name in [*own, *(name for name in names if name not in own)]:
        cells = []
        for transport, size, _ in columns:
            found = _of(records, name, transport, size)
            ours = [_of(records, one, transport, size) for one in own]
            beside = [_ratio(one, found) for one in ours] if name not in own else []
            words = [f"{one:.1f}x" for one in beside if one is not None]
            way = "" if found is None else text(found, "contestant").removeprefix(name)
            cells.append(", ".join([spread(found) + way, *words]) if found is not None else "")
        rows.append((name.replace(f"{OURS}, Python", "ours"), *cells))

    def nixl(transport: str, size: int) -> float | None:
        return _ratio(
            _of(records, _HANDLE, transport, size),
            _of(records, "NIXL, one handle", transport, size),
        )

    heads = ("Python", *(f"{path}, {size_text(size)}, {timed}" for path, size, timed in columns))
    aims = _told(_NIXL_AIMS, [_SMALL, _LARGE], nixl)
    return "\n\n".join(filter(None, (table(heads, rows), "\n".join(aims))))


def _told(
    aims: Sequence[Aim], sizes: Sequence[int], ratio_of: Callable[[str, int], float | None]
) -> list[str]:
    """Return a line for each aim that has figures: wanted, what there is, and whether it is met."""
    lines = []
    for aim in aims:
        within = [size for size in sizes if aim.least_size <= size <= aim.most_size]
        found = {size: ratio_of(aim.transport, size) for size in within}
        ratios = {size: ratio for size, ratio in found.items() if ratio is not None}
        if not ratios:
            continue
        short = {size: ratio for size, ratio in ratios.items() if ratio < aim.wanted}
        if short:
            words = ", ".join(
                _short(ratio, aim.wanted) + (f" at {size_text(size)}" if len(ratios) > 1 else "")
                for size, ratio in short.items()
            )
            verdict = f"missed: {words}"
        else:
            verdict = f"met: {', '.join(f'{ratio:.2f}' for ratio in ratios.values())}"
        lines.append(f"- {aim.words}, its time over ours >= {aim.wanted:g}: {verdict}")
    return lines


def _short(ratio: float, wanted: float) -> str:
    """A ratio below what is wanted, by as many digits as show it."""
    return next((word for n in (2, 3) if float(word := f"{ratio:.{n}f}") < wanted), f"{ratio:.4f}")


def _one(records: Sequence[Record], transport: str, size: int) -> Record | None:
    found = [one for one in records if (one["transport"], one["size"]) == (transport, size)]
    return found[0] if found else None


def _of(records: Sequence[Record], name: str, transport: str, size: int) -> Record | None:
    """Of a contestant; that NIXL goes over TCP where shm was asked for is said in its name."""
    named = [one for one in records if text(one, "contestant").partition(", over")[0] == name]
    return _one(named, transport, size)


def _best(records: Sequence[Record], peer: str, transport: str, size: int) -> Record | None:
    cell = [
        one
        for one in records
        if (one["peer"], one["transport"], one["size"]) == (peer, transport, size)
    ]
    return best_of_peers(cell).get(peer)


def _named(rival: Record | None) -> str:
    if rival is None:
        return ""
    return f"{text(rival, 'contestant').removeprefix('gRPC C++ ')}: {spread(rival)}"


def _beside(ours: Record | None, rival: Record | None) -> str:
    if ours is None:
        return ""
    ratio = _ratio(ours, rival)
    return spread(ours) + (f", {ratio:.{1 if ratio < 9.95 else 0}f}x" if ratio is not None else "")


def _ratio(ours: Record | None, rival: Record | None) -> float | None:
    if ours is None or rival is None:
        return None
    return number(rival, "median_ns") / number(ours, "median_ns")
