"""What `python -m bench.overlap` says of turns that are made up; nothing is measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench import overlap
from bench.benchlib.record import Record
from bench.suite import samples

MS = 1_000_000


def _turn(ours: int, gloo: int, alone: int) -> list[Record]:
    """Each contestant's step of the slowest rank in ms; the other one is faster."""
    return [
        overlap.record_of(
            [
                {
                    "contestant": name,
                    "op": "step",
                    "size": 1 << 20,
                    "buckets": 0 if name == overlap.ALONE else 20,
                    "ranks": 2,
                    "raw_ns": [(step - rank) * MS] * 3,
                    "cpu_ns": [step * MS] * 3,
                }
                for rank in (0, 1)
            ],
            20,
            "shm",
        )
        for name, step in (("rdmatensor", ours), ("gloo", gloo), (overlap.ALONE, alone))
    ]


def test_exposed_is_beyond_the_step_alone_in_the_same_turn() -> None:
    lines = overlap.lines_of([_turn(12, 20, 10), _turn(33, 40, 30), _turn(14, 22, 12)])
    assert lines[1].split() == ["rdmatensor", "14.00", "2.00", "28.00"]
    assert lines[2].split() == ["gloo", "22.00", "10.00", "44.00"]
    assert lines[-2:] == [
        "exposed, rdmatensor / gloo: 0.20",
        "target: exposed at most 0.5 of what gloo exposes: met",
    ]


def test_the_target_may_be_short_or_have_nothing_beside_it() -> None:
    assert overlap.lines_of([_turn(16, 20, 10)])[-1].endswith("gloo exposes: short")
    assert overlap.lines_of([_turn(16, 10, 10)])[-1].endswith("nothing to compare with")


def test_all_samples_are_kept_and_other_buckets_refused() -> None:
    found = samples.merge([*_turn(12, 20, 10), *_turn(33, 40, 30)])
    assert [len(samples.raw_of(record)) for record in found] == [6, 6, 6]
    assert samples.raw_of(found[0])[0] == 12 * MS
    with pytest.raises(RuntimeError, match="0 buckets of 20"):
        overlap.record_of([{"contestant": "gloo", "buckets": 0}], 20, "shm")
