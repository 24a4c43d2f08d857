"""Where a parameter server is faster than a sum of gradients, and a model that predicts it.

`bench ps --calls crossover`: the gradient of an embedding is exchanged in each way of
bench/workers/crossover.py, by 2 and 4 workers, over shared memory, over tcp, and between hosts with
links of a known rate (ci/throttle.sh --hosts), by the share of rows that a batch has.

The model of a path and kind is a time for each round and for each byte of the busiest link; on one
host also for each byte of all links, which the same cores copy. Rounds and bytes are those of
graph_analysis.advice. It is fitted to every second cell, and predicts the others.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import rounds, samples
from bench.suite.layout import layout
from bench.suite.peers import RDMATENSOR
from bench.suite.settings import KIB, Settings
from graph_analysis import advice

CROSSOVER = "crossover"
HOSTS = "hosts"
RATE = "500mbit"
SERVERS = 2
_WORKERS = (2, 4)
_ROW_BYTES = 256
_ROWS = 16_384  # of the embedding: 4 MiB
_DENSE_ROWS = (2_048, 4_096, 8_192, _ROWS)
_PERMILLE, _QUICK_PERMILLE = (1, 3, 10, 30, 100, 300, 1000), (1, 30, 1000)
_CALLS, _HOSTS_CALLS = 15, 4
_TURN_PATIENCE_S = 280.0
ROOM = 0.20  # of a prediction
KINDS = {
    "all_reduce": "all_reduce",
    "dense": "parameter server, whole gradient",
    "rows": "parameter server, rows",
    "all_gather": "all_gather of rows",
}


def turns_of(settings: Settings) -> list[tuple[str, rounds.Turn]]:
    """Return the turns: each path with each number of workers."""
    rate = settings.link_rate or RATE
    paths = [*settings.transports, f"{HOSTS} {rate}"]
    return [
        (f"{path}, {workers} workers", functools.partial(_turn, settings, path, workers))
        for path in paths
        for workers in ((settings.ranks,) if settings.ranks else _WORKERS)
    ]


def _turn(settings: Settings, path: str, workers: int) -> list[Record]:
    host, _, rate = path.partition(" ")
    shares = _QUICK_PERMILLE if settings.is_quick else _PERMILLE
    printed = run_ranks(
        CROSSOVER,
        workers + SERVERS,
        {
            "workers": workers,
            "calls": _HOSTS_CALLS if rate else _CALLS,
            "rows": _ROWS,
            "dense_rows": _DENSE_ROWS,
            "permille": shares,
        },
        environment={"RDMATENSOR_TRANSPORT": "tcp" if rate else host, "RDMATENSOR_ALGO": "ring"},
        timeout_s=_TURN_PATIENCE_S,
        link=rate,
    )
    cells: dict[tuple[object, ...], list[Record]] = {}
    for one in printed:
        key = tuple(one[name] for name in ("kind", "servers", "rows", "permille"))
        cells.setdefault(key, []).append(one)
    return [_record(path, workers, of_ranks) for of_ranks in cells.values()]


def _record(path: str, workers: int, of_ranks: Sequence[Record]) -> Record:
    """One turn of one cell: each sample is that of the slowest worker."""
    first, ranks = of_ranks[0], [cast("list[int]", one["raw_ns"]) for one in of_ranks]
    kind, servers = text(first, "kind"), int(number(first, "servers"))
    rows, permille = int(number(first, "rows")), int(number(first, "permille"))
    held = f", {servers} server{'s' * (servers > 1)}" if servers else ""
    fields: Record = {
        "topic": CROSSOVER,
        "name": KINDS[kind] + held,
        "peer": RDMATENSOR,
        "transport": path,
        "op": kind,
        "size": rows * _ROW_BYTES,
        "ranks": workers,
        "servers": servers,
        "permille": permille,
        "timed": f"{permille / 10:g} % of the rows",
        "rank_bytes": max(number(one, "rank_bytes") for one in of_ranks),
    }
    return samples.turn(fields, [max(of_call) for of_call in zip(*ranks, strict=True)])


# ---- The model -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """A record, what the model has it at, and whether the model was fitted to it."""

    record: Record
    predicted_ns: float
    is_fitted: bool

    @property
    def error(self) -> float:
        """Return the prediction over what was measured, less 1."""
        return self.predicted_ns / number(self.record, "median_ns") - 1


@dataclass(frozen=True, slots=True)
class Fit:
    """The model of one path and kind, with its cells; costs: in ns, of its three features."""

    path: str
    kind: str
    costs: tuple[float, ...]
    cells: tuple[Cell, ...]

    @property
    def predicted(self) -> list[Cell]:
        """Return the cells that it was not fitted to."""
        return [cell for cell in self.cells if not cell.is_fitted]


def exchange_of(record: Record) -> advice.Exchange:
    """Return the rounds and bytes of a record."""
    workers, servers = int(number(record, "ranks")), int(number(record, "servers"))
    size = int(number(record, "size"))
    rows = max(1, size // _ROW_BYTES * int(number(record, "permille")) // 1000)
    if record["op"] == "all_reduce":
        return advice.all_reduce(workers, size)
    if record["op"] == "dense":
        return advice.dense_push(workers, servers, size)
    if record["op"] == "rows":
        return advice.sparse_push(workers, servers, rows, _ROW_BYTES)
    return advice.sparse_all_gather(workers, rows, _ROW_BYTES)


def _features(record: Record) -> tuple[int, int, int]:
    exchange = exchange_of(record)
    return exchange.rounds, exchange.link_bytes, exchange.total_bytes


def _solved(records: Sequence[Record], columns: Sequence[int]) -> tuple[float, ...]:
    """Return a time for each of some features: the least squares of relative errors, none below 0.

    All choices of features are tried: there are few.
    """
    times = np.array([number(one, "median_ns") for one in records])
    rows = np.array([_features(one) for one in records], float) / times[:, None]
    best, least = np.zeros(rows.shape[1]), float("inf")
    for count in range(1, len(columns) + 1):
        for some in map(list, itertools.combinations(columns, count)):
            found, *_ = np.linalg.lstsq(rows[:, some], np.ones(len(rows)), rcond=None)
            rest = float(((rows[:, some] @ found - 1) ** 2).sum())
            if found.min() >= 0 and rest < least:
                best, least = np.zeros(rows.shape[1]), rest
                best[some] = found
    return tuple(map(float, best))


def _order(record: Record) -> tuple[float, ...]:
    return tuple(number(record, name) for name in ("servers", "ranks", "size", "permille"))


def fits_of(records: Sequence[Record]) -> list[Fit]:
    """Fit every path and kind to every second of its cells, by servers, workers and bytes."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for one in sorted(records, key=_order):
        groups.setdefault((text(one, "transport"), text(one, "op")), []).append(one)
    found = []
    for (path, kind), of_kind in groups.items():
        costs = _solved(of_kind[::2], range(2 if path.startswith(HOSTS) else 3))
        cells = [
            Cell(one, float(np.dot(costs, _features(one))), place % 2 == 0)
            for place, one in enumerate(of_kind)
        ]
        found.append(Fit(path, kind, costs, tuple(cells)))
    return sorted(found, key=lambda one: (one.path, list(KINDS).index(one.kind)))


