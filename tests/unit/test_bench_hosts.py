"""What bench/hosts.py and the rows of coalesced sums say beside medians; nothing is measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench import hosts
from bench.benchlib import python_rows
from bench.benchlib.record import Record
from bench.suite import samples


def _printed(*_: Any, **__: Any) -> list[Record]:
    """What two ranks say of each algorithm: the second is slower in every call."""
    return [
        {
            "contestant": name,
            "op": op,
            "size": size,
            "ranks": 2,
            "rank": rank,
            "raw_ns": [1000 * (rank + 1)] * 8,
            "cpu_ns": [4096 * (rank + 1)] * 8,
            "each_ns": [1000 * (rank + 1)] * 399 + [9000 * (rank + 1)],
        }
        for name in hosts.NAMES
        for op, size in (("all_reduce", 4096), ("barrier", 0))
        for rank in (0, 1)
    ]


def test_tails_and_processor_time_stand_beside_the_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "run_ranks", _printed)
    found = [record for _ in range(3) for record in hosts.turn("01", "4096", 8)]
    records = [hosts.with_costs(record) for record in samples.merge(found)]
    assert hosts.rows_of(records)[1].split()[:3] == ["all_reduce", "4096", "2.0"]
    tails, costs = (table.splitlines() for table in hosts.beside(records))
    (line,) = [one for one in tails if "all_reduce 4096" in one]
    assert line.split()[2:4] == ["18.00", "us"]  # of 1,200 single calls, the slower rank's
    (line,) = [one for one in costs if "all_reduce 4096" in one]
    assert set(line.split()[2:]) == {"3"}  # of both ranks together
    (line,) = [one for one in costs if "barrier" in one]
    assert set(line.split()[2:]) == {"-"}


def _coalesced(**more: object) -> list[Record]:
    return [
        {
            "contestant": who,
            "way": way,
            "tensors": 1000,
            "size": 256,
            "median_ns": 1000.0,
            "writes": 7,
            **more,
        }
        for who in ("rdmatensor", "gloo")
        for way in ("one by one", "coalesced")
    ]


def test_coalesced_sums_have_their_tail_and_cost_where_they_were_kept() -> None:
    notes = [row.note for row in python_rows.coalesced(_coalesced())]
    assert set(notes) == {"7 writes"}
    more = {"most_ns": 5e6, "most_of": 30, "cpu_s_per_gb": 12.345}
    notes = [row.note for row in python_rows.coalesced(_coalesced(**more))]
    words = "most of 30 5.00 ms, 12.3 CPU s/GB"
    assert notes[0] == f"7 writes, {words}; Gloo: {words}"
    notes = [row.note for row in python_rows.coalesced(_coalesced(p999=2e6))]
    assert notes[-1] == "7 writes, p99.9 2.00 ms; one by one: p99.9 2.00 ms"
