"""The topics hosts and costs: their figures, on records that are made up."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.record import Record
from bench.suite import collectives, costs, rounds, tables
from bench.suite.peers import RDMATENSOR, Peer
from bench.suite.settings import Settings


def _printed(_: str, __: int, options: dict[str, Any], **___: Any) -> list[Record]:
    """What two ranks print of each algorithm: the second is slower in every call."""
    return [
        {
            "name": name,
            "op": op,
            "size": size,
            "moved_bytes": size,
            "row": "plain",
            "ranks": 2,
            "rank": rank,
            "raw_ns": [1000 * (rank + 1) * (2 if name == "gloo" else 1)] * 8,
            "cpu_ns": [4096 * (rank + 1)] * 8,
            "each_ns": [1000 * (rank + 1)] * 399 + [9000 * (rank + 1)],
            "loop_ns": [],
        }
        for name in options["backends"]
        for op, size in (("all_reduce", 4096), ("barrier", 0))
        for rank in (0, 1)
    ]


def test_hosts_have_medians_tails_and_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "run_ranks", _printed)
    gloo = Peer("gloo", "", ("hosts",), lambda _: "")
    progress = rounds.Progress("hosts", io.StringIO())
    found = collectives.measure_hosts(Settings(("hosts",), layout="01"), [gloo], progress)
    assert {one["layout"] for one in found} == {"01"}
    medians, tails, means = tables.show(found).removeprefix("hosts\n").split("\n\n")
    line = next(one for one in medians.splitlines() if one.startswith("all_reduce"))
    assert line.split()[-4:] == ["2.00", "us", "4.00", "us"]
    assert "18.00 us" in tails.splitlines()[2]  # of 1,200 single calls, the slower rank's
    assert means.splitlines()[-1] == "gloo's time over auto's, geometric mean: 2.00"


def _rows(name: str, more: Record, **ns: float) -> list[costs.Row]:
    records: list[Record] = [
        {"name": who.replace("_", " "), "median_ns": of, "op": name, **more}
        for who, of in ns.items()
    ]
    return costs.rows_of(records)


@pytest.mark.parametrize(("own_ns", "with_room"), [(115, True), (150, False)])
def test_a_target_that_is_missed_is_found_and_noise_has_room(own_ns: int, with_room: bool) -> None:
    (row,) = _rows("large write, tcp", {"size": 4096}, rdmatensor=own_ns, floor=100)
    assert (row.holds(), row.holds(with_room=True)) == (False, with_room)


def test_lists_of_blocks_are_compared_with_one_write() -> None:
    more: Record = {"transport": "tcp", "blocks": 4, "size": 1024}
    found = {"one write": 80, "write_many in order": 100, "one by one": 800}
    first, second = _rows("write_many, tcp", more, **found)
    assert (first.figure, first.target, first.holds()) == (0.8, 0.8, True)
    assert (second.figure, second.target) == (0.1, None)


def test_wire_bytes_are_those_beyond_the_payload() -> None:
    (row,) = _rows("wire bytes, tcp", {"size": 8, "wire_bytes_per_item": 41.0}, rdmatensor=1)
    assert (row.figure, row.holds(), row.holds(with_room=True)) == (33.0, False, True)


def test_memory_is_that_of_the_process_and_of_the_arena() -> None:
    record: Record = {"transport": "shm", "private_bytes": 12000, "arena_bytes": 4096}
    (row,) = costs.rows_of([{**record, "op": "idle_memory, shm"}])
    assert (row.figure, row.holds()) == (16096, True)


def test_sums_in_one_call_are_compared_with_one_by_one_and_gloo() -> None:
    found: list[Record] = [
        {"name": name, "way": way, "tensors": 1000, "size": 256, "median_ns": ns, "op": "coalesced"}
        for name, way, ns in (
            (RDMATENSOR, "one by one", 2100),
            (RDMATENSOR, "coalesced", 100),
            ("gloo", "coalesced", 500),
        )
    ]
    rows = costs.rows_of(found)
    assert [(row.figure, row.target) for row in rows] == [(5.0, None), (21.0, 20.0)]
    assert "yes" in costs.show(found)


def _held(
    own: list[int], other: list[int], name: str = "tcp 8 B one way, and a socket"
) -> costs.Row:
    records: list[Record] = [
        {"name": RDMATENSOR, "raw_ns": own, "op": name},
        {"name": "floor", "raw_ns": other, "op": name},
    ]
    (row,) = costs.rows_of(records)
    return row


@pytest.mark.parametrize(("fastest", "is_held"), [(100, True), (170, False)])
def test_the_fastest_samples_count_and_a_limit_has_no_room(fastest: int, is_held: bool) -> None:
    row = _held([fastest * 50, fastest, fastest * 3], [900, 100])
    assert row.figure == pytest.approx(100 / fastest)
    assert row.holds() == row.holds(with_room=True) == is_held


def test_a_peer_without_samples_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no samples"):
        costs.rows_of([{"name": RDMATENSOR, "raw_ns": [1], "op": "shm 8 B one way, and a flag"}])


def test_the_slot_is_held_against_the_ring_alone() -> None:
    name = "shm 1 MiB in a slot, and a ring and a copy"
    records: list[Record] = [
        {"name": who, "raw_ns": [ns], "op": name}
        for who, ns in (("slot", 20), ("dynamic", 1), ("copy", 10), ("serialised", 1))
    ]
    assert [row.figure for row in costs.rows_of(records)] == [0.5]


def test_of_sums_the_slowest_rank_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(worker: str, size: int, *_: object, **__: object) -> list[Record]:
        assert (worker, size) == ("collectives", 2)
        key = {"op": "all_reduce", "size": 8, "ranks": 2}
        return [
            {**key, "name": who, "rank": rank, "raw_ns": [base + 10 * rank, base + 50]}
            for who, base in ((RDMATENSOR, 10), ("gloo", 50))
            for rank in (0, 1)
        ]

    monkeypatch.setattr(costs, "run_ranks", run)
    name = next(name for name in costs.HELD if name.startswith("all_reduce of 1 MiB over shm, and"))
    assert [row.figure for row in costs.rows_of(costs.taken(name))] == [3.0]


def test_under_burners_the_median_of_the_loops_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast loop among slow ones does not hide that ranks wait for a core."""

    def run(worker: str, size: int, *_: object, **__: object) -> list[Record]:
        assert (worker, size) == ("busy", 2)
        key = {"op": "all_reduce", "size": 8, "moved_bytes": 8, "ranks": 2, "kind": "spin"}
        ends = {name: [1, 1, 1] for name in ("p50_ns", "p99_ns", "cpu_ns", "calls")}
        more = {"burners": 2, "between_ms": 0.0, **ends}
        return [
            {**key, **more, "name": who, "rank": rank, "raw_ns": [fast, slow + rank, slow]}
            for who, fast, slow in ((RDMATENSOR, 10, 100), ("gloo", 50, 50))
            for rank in (0, 1)
        ]

    monkeypatch.setattr(costs, "run_ranks", run)
    names = [name for name in costs.HELD if "ms between" in name]
    assert len(names) == 5
    for name in names:
        assert [row.figure for row in costs.rows_of(costs.taken(name))] == [0.5]
