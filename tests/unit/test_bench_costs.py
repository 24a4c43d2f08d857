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


def _printed(*words: Any, **__: Any) -> list[Record]:
    """What two ranks print of each algorithm: the second is slower in every call."""
    names = str(words[words.index("--backends") + 1]).split(",")
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
        for name in names
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
    assert (row.holds(), row.holds(costs.ROOM)) == (False, with_room)


def test_lists_of_blocks_are_compared_with_one_write() -> None:
    more: Record = {"transport": "tcp", "blocks": 4, "size": 1024}
    found = {"one write": 80, "write_many in order": 100, "one by one": 800}
    first, second = _rows("write_many, tcp", more, **found)
    assert (first.figure, first.target, first.holds()) == (0.8, 0.8, True)
    assert (second.figure, second.target) == (0.1, None)


def test_wire_bytes_are_those_beyond_the_payload() -> None:
    (row,) = _rows("wire bytes, tcp", {"size": 8, "wire_bytes_per_item": 41.0}, rdmatensor=1)
    assert (row.figure, row.holds(), row.holds(costs.ROOM)) == (33.0, False, True)


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
