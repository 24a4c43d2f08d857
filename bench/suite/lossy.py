"""Sums of float32 by lossy wires over links of known rates, and training steps by their hooks.

Ranks are hosts with a link each (ci/throttle.sh --hosts). A ratio is of medians of one run: to the
exact sum of rdmatensor; of training steps also to torch's fp16 hook on Gloo.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import rounds, samples
from bench.suite.layout import layout
from bench.suite.peers import RDMATENSOR, Peer
from bench.suite.settings import MIB, Settings

TOPIC = "lossy"
RATES = ("100mbit", "500mbit", "2gbit")
_RANKS, _QUICK_RANKS = (2, 4), (2,)
_STEP_BYTES = 16 * MIB
_CALLS, _ROUNDS = 3, 3
_TURN_PATIENCE_S = 600.0
EXACT, GLOO, GLOO_FP16 = "exact", "gloo", "gloo fp16"
HEADS = (
    *("what", "link", "ranks", "size", "exact", "bf16", "q8"),
    *("bytes of q8", "fp16 on Gloo", "q8 / fp16 on Gloo"),
)


def measure(settings: Settings, peers: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Let each rate have its turn with each number of ranks; return all records."""
    rates = (settings.link_rate,) if settings.link_rate else RATES
    numbers = _QUICK_RANKS if settings.is_quick else _RANKS
    has_gloo = any(peer.name == GLOO for peer in peers)
    turns = [
        (f"{rate}, {ranks} ranks", functools.partial(_turn, settings, rate, ranks, has_gloo))
        for rate in rates
        for ranks in ((settings.ranks,) if settings.ranks else numbers)
    ]
    count = settings.rounds or _ROUNDS
    found, failed = rounds.take(turns, count, settings.seconds_of(TOPIC), progress)
    return samples.merge(found) + failed


def _turn(settings: Settings, rate: str, ranks: int, has_gloo: bool) -> list[Record]:
    sizes = settings.sizes_of(TOPIC)
    printed = run_ranks(
        TOPIC,
        ranks,
        {
            "ranks": ranks,
            "sizes": sizes,
            "calls": _CALLS,
            "step_bytes": min(_STEP_BYTES, max(sizes)),
            "has_gloo": has_gloo,
        },
        environment={"RDMATENSOR_TRANSPORT": "tcp", "GLOO_SOCKET_IFNAME": "eth0"},
        timeout_s=_TURN_PATIENCE_S,
        link=rate,
    )
    cells: dict[tuple[object, ...], list[Record]] = {}
    for one in printed:
        cells.setdefault(tuple(one[name] for name in ("name", "op", "size")), []).append(one)
    return [_record(rate, ranks, of_ranks) for of_ranks in cells.values()]


def _record(rate: str, ranks: int, of_ranks: Sequence[Record]) -> Record:
    """One turn of one cell: each sample is that of the slowest rank."""
    first, each = of_ranks[0], [cast("list[int]", one["raw_ns"]) for one in of_ranks]
    name = text(first, "name")
    fields: Record = {
        "topic": TOPIC,
        "name": name,
        "peer": GLOO if name.startswith(GLOO) else RDMATENSOR,
        "transport": f"hosts {rate}",
        "op": first["op"],
        "size": first["size"],
        "ranks": ranks,
        "language": "torch",
        "timed": "slowest rank",
        "rank_bytes": max(number(one, "rank_bytes") for one in of_ranks),
    }
    return samples.turn(fields, [max(of_call) for of_call in zip(*each, strict=True)])


def rows_of(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return a line for each operation, link, number of ranks and size."""
    groups: dict[tuple[object, ...], dict[str, Record]] = {}
    for one in records:
        key = tuple(one[name] for name in ("op", "transport", "ranks", "size"))
        groups.setdefault(key, {})[text(one, "name")] = one
    lines: list[tuple[str, ...]] = []
    for (op, path, ranks, size), by_name in groups.items():
        exact = by_name[EXACT]
        figures = (
            time_text(number(exact, "median_ns")),
            *(_ratio(by_name, name, EXACT, "median_ns") for name in ("bf16", "q8")),
            _ratio(by_name, "q8", EXACT, "rank_bytes"),
            _ratio(by_name, GLOO_FP16, EXACT, "median_ns"),
            _ratio(by_name, "q8", GLOO_FP16, "median_ns"),
        )
        rate = str(path).removeprefix("hosts ")
        lines.append((str(op), rate, str(ranks), size_text(cast("int", size)), *figures))
    return lines


def _ratio(by_name: dict[str, Record], name: str, base: str, what: str) -> str:
    if name not in by_name or base not in by_name:
        return "-"
    return f"{number(by_name[name], what) / number(by_name[base], what):.3f}"


def show(records: Sequence[Record]) -> str:
    """Return the table of text."""
    return layout(HEADS, rows_of(records))
