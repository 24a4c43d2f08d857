"""Targets of `rdmatensor bench models`: met, missed, or undecided; nothing is trained here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench_made_up_steps import ABOUT, STEPS_MS, printed
from bench_made_up_steps import records as step_records

from bench.benchlib.record import Record
from bench.suite import copies, model_targets, models, samples, tables

SERVERS = "shm, the better server over gRPC, its step over ours >= 2"


def test_targets_are_judged_and_shortfalls_have_their_share_of_compute() -> None:
    lines = model_targets.verdicts(step_records(STEPS_MS))
    assert lines == [
        f"{SERVERS}: 1 of 1 models",
        "shm, DDP, not adopted, our exposed time over its <= 0.5: 1 of 1 models",
        "shm, DDP on Gloo, our exposed time over its <= 0.2: 1 of 1 models",
    ]
    slow = model_targets.verdicts(step_records({**STEPS_MS, "planned": 400.0, "variant": 500.0}))
    assert f"{SERVERS}: 0 of 1 models" in slow
    assert "    vgg16: 1.50 (1.47 to 1.53); compute is 25 % of the planned step" in slow
    assert (
        "shm, copy variant, its step over ours >= 1.5: 0 of 1 models; "
        "whether the variant itself reaches 0.9 of UCX was not measured in this run" in slow
    )


def test_the_copy_variant_s_target_says_whether_it_is_a_rival() -> None:
    rates = [
        copies.record_of(who, "shm", 1 << 20, [us * 1000])
        for who, us in ((copies.VARIANT, 900), (copies.UCX, 600))
        for _ in range(3)
    ]
    records = [*step_records({**STEPS_MS, "variant": 200.0}), *samples.merge(rates)]
    told = "0.9 of UCX's rate by the variant itself not reached: of UCX's tag at 0 of 1 sizes"
    head = "shm, copy variant, its step over ours >= 1.5: 1 of 1 models"
    assert f"{head}; {told}" in tables.show(records).splitlines()


def test_what_noise_could_turn_of_a_step_is_neither_met_nor_missed() -> None:
    for turns, spread, said in (
        (3, 0.01, "1 of 1 models"),
        (3, 0.2, "0 of 0 models, which may be enough; undecided: vgg16"),
        (2, 0.01, "0 of 0 models, which may be enough; undecided: vgg16"),
    ):
        steps = {**STEPS_MS, "grpc": 250.0}
        lines = model_targets.verdicts(step_records(steps, turns=turns, spread=spread))
        assert f"{SERVERS}: {said}" in lines
    assert "    vgg16, undecided: 2.08 (too few turns)" in lines


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
    theirs = [[210.0 * by, 212.0 * by, 208.0 * by] for by in slow]
    records = models.merge(
        [*_of_turns("planned", ours, starts), *_of_turns("grpc", theirs, starts)]
    )
    assert f"{SERVERS}: 1 of 1 models" in model_targets.verdicts(records)


def test_who_had_turns_in_other_minutes_is_named() -> None:
    together = [{**printed(who, 100.0), "beside": 2} for who in ("planned", "gloo", "grpc")]
    alone = {**printed("floor", 90.0), "beside": 0}
    found = [
        record
        for start in range(3)
        for one in (*together, alone if start == 1 else {**alone, "beside": 2})
        for record in models.records_of(one, ABOUT, "shm", start)
    ]
    told = "vgg16: there was no memory for all at once; in minutes of theirs: no communication"
    assert told in model_targets.verdicts(models.merge(found))
    assert told not in model_targets.verdicts(models.merge(found[:4]))


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


def test_turns_of_too_few_starts_say_nothing() -> None:
    turns = [[100.0, 101.0, 99.0]] * 6
    rivals = [[300.0, 301.0, 299.0]] * 6
    starts = [0, 0, 0, 1, 1, 1]
    records = models.merge(
        [*_of_turns("planned", turns, starts), *_of_turns("grpc", rivals, starts)]
    )
    assert "    vgg16, undecided: 3.00 (too few turns)" in model_targets.verdicts(records)


def test_a_plan_that_is_slower_than_adoption_falls_short() -> None:
    line = "shm, DDP, its step over ours >= 0.97: {} of 1 models"
    assert line.format(1) in model_targets.verdicts(step_records({**STEPS_MS, "adopted": 119.0}))
    slow = model_targets.verdicts(step_records({**STEPS_MS, "adopted": 113.0}))
    assert line.format(0) in slow
    assert "    vgg16: 0.94 (0.92 to 0.96); compute is 83 % of the planned step" in slow


def test_the_faster_server_counts_in_each_model() -> None:
    names = models.OF_THE_PAPER
    slow = [
        one for name in names[:4] for one in step_records({**STEPS_MS, "grpc_cpp": 300}, model=name)
    ]
    fast = [
        one for name in names[4:] for one in step_records({**STEPS_MS, "grpc_cpp": 180}, model=name)
    ]
    lines = model_targets.verdicts(slow + fast)
    assert f"{SERVERS}: 4 of 6 models, enough" in lines
    assert "    gru: 1.50 (1.47 to 1.53); compute is 83 % of the planned step" in lines
    few = model_targets.verdicts(slow[:-6] + fast)
    assert any(line.startswith(f"{SERVERS}: 3 of 5 models") for line in few)
    assert not any("enough" in line for line in few)


def test_a_server_in_python_that_is_faster_counts_too() -> None:
    lines = model_targets.verdicts(step_records({**STEPS_MS, "grpc": 150, "grpc_cpp": 300}))
    assert f"{SERVERS}: 0 of 1 models" in lines


def test_a_rival_that_exposes_nothing_leaves_it_undecided() -> None:
    records = step_records({**STEPS_MS, "gloo": 90.0})
    records += step_records({**STEPS_MS, "planned": 95.0}, model="lstm")
    (line,) = [line for line in model_targets.verdicts(records) if "Gloo" in line]
    assert line.endswith("exposed time over its <= 0.2: 1 of 1 models; undecided: vgg16")
    no_floor = {who: ms for who, ms in STEPS_MS.items() if who != "floor"}
    lines = model_targets.verdicts(step_records(no_floor))
    assert [line.endswith("0 of 0 models; undecided: vgg16") for line in lines] == [
        False,
        True,
        True,
    ]


def test_noise_below_the_floor_is_shown() -> None:
    records = step_records({**STEPS_MS, "planned": 95.0})
    (planned,) = [
        line
        for line in tables.show(records).splitlines()
        if ", planned  " in line or "ranks  planned  " in line
    ]
    assert "-5.00 ms" in planned
    assert "-5 %" in planned
    gloo = model_targets.TARGETS[-1]
    assert model_targets.figure_of(records[0], records[2], gloo) is None
    lines = model_targets.verdicts(records)
    head = lines.index("shm, DDP on Gloo, our exposed time over its <= 0.2: 1 of 1 models")
    assert lines[head + 1].startswith("    vgg16, met: -5.0 (-")
    assert lines[head + 1].endswith(" ms; ours may be noise alone")


def test_what_noise_could_turn_is_neither_met_nor_missed() -> None:
    head = "shm, DDP on Gloo, our exposed time over its <= 0.2"
    for planned_ms, spread, said in (
        (110.0, 0.01, "1 of 1 models"),
        (140.0, 0.01, "0 of 1 models"),
        (125.0, 0.03, "0 of 0 models; undecided: vgg16"),
        (110.0, 0.2, "0 of 0 models; undecided: vgg16"),
    ):
        steps = {"planned": planned_ms, "gloo": 220.0, "floor": 100.0}
        lines = model_targets.verdicts(step_records(steps, spread=spread))
        assert f"{head}: {said}" in lines, lines
    assert any(line.startswith("    vgg16, undecided: 10.0 (-") for line in lines)
    few = model_targets.verdicts(step_records(STEPS_MS, turns=2))
    assert f"{head}: 0 of 0 models; undecided: vgg16" in few
