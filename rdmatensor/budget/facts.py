"""From traces and times to the chain that is solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graph_analysis.keep import Chain, Unit, Way, WayName
from rdmatensor._native.arguments import invalid
from rdmatensor.budget.times import Measured
from rdmatensor.budget.trace import Trace


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """What a tier costs a unit: time of the link, and processor time."""

    write_ns: int = 0
    read_ns: int = 0
    added_ns: int = 0


def must_keep(
    keep: Trace, measured: Mapping[str, Measured], saves: Mapping[str, int]
) -> dict[str, str]:
    """Return why some units have no way but to keep what they save."""
    reasons = dict(keep.changed)
    for name, one in measured.items():
        if name in reasons:
            continue
        if one.calls > 1:
            reasons[name] = f"a step calls it {one.calls} times"
        elif one.changes:
            reasons[name] = f"it writes its buffer {one.changes}"
        elif saves.get(name, 0) <= 0:
            reasons[name] = "it saves nothing"
    return reasons


def saved_bytes(keep: Trace) -> dict[str, int]:
    """Return how much memory each unit's forward pass leaves taken, in the order of the pass."""
    return {row.name: row.held_bytes for row in _rows(keep)}


def make_chain(
    keep: Trace,
    tiers: Mapping[WayName, Trace],
    measured: Mapping[str, Measured],
    kept: Mapping[str, str],
    costs: Mapping[tuple[str, WayName], LinkTimes],
) -> Chain:
    """Return the chain; tiers: the trace of a step in which all units go one way.

    kept: units that have no other way. costs: of a unit in a tier.
    """
    rows: dict[WayName, list[_Row]] = {"keep": _rows(keep)}
    rows.update((name, _rows(trace)) for name, trace in tiers.items())
    names = [row.name for row in rows["keep"]]
    if not names:
        raise invalid("fit", "a step calls none of the units: give others by units=")
    for tier, found in rows.items():
        if [row.name for row in found] != names:
            raise invalid("fit", f"the step runs other units with {tier!r} than without")
    units = []
    for index, name in enumerate(names):
        possible: Sequence[WayName] = ["keep"] if name in kept else list(rows)
        ways = []
        for tier in possible:
            row = rows[tier][index]
            cost = costs.get((name, tier), LinkTimes())
            ways.append(
                Way(
                    tier,
                    row.held_bytes,
                    row.forward_bytes,
                    row.backward_bytes,
                    cost.added_ns,
                    cost.write_ns,
                    cost.read_ns,
                )
            )
        one = measured[name]
        units.append(Unit(name, one.forward_ns, one.backward_ns, tuple(ways)))
    traces = [keep, *tiers.values()]
    tail = max(t.backward[0].peak_bytes - t.backward[0].start_bytes for t in traces)
    end = max(max(t.end.peak_bytes, t.forward[0].peak_bytes) for t in traces)
    return Chain(keep.forward[1].start_bytes, tail, end, tuple(units))


@dataclass(slots=True)
class _Row:
    name: str
    held_bytes: int
    forward_bytes: int
    backward_bytes: int


def _rows(trace: Trace) -> list[_Row]:
    """Return one row for each call of a unit; bytes count from the beginning of its forward."""
    segments = trace.forward[1:]
    if not segments:
        return []
    ends = [one.start_bytes for one in segments[1:]] + [trace.backward[0].start_bytes]
    backward: dict[str, int] = {}
    for one in trace.backward[1:]:
        backward[one.name] = max(backward.get(one.name, 0), one.peak_bytes)
    rows = []
    for one, end in zip(segments, ends, strict=True):
        rows.append(
            _Row(
                one.name,
                end - one.start_bytes,
                one.peak_bytes - one.start_bytes,
                backward.get(one.name, one.start_bytes) - one.start_bytes,
            )
        )
    return rows
