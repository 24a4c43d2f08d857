"""The topics hosts and costs: their figures, on records that are made up."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.record import Record
from bench.suite import costs, hosts, rounds, tables
from bench.suite.peers import OURS, Peer
from bench.suite.settings import Settings


def _printed(*words: Any, **__: Any) -> list[Record]:
    """What two ranks say of each algorithm: the second is slower in every call."""
    names = str(words[words.index("--backends") + 1]).split(",")
    return [
        {
            "contestant": name,
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


def test_tails_and_processor_time_stand_below_the_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "run_ranks", _printed)
    gloo = Peer("gloo", "", ("hosts",), lambda _: "")
    progress = rounds.Progress("hosts", io.StringIO())
    found = hosts.measure(Settings(("hosts",), layout="01"), [gloo], progress)
    assert {one["layout"] for one in found} == {"01"}
    medians, tails, spent = tables.show(found).removeprefix("hosts\n").split("\n\n")
    line = next(one for one in medians.splitlines() if one.startswith("all_reduce"))
    assert line.split()[-4:] == ["1.00", "1.00", "1.00", "2.00"]
    assert medians.splitlines()[-1].endswith("gloo/auto 2.00")
    assert "18.00 us" in tails.splitlines()[2]  # of 1,200 single calls, the slower rank's
    assert spent.splitlines()[2].split()[3:] == ["3"] * 7  # of both ranks together
    assert set(spent.splitlines()[3].split()[3:]) == {"-"}  # a barrier moves nothing


def _series(**ns: float) -> list[Record]:
    return [{"contestant": name, "median_ns": of} for name, of in ns.items()]


def _row(name: str, records: list[Record]) -> list[costs.Row]:
    return costs.rows_of([{**one, "op": name} for one in records])


def test_a_target_that_is_missed_is_told_and_noise_has_room() -> None:
    for ours_ns, with_room in ((115, True), (150, False)):
        found = [{**one, "size": 4096} for one in _series(ours=ours_ns, floor=100)]
        (row,) = _row("tcp_throughput", found)
        assert (row.holds(), row.holds(costs.ROOM)) == (False, with_room)


def test_lists_of_blocks_are_compared_with_one_write() -> None:
    fields = {"transport": "shm", "blocks": 4, "block_bytes": 1024}
    found = _series(**{"one write": 80, "write_many in order": 100, "one by one": 800})
    first, second = _row("write_many, shm", [{**one, **fields} for one in found])
    assert (first.figure, first.target, first.holds()) == (0.8, 0.8, True)
    assert (second.figure, second.target) == (0.1, None)


def test_the_best_of_all_others_counts() -> None:
    found = [{**one, "size": 4096} for one in _series(ours=90, floor=99, other=81)]
    (row,) = _row("tcp_throughput", found)
    assert (row.figure, row.holds()) == (0.9, True)
    assert "other" in row.beside


def test_sums_in_one_call_are_compared_with_one_by_one_and_gloo() -> None:
    found: list[Record] = [
        {"peer": peer, "way": way, "tensors": 1000, "size": 256, "median_ns": ns, "op": "coalesced"}
        for peer, way, ns in (
            (OURS, "one by one", 2100),
            (OURS, "coalesced", 100),
            ("gloo", "coalesced", 500),
        )
    ]
    rows = costs.rows_of(found)
    assert [(row.figure, row.target) for row in rows] == [(5.0, None), (21.0, 20.0)]
    assert "yes" in costs.show(found)
