"""What collectives and training steps should reach, and what is said where they do not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench_made_up_steps import ABOUT, STEPS_MS, printed
from bench_made_up_steps import records as step_records

from bench.benchlib.record import Record
from bench.suite import models, samples, tables, targets
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
    assert targets.of_collectives(met) == [
        "target: 1 MiB all_reduce, Gloo >= 6: 7.00, met",
        "target: 1 MiB all_reduce, OpenMPI >= 1: 0.90; short: all_reduce 1 MiB (2 ranks, shm) 0.90",
    ]


def test_the_least_of_many_cells_is_named_first() -> None:
    records = [
        _record(who, ns, op="broadcast", size=size)
        for size, ours, gloo in ((8, 10, 40), (64 * KIB, 10, 20), (MIB, 10, 15))
        for who, ns in (("rdmatensor", ours), ("gloo", gloo))
    ]
    (line,) = targets.of_collectives(records)
    assert line.endswith(
        ">= 3: 1 of 3; short: broadcast 1 MiB (2 ranks, shm) 1.50, "
        "broadcast 64 KiB (2 ranks, shm) 2.00"
    )


def test_near_the_copy_floor_gloo_need_not_be_three_times_as_slow() -> None:
    about = {"op": "gather", "size": 16 * MIB}
    found = [_record("rdmatensor", 100, **about), _record("gloo", 200, **about)]
    (far,) = targets.of_collectives([*found, _record("copy floor", 80, **about)])
    (near,) = targets.of_collectives([*found, _record("copy floor", 90, **about)])
    assert "short" in far
    assert "short" not in near


def test_a_target_of_the_floor_tells_what_turns_differ_by() -> None:
    def turns(who: str, *of: int) -> Record:
        fields = _record(who, 1, size=64 * MIB)
        (merged,) = samples.merge([samples.turn(fields, [ns]) for ns in of])
        return merged

    found = [turns("rdmatensor", 100, 100, 200), turns("copy floor", 70, 75, 160)]
    (line,) = targets.of_collectives(found)
    words = "0.75 (0.70-0.80)"
    assert line.endswith(f">= 0.8: {words}; short: all_reduce 64 MiB (2 ranks, shm) {words}")


def test_a_large_all_reduce_has_the_copy_floor_beside_gloo() -> None:
    about = {"size": 64 * MIB}
    for floor, word in ((70, "0.70; short"), (85, "0.85, met")):
        found = [_record("rdmatensor", 100, **about), _record("copy floor", floor, **about)]
        (line,) = targets.of_collectives(found)
        assert line.startswith("target: 64 MiB all_reduce, copy floor >= 0.8: ")
        assert word in line


def test_what_does_nothing_may_be_the_faster_one_by_little() -> None:
    about = {"size": 8, "row": "same", "loop_ns": 50}
    for ours, word in ((105, "met"), (200, "short")):
        found = [_record("rdmatensor", ours, **about), _record("does nothing", 100, **about)]
        (line,) = targets.of_collectives(found)
        assert line.startswith("target: 8 B all_reduce over doing nothing <= 1.25: ")
        assert word in line


def test_more_ranks_than_cores_are_never_slower_and_twice_as_fast_in_the_mean() -> None:
    found = [
        _record(who, ns, ranks=4, size=size)
        for size, ours, gloo in ((8, 10, 80), (MIB, 10, 9))
        for who, ns in (("rdmatensor", ours), ("gloo", gloo))
    ]
    cells, mean = targets.of_collectives(found)
    assert "1 of 2; short: all_reduce 1 MiB (4 ranks, shm) 0.90" in cells
    assert mean.endswith("mean >= 2: 2.68, met")


SERVERS = "target: the better server over gRPC, its step over the planned one >= 2"
GLOO = "target: DDP on Gloo, exposed time over its <= 0.2"


def test_a_step_falls_short_with_how_far_chance_could_move_it() -> None:
    lines = targets.of_models(step_records(STEPS_MS))
    assert lines[0] == f"{SERVERS}: 5.00 (4.90 to 5.10), met"
    assert [line.split(" <= ")[0] for line in lines[1:]] == [
        "target: DDP, not adopted, exposed time over its",
        "target: DDP on Gloo, exposed time over its",
    ]
    assert all(line.endswith("ms, met") for line in lines[1:])
    slow = targets.of_models(step_records({**STEPS_MS, "planned": 400.0}))
    words = "1.50 (1.47 to 1.53)"
    assert slow[0] == f"{SERVERS}: {words}; short: vgg16 (shm) {words}"
    few = targets.of_models(step_records(STEPS_MS, turns=2))
    assert few[0] == f"{SERVERS}: 5.00 (too few turns), met"


def test_the_faster_server_counts_in_each_model() -> None:
    names = models.OF_THE_PAPER
    found = [
        one
        for ms, some in ((300.0, names[:4]), (180.0, names[4:]))
        for name in some
        for one in step_records({**STEPS_MS, "grpc_cpp": ms}, model=name)
    ]
    (line,) = [line for line in targets.of_models(found) if line.startswith(SERVERS)]
    assert line.startswith(f"{SERVERS}: 4 of 6; short: ")
    assert line.count("1.50 (1.47 to 1.53)") == 2
    other = targets.of_models(step_records({**STEPS_MS, "grpc": 150.0, "grpc_cpp": 300.0}))
    assert other[0].startswith(f"{SERVERS}: 1.25 ")


def test_a_rival_that_exposes_nothing_has_no_target() -> None:
    lines = targets.of_models(step_records({**STEPS_MS, "gloo": 90.0}))
    assert not any("Gloo" in line for line in lines)
    no_floor = {who: ms for who, ms in STEPS_MS.items() if who != "floor"}
    assert len(targets.of_models(step_records(no_floor))) == 1


def test_exposed_time_is_compared_beyond_the_floor() -> None:
    for planned_ms, said in ((110.0, ", met"), (140.0, "; short: vgg16 (shm) ")):
        steps = {"planned": planned_ms, "gloo": 220.0, "floor": 100.0}
        (line,) = targets.of_models(step_records(steps))
        assert line.startswith(f"{GLOO}: {planned_ms - 100:.1f} (")
        assert said in line


def test_noise_below_the_floor_is_shown() -> None:
    records = step_records({**STEPS_MS, "planned": 95.0})
    (planned,) = [
        line
        for line in tables.show(records).splitlines()
        if ", planned  " in line or "ranks  planned  " in line
    ]
    assert "-5.00 ms" in planned
    assert "-5 %" in planned


def _of_turns(who: str, turns_ms: list[list[float]], starts: list[int]) -> list[Record]:
    return [
        record
        for start, took_ms in zip(starts, turns_ms, strict=True)
        for record in models.records_of(printed(who, *took_ms), ABOUT, "shm", start)
    ]


def test_what_slows_all_of_a_turn_does_not_tell_them_apart() -> None:
    """Each is 1.8 times as slow in half of its turns, but in the same ones."""
    slow = [1.0, 1.8, 1.0, 1.8, 1.8, 1.0]
    starts = [0, 0, 1, 1, 2, 2]
    ours = [[100.0 * by, 101.0 * by, 99.0 * by] for by in slow]
    rivals = [[210.0 * by, 212.0 * by, 208.0 * by] for by in slow]
    records = models.merge(
        [*_of_turns("planned", ours, starts), *_of_turns("grpc", rivals, starts)]
    )
    assert targets.of_models(records)[0].startswith(f"{SERVERS}: 2.10 (2.0")


def test_who_had_turns_in_other_minutes_is_named() -> None:
    together = [{**printed(who, 100.0), "beside": 2} for who in ("planned", "gloo", "grpc")]
    alone = {**printed("floor", 90.0), "beside": 0}
    found = [
        record
        for start in range(3)
        for one in (*together, alone if start == 1 else {**alone, "beside": 2})
        for record in models.records_of(one, ABOUT, "shm", start)
    ]
    (told,) = models.apart(models.merge(found))
    assert told.startswith("vgg16: there was no memory for all at once")
    assert told.endswith(": no communication")
    assert told not in models.apart(models.merge(found[:4]))


def test_each_turn_tells_what_its_processes_chose() -> None:
    told = ["as planned", "chosen again", "as planned"]
    turns = [{**printed("planned", 100.0), "choice": one} for one in told]
    found = [one for turn in turns for one in models.records_of(turn, ABOUT, "shm", 0)]
    found += models.records_of(printed("gloo", 100.0), ABOUT, "shm", 0)
    planned, gloo = models.merge(found)
    turns_of = [cast("list[Record]", one["turns"]) for one in (planned, gloo)]
    assert [turn["choice"] for turn in turns_of[0]] == told
    assert "choice" not in planned
    assert "choice" not in turns_of[1][0]
