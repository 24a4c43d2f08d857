"""What collectives should reach, and what is said where they do not."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.record import Record
from bench.suite import collective_targets, samples
from bench.suite.settings import KIB, MIB


def _record(contestant: str, ns: int, **fields: object) -> Record:
    """Of a shared-memory all_reduce of 1 MiB by two ranks on two cores, unless fields differ."""
    record: Record = {
        "topic": "collectives",
        "contestant": contestant,
        "peer": {"does nothing": "floor", "copy floor": "floor"}.get(contestant, contestant),
        "transport": "shm",
        "op": "all_reduce",
        "size": MIB,
        "row": "plain",
        "ranks": 2,
        "cores": 2,
        **fields,  # type: ignore[dict-item]
    }
    (merged,) = samples.merge([samples.turn(record, [ns])])
    return merged


def test_a_target_is_met_or_names_where_it_is_not() -> None:
    met = [_record("rdmatensor", 100), _record("gloo", 700), _record("OpenMPI", 90)]
    assert collective_targets.lines(met) == [
        "target: 1 MiB all_reduce, Gloo >= 6: 7.00, met",
        "target: 1 MiB all_reduce, OpenMPI >= 1: 0.90; short: all_reduce 1 MiB (2 ranks, shm) 0.90",
    ]


def test_the_least_of_many_cells_is_named_first() -> None:
    records = [
        _record(who, ns, op="broadcast", size=size)
        for size, ours, gloo in ((8, 10, 40), (64 * KIB, 10, 20), (MIB, 10, 15))
        for who, ns in (("rdmatensor", ours), ("gloo", gloo))
    ]
    (line,) = collective_targets.lines(records)
    assert line.endswith(
        ">= 3: 1 of 3; short: broadcast 1 MiB (2 ranks, shm) 1.50, "
        "broadcast 64 KiB (2 ranks, shm) 2.00"
    )


def test_near_the_copy_floor_gloo_need_not_be_three_times_as_slow() -> None:
    about = {"op": "gather", "size": 16 * MIB}
    found = [_record("rdmatensor", 100, **about), _record("gloo", 200, **about)]
    (far,) = collective_targets.lines([*found, _record("copy floor", 80, **about)])
    (near,) = collective_targets.lines([*found, _record("copy floor", 90, **about)])
    assert "short" in far
    assert "short" not in near


def test_a_target_of_the_floor_tells_what_turns_differ_by() -> None:
    def turns(who: str, *of: int) -> Record:
        fields = _record(who, 1, size=64 * MIB)
        (merged,) = samples.merge([samples.turn(fields, [ns]) for ns in of])
        return merged

    found = [turns("rdmatensor", 100, 100, 200), turns("copy floor", 70, 75, 160)]
    (line,) = collective_targets.lines(found)
    words = "0.75 (0.70-0.80)"
    assert line.endswith(f">= 0.8: {words}; short: all_reduce 64 MiB (2 ranks, shm) {words}")


def test_a_large_all_reduce_has_the_copy_floor_beside_gloo() -> None:
    about = {"size": 64 * MIB}
    for floor, word in ((70, "0.70; short"), (85, "0.85, met")):
        found = [_record("rdmatensor", 100, **about), _record("copy floor", floor, **about)]
        (line,) = collective_targets.lines(found)
        assert line.startswith("target: 64 MiB all_reduce, copy floor >= 0.8: ")
        assert word in line


def test_what_does_nothing_may_be_the_faster_one_by_little() -> None:
    about = {"size": 8, "row": "same", "loop_ns": 50}
    for ours, word in ((105, "met"), (200, "short")):
        found = [_record("rdmatensor", ours, **about), _record("does nothing", 100, **about)]
        (line,) = collective_targets.lines(found)
        assert line.startswith("target: 8 B all_reduce over doing nothing <= 1.25: ")
        assert word in line


def test_more_ranks_than_cores_are_never_slower_and_twice_as_fast_in_the_mean() -> None:
    found = [
        _record(who, ns, ranks=4, size=size)
        for size, ours, gloo in ((8, 10, 80), (MIB, 10, 9))
        for who, ns in (("rdmatensor", ours), ("gloo", gloo))
    ]
    cells, mean = collective_targets.lines(found)
    assert "1 of 2; short: all_reduce 1 MiB (4 ranks, shm) 0.90" in cells
    assert mean.endswith("geometric mean >= 2: 2.68, met")