FIT_HEADS = (
    *("path", "way", "us a round", "ns a KiB of the busiest link", "of all links"),
    *("predicted", "within 20 %", "largest error"),
)


def fit_rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return a line for each path and kind; errors are those of cells that were predicted."""
    lines: list[tuple[str, ...]] = []
    for fit in fits_of(records):
        errors = [cell.error for cell in fit.predicted]
        within = sum(abs(error) <= ROOM for error in errors)
        costs = (fit.costs[0] / 1e3, fit.costs[1] * KIB, fit.costs[2] * KIB)
        worst = max(errors, key=abs, default=0.0)
        counts = (str(len(errors)), str(within), f"{worst:+.0%}")
        lines.append((fit.path, KINDS[fit.kind], *(f"{cost:.3g}" for cost in costs), *counts))
    return lines


CROSSING_HEADS = ("path, workers", "rows of a batch", "fastest", "time", "by the model", "its time")


def crossing_rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return the fastest way for each share of the rows, and the one that the model chooses."""
    cells = [cell for fit in fits_of(records) for cell in fit.cells]
    cells = [cell for cell in cells if number(cell.record, "size") == _ROWS * _ROW_BYTES]
    groups: dict[tuple[str, float, float], list[Cell]] = {}
    whole = [cell for cell in cells if cell.record["op"] in ("all_reduce", "dense")]
    for cell in cells:
        key = tuple(cell.record[name] for name in ("transport", "ranks", "permille"))
        groups.setdefault(cast("tuple[str, float, float]", key), []).append(cell)
    lines: list[tuple[str, ...]] = []
    for (path, ranks, permille), of_share in sorted(groups.items()):
        of_path = [one for one in whole if _group_of(one) == (path, ranks)]
        rivals = [*of_share, *of_path]
        fastest = min(rivals, key=lambda one: number(one.record, "median_ns"))
        chosen = min(rivals, key=lambda one: one.predicted_ns)
        best_ns, chosen_ns = (number(one.record, "median_ns") for one in (fastest, chosen))
        lines.append(
            (
                f"{path}, {ranks}",
                f"{permille / 10:g} %",
                text(fastest.record, "name"),
                time_text(best_ns),
                "the same" if chosen is fastest else text(chosen.record, "name"),
                f"{chosen_ns / best_ns:.2f} times",
            )
        )
    return lines


def _group_of(cell: Cell) -> tuple[object, object]:
    return cell.record["transport"], cell.record["ranks"]


CELL_HEADS = ("path, workers", "way", "bytes", "rows", "busiest link", "time", "model", "error", "")


def _cell_rows(fits: Sequence[Fit]) -> list[tuple[str, ...]]:
    return [
        (
            f"{fit.path}, {cell.record['ranks']}",
            text(cell.record, "name"),
            size_text(number(cell.record, "size")),
            f"{number(cell.record, 'permille') / 10:g} %",
            f"{exchange_of(cell.record).link_bytes}",
            time_text(number(cell.record, "median_ns")),
            time_text(cell.predicted_ns),
            f"{cell.error:+.0%}",
            "fitted" if cell.is_fitted else "",
        )
        for fit in fits
        for cell in fit.cells
    ]


def costs_of(records: Sequence[Record]) -> list[str]:
    """Return, for each path between hosts, one model of all ways, as analyze(cost=) takes it."""
    lines: list[str] = []
    for path in dict.fromkeys(text(one, "transport") for one in records):
        if path.startswith(HOSTS):
            of_path = [one for one in records if one["transport"] == path]
            round_ns, byte_ns, _ = _solved(of_path, range(2))
            rate = f"{1e9 / byte_ns:.0f}" if byte_ns > 0 else "-"
            cost = f"CostModel(latency_ns={round_ns:.0f}, bandwidth_bytes_per_s={rate})"
            lines.append(f"{path}, all ways together: {cost}")
    return lines


def show(records: Sequence[Record]) -> str:
    """All cells, the fits, and which way is fastest."""
    return "\n\n".join(
        [
            layout(CELL_HEADS, _cell_rows(fits_of(records))),
            layout(FIT_HEADS, fit_rows(records)),
            layout(CROSSING_HEADS, crossing_rows(records)),
            "\n".join(costs_of(records)),
        ]
    )
