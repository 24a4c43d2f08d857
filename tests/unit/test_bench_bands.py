"""A median lies in its own band, and what ranks do themselves is taken off in its own turn."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.machine import ROOT
from bench.benchlib.record import Record, load, number
from bench.suite import (
    collective_tables,
    collectives,
    samples,
)
from bench.suite.peers import OURS

FIELDS: Record = {
    **samples.p2p_fields(OURS, OURS, "shm", 8),
    "topic": "collectives",
    "op": "send",
    "ranks": 2,
    "row": "same",
    "timed": "same",
    "waits": "sleeps",
}
# Of three turns two are slow, and of those each has fast calls: by turns the band is theirs.
TURNS = ([10, 11, 12, 13, 14], [10, 50, 51, 52, 53], [10, 50, 51, 52, 53])


def _merged(*of_turns: Record, calls_ns: list[int] | None = None) -> Record:
    turns = [
        samples.turn({**FIELDS, **more}, raw_ns, calls_ns=calls_ns)
        for more, raw_ns in zip(of_turns, TURNS, strict=True)
    ]
    (record,) = samples.merge(turns)
    return record


def test_the_band_is_of_the_samples_that_the_median_is_of() -> None:
    for calls_ns in (None, [9] * 2000):
        record = _merged({}, {}, {}, calls_ns=calls_ns)
        assert [record[name] for name in ("p10", "median_ns", "p90")] == [10, 50, 53]


def test_a_file_whose_band_is_of_turns_has_that_of_its_samples() -> None:
    record: Record = {**_merged({}, {}, {}), "p10": 20, "p90": 60}
    assert [samples.figure(record, name) for name in ("p10", "median_ns", "p90")] == [10, 50, 53]


@pytest.mark.parametrize("path", sorted((ROOT / "bench/results").glob("**/*_ranks*.json")))
def test_medians_of_kept_results_lie_in_their_bands(path: Path) -> None:
    for record in load(path).quietest.records:
        if "raw_ns" in record:
            low, high = (samples.figure(record, name) for name in samples.BAND)
            assert low <= number(record, "median_ns") <= high


def test_the_loop_of_a_turn_is_taken_off_its_own_samples() -> None:
    record = _merged({"loop_ns": 5}, {"loop_ns": 40}, {"loop_ns": 41})
    assert record[samples.LOOPS] == [5, 40, 41]
    assert sorted(collectives.net_samples(record)) == sorted(
        [5, 6, 7, 8, 9, -30, 10, 11, 12, 13, -31, 9, 10, 11, 12]
    )
    assert collectives.net_ns(record) == 9
    assert not collectives.is_net_of_one_loop(record)


def test_a_file_with_the_loop_of_one_turn_says_so() -> None:
    record = _merged({"loop_ns": 5}, {"loop_ns": 4}, {"loop_ns": 5})
    older: dict[str, Any] = {key: of for key, of in record.items() if key != samples.LOOPS}
    assert collectives.net_ns(older) == 45
    assert collectives.is_net_of_one_loop(older)
    older["call_cpu_ns"] = record["call_cpu_ns"] = 1
    for one, is_told in ((older, True), (record, False)):
        assert ("of one turn" in collective_tables.show([one])) == is_told
