"""Collectives of hosts with several ranks, on one machine: through hosts, and among all ranks.

Ranks with the same digit in the layout share memory; others take each other for remote
(RDMATENSOR_TEST_HOST) and use TCP over loopback. A turn is a set of fresh processes in which all
algorithms and Gloo alternate on the same tensors. "auto" is the library's choice; "flat" is the
fastest of the algorithms among all ranks at each size. All processes share this machine's cores,
and no wire is between them: the work is compared, not a network.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import collectives, rounds, samples
from bench.suite.layout import geometric, layout
from bench.suite.peers import OURS, Peer
from bench.suite.settings import Settings

TOPIC = "hosts"
_LAYOUT = "0011"
HIERARCHICAL, AUTO = "hierarchical", "auto"
_FLAT = ("messages", "ring", "halving-doubling", "tree")
_NAMES = (HIERARCHICAL, AUTO, *_FLAT)
_OPERATIONS = ("all_reduce", "broadcast", "barrier")
_PATIENCE_S = 500.0


def measure(settings: Settings, peers: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Let all have their turns; return a record for each algorithm, operation and size."""
    backends = [f"{OURS}:{name}" for name in _NAMES] + [peer.name for peer in peers]
    ranks = settings.layout or _LAYOUT
    words = (
        *("--layout", ranks, "--ranks", str(len(ranks)), "--backends", ",".join(backends)),
        *("--operations", ",".join(_OPERATIONS), "--rounds", "8"),
        *("--sizes", ",".join(map(str, settings.sizes_of(TOPIC)))),
    )
    turn = functools.partial(_turn, words, ranks)
    count = settings.rounds or 3
    found, failed = rounds.take([(ranks, turn)], count, settings.seconds_of(TOPIC), progress)
    return [collectives.with_bandwidth(one) for one in samples.merge(found)] + failed


def _turn(words: Sequence[str], ranks: str) -> list[Record]:
    printed = run_ranks("collectives", 1, "--forked", *words, timeout_s=_PATIENCE_S)
    return [record_of(one, ranks) for one in collectives.by_key(printed).values()]


def record_of(of_ranks: list[Record], ranks: str) -> Record:
    """Return one turn of one algorithm: samples of the slowest rank, processor time of all."""
    record = collectives.record_of(of_ranks, "shm within hosts, tcp between")
    name = text(of_ranks[0], "contestant").removeprefix(f"{OURS}:")
    return {**record, "topic": TOPIC, "contestant": name, "layout": ranks}


def show(records: Sequence[Record]) -> str:
    """Medians of each algorithm, how many times faster the library is; tails, processor time."""
    names = list(dict.fromkeys(text(one, "contestant") for one in records))
    found: dict[tuple[str, float], dict[str, Record]] = {}
    for one in records:
        cell = found.setdefault((text(one, "op"), number(one, "size")), {})
        cell[text(one, "contestant")] = one
    heads = ("messages/hier", "flat/hier", "flat/auto", *(["gloo/auto"] if "gloo" in names else []))
    lines, ratios = [], []
    for (op, size), cell in found.items():
        ns = {name: number(one, "median_ns") for name, one in cell.items()}
        flat = min(ns[name] for name in _FLAT)
        row = [ns["messages"] / ns[HIERARCHICAL], flat / ns[HIERARCHICAL], flat / ns[AUTO]]
        row += [ns["gloo"] / ns[AUTO]] if "gloo" in names else []
        ratios.append(row)
        times = [time_text(ns[name]) for name in names]
        lines.append((op, size_text(size), *times, *(f"{ratio:.2f}" for ratio in row)))
    means = zip(heads, (geometric(of) for of in zip(*ratios, strict=True)), strict=True)
    words = ", ".join(f"{head} {mean:.2f}" for head, mean in means)
    parts = [f"{layout(('', 'size', *names, *heads), lines)}\ngeometric means: {words}"]
    tells: dict[str, Callable[[Record], str]] = {
        "p99.9 of single calls": lambda one: samples.tail_text(one, "p999"),
        "CPU s/GB": lambda one: f"{one['cpu_s_per_gb']:.3g}" if "cpu_s_per_gb" in one else "-",
    }
    for head, tell in tells.items():
        lines = [
            (op, size_text(size), *(tell(cell[name]) for name in names))
            for (op, size), cell in found.items()
        ]
        parts.append(layout((head, "size", *names), lines))
    return "\n\n".join(parts)
