"""The model where hosts have several ranks: who wins, by what it misses two hosts, set-up.

model_hosts.py has the arithmetic. The constants are those that scale_tables.py has of the same
records: messages between hosts by what paths_of() says, within a host by our shm, and its boards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.benchlib.record import Record, number, text
from bench.benchlib.verdict import size_text, time_text
from bench.suite import model, model_hosts, samples, scale_tables
from bench.suite.layout import layout
from bench.suite.model_hosts import BY_HOSTS, Paths, Way

BOARD_BYTES = 2 << 20  # csrc/collectives/team/team.h: a board fits one granule of the arena
CHECKED = ("measured", "by the model", "model / measured", "ranks of a host that speak; between")
_BOARDLESS = "Where hosts have several ranks nothing is told: that takes shm and what is between."


@dataclass(frozen=True, slots=True)
class Miss:
    """An all_reduce by way of hosts, measured, and what the model says of it."""

    size_bytes: float
    took_ns: float
    way: Way

    @property
    def off_by(self) -> float:
        """By which factor, either way."""
        return model.off_by(self.way.took_ns, self.took_ns)

    @property
    def cells(self) -> tuple[str, ...]:
        """What each of CHECKED is."""
        return (
            time_text(self.took_ns),
            time_text(self.way.took_ns),
            f"{self.way.took_ns / self.took_ns:.2f}",
            f"{self.way.rails}; {self.way.between}",
        )


def paths_of(fits: Sequence[scale_tables.Fit], between: model.Constants) -> Paths | None:
    """Return what connects ranks, given what does hosts; None where shm was not measured."""
    of_shm = {fit.has_boards: fit.constants for fit in fits if fit.transport == "shm"}
    if len(of_shm) < 2:
        return None
    return Paths(between, inside=of_shm[False], boards=of_shm[True])


def misses(fits: Sequence[scale_tables.Fit], records: Sequence[Record]) -> list[Miss]:
    """Return what the model says of all_reduces by way of hosts that bench/hosts.py measured.

    Those hosts are names: all ranks share the cores that the fits are of. Empty where the hosts
    differ in ranks, which the model does not have, or a path was not fitted.
    """
    tcp = next((fit for fit in fits if fit.transport == "tcp"), None)
    paths = None if tcp is None else paths_of(fits, tcp.constants)
    if tcp is None or paths is None:
        return []
    found = []
    for record in records:
        if (record.get("op"), record.get("contestant")) != ("all_reduce", "hierarchical"):
            continue
        hosts = text(record, "layout")
        per_host = {hosts.count(host) for host in hosts}
        if len(per_host) != 1:
            continue
        size_bytes = number(record, "size")
        way = model_hosts.by_hosts(paths, len(set(hosts)), per_host.pop(), size_bytes, tcp.cores)
        found.append(Miss(size_bytes, number(record, "median_ns"), way))
    return found


def told_of(found: Sequence[Miss]) -> str:
    """Return by which factor the model misses in the middle and at worst."""
    off = [miss.off_by for miss in found]
    return f"x {samples.quantile(off, 0.5):.2f} in the middle, x {max(off):.2f} at worst"


def show(records: Sequence[Record]) -> str:
    """Return the tables; empty where there is no model."""
    fits = scale_tables.fits_of(records)
    across = scale_tables.between_hosts(records, fits)
    if across is None:
        return ""
    name, between = across
    paths = paths_of(fits, between)
    if paths is None:
        return _BOARDLESS
    per_host = int(number(records[0], "ranks_per_host")) if "ranks_per_host" in records[0] else 0
    per_host = per_host or model_hosts.RANKS_PER_HOST
    return "\n\n".join(
        [
            _winners(name, paths, per_host),
            _times(paths, per_host),
            _needs(records, per_host),
            "\n".join(_notes(per_host)),
        ]
    )


def _winners(name: str, paths: Paths, per_host: int) -> str:
    lines = []
    for size in scale_tables.SIZES:
        cells = []
        for ranks in scale_tables.LADDER:
            costs = model_hosts.predicted(paths, ranks, per_host, size)
            best = min(costs, key=costs.__getitem__)
            cells.append(f"{best} {time_text(costs[best])}")
        lines.append((size_text(size), "", *cells))
    heads = ("who wins", "", *(f"{ranks} ranks" for ranks in scale_tables.LADDER))
    what = f"Hosts of {per_host} ranks with a core each, which share the way out: {name}"
    return f"{what}\n{layout(heads, lines)}"


def _times(paths: Paths, per_host: int) -> str:
    lines = []
    for size in scale_tables.SIZES:
        columns = [
            model_hosts.predicted(paths, ranks, per_host, size) for ranks in scale_tables.LADDER
        ]
        lines += [
            (size_text(size), name, *(time_text(costs[name]) for costs in columns))
            for name in (BY_HOSTS, *model.ALGORITHMS)
        ]
    heads = ("predicted", "algorithm", *(f"{ranks} ranks" for ranks in scale_tables.LADDER))
    return layout(heads, lines)


def _needs(records: Sequence[Record], per_host: int) -> str:
    """What a rank holds that goes by hosts, with halving or doubling between them."""
    each, _ = scale_tables.each_of(records)
    within = max(number(one, "connection_bytes") for one in records if one["transport"] == "shm")
    most = [min(ranks, per_host) for ranks in scale_tables.LADDER]
    hosts = [ranks // few for ranks, few in zip(scale_tables.LADDER, most, strict=True)]
    away = [model.connections_of(model.BOARDS, count) if count > 1 else 0 for count in hosts]
    messages = scale_tables.HANDSHAKE_MESSAGES
    memory = [
        out * each + (few - 1) * within + (BOARD_BYTES if few > 1 else 0)
        for out, few in zip(away, most, strict=True)
    ]
    lines = [
        (BY_HOSTS, "connections to other hosts", *map(str, away)),
        (BY_HOSTS, "connections within its own", *(str(few - 1) for few in most)),
        (BY_HOSTS, "memory, with its board", *map(scale_tables.memory_text, memory)),
        (
            BY_HOSTS,
            "handshake messages",
            *(str(messages * (out + few - 1)) for out, few in zip(away, most, strict=True)),
        ),
    ]
    heads = ("of a rank that speaks", "", *(f"{ranks} ranks" for ranks in scale_tables.LADDER))
    return layout(heads, lines)


def _notes(per_host: int) -> list[str]:
    return [
        f"The library goes by hosts, and over boards, in groups of up to {model_hosts.TEAM_MOST} "
        "ranks: of more, what stands there is what it would cost.",
        f"No host of {per_host} ranks with a core each was measured, nor what so many do to each "
        "other's memory; a board's tick costs what ranks with a core each had here.",
        "A host sends and receives what one stream does, however many ranks speak at a time.",
        f"On one host, {BY_HOSTS!r} is its boards, and the others send messages within it.",
    ]
