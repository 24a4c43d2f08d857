"""All executions of a small program under C11's memory model, in its repaired form RC11.

An execution is a graph: events, the write that each read takes its value from (rf), and an order of
the writes to each place (mo). RC11 says which graphs can happen (Lahav, Vafeiadis, Kang, Hur and
Dreyer, "Repairing Sequential Consistency in C/C++11", 2017), on any processor to which compilers
map C11 correctly, Arm among them. Graphs are built event by event in every order that follows
program order and rf, which RC11 lets no cycle have; one that no longer can happen is left.

Fences are not modelled. Plain accesses are for data races: two of them, one a write, that happen
before each other in neither direction.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Order = Literal["plain", "relaxed", "acquire", "release", "acq_rel", "seq_cst"]
_ACQUIRES = {"acquire", "acq_rel", "seq_cst"}
_RELEASES = {"release", "acq_rel", "seq_cst"}


class Load(NamedTuple):
    """Yielded by a thread, which gets the value."""

    place: str
    order: Order


class Store(NamedTuple):
    """Yielded by a thread."""

    place: str
    value: int
    order: Order


class Add(NamedTuple):
    """An atomic addition; the thread gets the value before."""

    place: str
    value: int
    order: Order


Action = Load | Store | Add
# A thread yields its accesses, and returns what it learned.
Thread = Callable[[], Generator[Action, int, object]]


@dataclass(frozen=True)
class Event:
    """One access in a graph. thread -1: the initial value of a place."""

    thread: int
    index: int
    place: str
    order: Order
    reads: int | None
    writes: int | None


@dataclass(frozen=True)
class Graph:
    """Events by number; rf by reading event; mo as numbers of events, for each place."""

    events: tuple[Event, ...]
    rf: tuple[tuple[int, int], ...]
    mo: tuple[tuple[str, tuple[int, ...]], ...]


class Outcome(NamedTuple):
    """What the threads of one execution returned, and the place of a data race, if there is one."""

    returned: tuple[object, ...]
    race: str | None


def outcomes(threads: list[Thread]) -> set[Outcome]:
    """Return the outcomes of all executions that RC11 allows."""
    found: set[Outcome] = set()
    seen: set[object] = set()
    waiting = [Graph((), (), ())]
    while waiting:
        graph = waiting.pop()
        key = _key(graph)
        if key in seen:
            continue
        seen.add(key)
        nexts = [_next_of(thread, graph, number) for number, thread in enumerate(threads)]
        for number, step in enumerate(nexts):
            if isinstance(step, Load | Store | Add):
                waiting += [one for one in _extended(graph, number, step) if _can_happen(one)]
        if not any(isinstance(step, Load | Store | Add) for step in nexts):
            found.add(Outcome(tuple(nexts), _race(graph)))
    return found


def _key(graph: Graph) -> object:
    """Return the same value for graphs that differ in the order of their making only."""

    def name(number: int) -> tuple[int, int, str]:
        event = graph.events[number]
        return event.thread, event.index, event.place

    return (
        frozenset(name(number) for number in range(len(graph.events))),
        frozenset((name(reader), name(writer)) for reader, writer in graph.rf),
        frozenset((place, tuple(name(one) for one in order)) for place, order in graph.mo),
    )


def _next_of(thread: Thread, graph: Graph, number: int) -> object:
    """Run the thread over its events; return its next access, or what it returned."""
    running = thread()
    try:
        action = next(running)
        for event in graph.events:
            if event.thread == number:
                action = running.send(event.reads if event.reads is not None else 0)
    except StopIteration as end:
        return end.value
    return action


def _extended(graph: Graph, thread: int, step: Action) -> Iterator[Graph]:
    """Yield the graph with one more event, for each write to read from and each place in mo."""
    orders = dict(graph.mo)
    events = graph.events
    if step.place not in orders:
        events = (*events, Event(-1, 0, step.place, "relaxed", None, 0))
        orders[step.place] = (len(events) - 1,)
    index = sum(event.thread == thread for event in events)
    order, new = orders[step.place], len(events)

    def graph_with(event: Event, source: int | None, at: int | None) -> Graph:
        rf = graph.rf if source is None else (*graph.rf, (new, source))
        placed = order if at is None else (*order[:at], new, *order[at:])
        return Graph((*events, event), rf, tuple({**orders, step.place: placed}.items()))

    if isinstance(step, Store):
        event = Event(thread, index, step.place, step.order, None, step.value)
        for at in range(1, len(order) + 1):
            yield graph_with(event, None, at)
        return
    for at, source in enumerate(order, 1):
        value = events[source].writes
        assert value is not None
        if isinstance(step, Load):
            event = Event(thread, index, step.place, step.order, value, None)
            yield graph_with(event, source, None)
        else:  # right after what it reads from
            event = Event(thread, index, step.place, step.order, value, value + step.value)
            yield graph_with(event, source, at)


Relation = list[int]  # by event: a bit for each event that it is related to


def _closed(relation: Relation) -> Relation:
    closed = list(relation)
    for middle in range(len(closed)):
        bit = 1 << middle
        for at, row in enumerate(closed):
            if row & bit:
                closed[at] = row | closed[middle]
    return closed


def _joined(first: Relation, second: Relation) -> Relation:
    found = [0] * len(first)
    for at, row in enumerate(first):
        for to in _bits(row):
            found[at] |= second[to]
    return found


def _bits(row: int) -> Iterator[int]:
    while row:
        low = row & -row
        yield low.bit_length() - 1
        row ^= low


def _is_reflexive(relation: Relation) -> bool:
    return any(row >> at & 1 for at, row in enumerate(relation))


def _any_of(*relations: Relation) -> Relation:
    return [a | b for a, b in zip(*relations, strict=True)] if len(relations) == 2 else _any_of(
        relations[0], _any_of(*relations[1:])
    )  # fmt: skip


def _program_order(graph: Graph) -> Relation:
    """sb: of a thread, and from initial values to all others."""
    return [
        sum(
            1 << to
            for to, b in enumerate(graph.events)
            if (a.thread == b.thread >= 0 and a.index < b.index) or (a.thread < 0 <= b.thread)
        )
        for a in graph.events
    ]


def _happens_before(graph: Graph, sb: Relation) -> Relation:
    """hb: program order, and from a release to an acquire that reads from it.

    Or from an atomic addition that goes back to it (C++20's release sequences).
    """
    sources = dict(graph.rf)
    hb = list(sb)
    for reader, write in graph.rf:
        if graph.events[reader].order not in _ACQUIRES:
            continue
        source: int | None = write
        while source is not None:
            if graph.events[source].order in _RELEASES:
                hb[source] |= 1 << reader
            source = sources.get(source)  # an addition reads from what it follows
    return _closed(hb)


def _can_happen(graph: Graph) -> bool:
    """RC11: coherence, atomicity, and the partial order of seq_cst accesses."""
    count = len(graph.events)
    sb = _program_order(graph)
    hb = _happens_before(graph, sb)
    rf, mo, fr = [0] * count, [0] * count, [0] * count
    for _, order in graph.mo:
        for at, write in enumerate(order):
            mo[write] = sum(1 << later for later in order[at + 1 :])
    for reader, write in graph.rf:
        rf[write] |= 1 << reader
        fr[reader] = mo[write] & ~(1 << reader)
    eco = _closed(_any_of(rf, mo, fr))
    if _is_reflexive(hb) or _is_reflexive(_joined(hb, eco)):
        return False
    if not _is_atomic(graph):
        return False
    return not _is_reflexive(_closed(_seq_cst_order(graph, sb, hb, _any_of(mo, fr))))


def _is_atomic(graph: Graph) -> bool:
    """Nothing stands between an addition and what it read from."""
    orders = dict(graph.mo)
    for reader, write in graph.rf:
        if graph.events[reader].writes is not None:
            order = orders[graph.events[reader].place]
            if order.index(reader) != order.index(write) + 1:
                return False
    return True


def _seq_cst_order(graph: Graph, sb: Relation, hb: Relation, mo_fr: Relation) -> Relation:
    """psc, without fences: [SC]; sb | sb!=loc;hb;sb!=loc | hb=loc | mo | fr; [SC]."""
    place = [event.place for event in graph.events]
    same = [sum(1 << to for to, b in enumerate(place) if a == b) for a in place]
    elsewhere = [row & ~same[at] for at, row in enumerate(sb)]
    around = _joined(_joined(elsewhere, hb), elsewhere)
    at_place = [row & same[at] for at, row in enumerate(hb)]
    strong = sum(1 << at for at, one in enumerate(graph.events) if one.order == "seq_cst")
    return [
        row & strong if strong >> at & 1 else 0
        for at, row in enumerate(_any_of(sb, around, at_place, mo_fr))
    ]


def _race(graph: Graph) -> str | None:
    hb = _happens_before(graph, _program_order(graph))
    for at, a in enumerate(graph.events):
        for to, b in enumerate(graph.events[:at]):
            if (
                a.place == b.place
                and a.thread != b.thread
                and min(a.thread, b.thread) >= 0
                and "plain" in (a.order, b.order)
                and (a.writes is not None or b.writes is not None)
                and not (hb[at] >> to & 1 or hb[to] >> at & 1)
            ):
                return a.place
    return None
