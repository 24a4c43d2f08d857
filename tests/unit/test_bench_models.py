"""`rdmatensor bench models`: turns, figures, targets, table and bars; nothing is trained here."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench_made_up_steps import ABOUT, MS, STEPS_MS, printed
from bench_made_up_steps import records as step_records

from bench.benchlib.record import Record, Result, Run, write
from bench.suite import (
    breakdown,
    command,
    compare,
    models,
    page,
    peers,
    rounds,
    samples,
    tables,
)
from bench.suite.settings import Settings


def test_own_transports_have_turns_of_their_own_and_others_one() -> None:
    turns = models.worker_turns(("shm", "tcp"), {"floor", "gloo", "copies"})
    ours = ("planned", "adopted", "copied", "variant")
    assert turns == [
        *((who, path) for who in ours for path in ("shm", "tcp")),
        ("gloo", ""),
        ("floor", ""),
        ("planned_floor", ""),
    ]  # fmt: skip
    assert models.worker_turns(("shm",), set()) == [(who, "shm") for who in ours[:3]]
    (variant,) = models.records_of(printed("variant", 1.0), ABOUT, "shm", 0)
    assert variant["peer"] == peers.COPIES  # `compare` does not judge it


def test_the_copy_variant_has_no_row_of_more_than_two_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def run_ranks(*words: str, **_: Any) -> list[Record]:
        asked.append(words[words.index("--turns") + 1])
        return [ABOUT, {**printed("planned", 1.0), "transport": "shm"}]

    monkeypatch.setattr(models, "run_ranks", run_ranks)
    quiet = rounds.Progress("models", io.StringIO())
    present, _ = peers.choose("models", [peers.COPIES])
    for ranks, is_refused in ((2, False), (3, True)):
        settings = Settings(("models",), models=("vgg16",), ranks=ranks, rounds=1)
        _, *refused = models.measure(settings, present, quiet)
        assert ("variant:shm" in asked[-1]) != is_refused
        assert ["sends all to every other" in str(one["missing"]) for one in refused] == (
            [True] if is_refused else []
        )


def test_quick_has_all_models_only_where_it_has_all_the_time() -> None:
    assert models.names_of(Settings(("models",), is_quick=True)) == models.OF_THE_PAPER
    assert models.names_of(Settings(is_quick=True)) == models.QUICK_NAMES
    assert models.names_of(Settings()) == models.OF_THE_PAPER
    assert models.names_of(Settings(models=("gru",))) == ("gru",)
    alone, among = Settings(("models",), is_quick=True), Settings(is_quick=True)
    assert alone.seconds_of("models") > among.seconds_of("models")


def test_options_choose_models() -> None:
    words = ["models", "--models", "lstm,gru", "--ranks", "3"]
    found = command.settings_of(command._parser().parse_args(words))
    assert (found.models, found.ranks) == (("lstm", "gru"), 3)


def test_what_is_beyond_the_floor_is_exposed() -> None:
    of = {record["contestant"]: record for record in step_records(STEPS_MS)}
    assert of["planned"]["exposed_ns"] == 20 * MS
    assert of["planned"]["share"] == pytest.approx(1 / 6, abs=1e-3)
    assert of["server over gRPC, Python"]["share"] == pytest.approx(5 / 6, abs=1e-3)
    assert "share" not in of[models.FLOOR]
    assert all("share" not in record for record in step_records({"planned": 1.0, "gloo": 2.0}))


def test_processor_time_is_the_median_of_the_turns() -> None:
    found = [
        record
        for start, cpu_ms in enumerate((30.0, 10.0, 20.0))
        for record in models.records_of(printed("gloo", 1.0, cpu_ms=cpu_ms), ABOUT, "shm", start)
    ]
    (merged,) = models.merge(found)
    assert merged["cpu_ns"] == 20 * MS
    assert len(samples.turns_of(merged)) == 3


@pytest.mark.parametrize(
    ("topic", "wanted", "other"),
    [("models", "libparameters.so", "grpc_rival"), ("p2p", "grpc_rival", "libparameters.so")],
)
def test_a_rival_is_missing_only_where_what_it_needs_is_not_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, topic: str, wanted: str, other: str
) -> None:
    monkeypatch.setattr(peers, "GRPC_PARAMETERS", tmp_path / "libparameters.so")
    monkeypatch.setattr(peers, "GRPC_PROGRAM", tmp_path / "grpc_rival")
    (tmp_path / other).touch()
    present, missing = peers.choose(topic, ["grpc-cpp"])
    assert not present
    assert missing[0].why == f"not built in build/rivals: {wanted}"
    assert missing[0].peer.how_to_get == "bash bench/rivals/grpc/setup.sh"
    (tmp_path / wanted).touch()
    (tmp_path / other).unlink()
    present, missing = peers.choose(topic, ["grpc-cpp"])
    assert [peer.name for peer in present] == ["grpc-cpp"]
    assert not missing


def test_a_step_by_a_plan_has_a_floor_with_its_gradients_in_their_places() -> None:
    floors = {"floor": 100.0, "planned_floor": 90.0}
    records = step_records({"planned": 120.0, "adopted": 125.0, **floors})
    exposed = {one["contestant"]: one.get("exposed_ns") for one in records}
    assert exposed == {
        "planned": 30 * MS,
        "DDP": 25 * MS,
        models.FLOOR: None,
        models.PLANNED_FLOOR: None,
    }


def test_parts_of_a_step_stand_in_a_table_of_their_own() -> None:
    parts = {"posting_s": 0.001, "wait_s": 0.5, "summing_s": 0.004, "copying_s": 0.0}
    found = [
        record
        for start, s in enumerate((0.3, 0.002, 0.1))
        for record in models.records_of(
            {**printed("planned", 9.0), "parts": {**parts, "ending_s": s, "wakeups_sent": 3.0}},
            ABOUT,
            "shm",
            start,
        )
    ]
    (merged,) = models.merge(found)
    others = models.merge(models.records_of(printed("gloo", 9.0), ABOUT, "shm", 0))
    shown = tables.show([merged, *others])
    (row,) = [line for line in shown.splitlines() if line.endswith(" 3.0")]
    assert "  1.00 ms  " in row
    assert "  100.00 ms  " in row
    assert "posting" in shown
    assert "posting" not in tables.show(others)


def test_page_faults_of_all_stand_side_by_side() -> None:
    found = [
        record
        for who, faults in (("planned", 3.4), ("gloo", 15396.5))
        for record in models.records_of(
            {**printed(who, 9.0), "parts": {"page_faults": faults}}, ABOUT, "shm", 0
        )
    ]
    steps = models.merge([*found, *models.records_of(printed("copied", 9.0), ABOUT, "shm", 0)])
    heads, (row,) = breakdown.faults(steps, lambda one: str(one["op"]))
    assert heads == ("page faults a step, mean of ranks", "planned", "DDP on Gloo")
    assert row[1:] == ("3", "15396")
    assert "page faults" in tables.show(steps)


def test_each_block_is_a_turn_of_its_start() -> None:
    found = []
    for start in (0, 1):
        blocks = [[MS, 2 * MS], [3 * MS + start, 4 * MS]]
        printed_now = {**printed("gloo"), "blocks_ns": blocks}
        found += models.records_of(printed_now, ABOUT, "shm", start)
    (merged,) = models.merge(found)
    assert samples.starts_of(merged) == {
        0: [[MS, 2 * MS], [3 * MS, 4 * MS]],
        1: [[MS, 2 * MS], [3 * MS + 1, 4 * MS]],
    }


def test_another_contestant_begins_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[str] = []

    def run_ranks(*words: str, **_: Any) -> list[Record]:
        turns = words[words.index("--turns") + 1].split(",")
        assert sorted(turns) == ["adopted:tcp", "copied:tcp", "planned:tcp"]
        began.append(turns[0])
        return [ABOUT, {**printed("planned", 1.0), "transport": "tcp"}]

    monkeypatch.setattr(models, "run_ranks", run_ranks)
    quiet = rounds.Progress("models", io.StringIO())
    settings = Settings(("models",), models=("vgg16",), transports=("tcp",), rounds=4)
    models.measure(settings, [], quiet)
    assert began == ["planned:tcp", "adopted:tcp", "copied:tcp", "planned:tcp"]


def test_the_table_has_each_model_with_its_size_and_times_planned() -> None:
    records = step_records(STEPS_MS) + step_records(
        STEPS_MS, model="lstm", parameter_bytes=3 << 20, divisor=4
    )
    shown = tables.show(records)
    lines = shown.splitlines()
    (grpc,) = [line for line in lines if "vgg16 512.0 MiB, shm, 2 ranks" in line and "gRPC" in line]
    assert grpc.split()[-4:] == ["96", "-", "5.00", "2e-06"]  # memory, and none in our arenas
    (ours,) = [line for line in lines if "vgg16 512.0 MiB" in line and " planned " in line]
    assert ours.split()[-4:] == ["96", "32", "1.00", "2e-06"]
    assert "lstm 3.0 MiB, widths / 4, shm, 2 ranks" in shown
    assert shown.index("vgg16") < shown.index("lstm")  # as in the table of the paper
    assert ": 2 of 2, met" in shown


def test_bars_of_each_path(tmp_path: Path) -> None:
    names = [*models.NAMES[:4]]
    records = [one for name in names for one in step_records(STEPS_MS, model=name)]
    result = Result("quick", "x", {"cores": 2}, [Run(records, 0.0, 1.0)])
    words = page.write(result, tmp_path).read_text(encoding="utf-8")
    assert "Training steps" in words
    assert 'src="models_shm.png"' in words
    assert (tmp_path / "models_shm.png").read_bytes().startswith(b"\x89PNG")


def _result(records: list[Record]) -> Result:
    machine: Record = {"processor": "x", "family_model": "1", "cores": 2, "is_virtual": False}
    return Result("full", "x", machine, [Run(records, 0.0, 1.0)])


def test_compare_judges_our_rows_and_knows_the_floor(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = _result(step_records(STEPS_MS))
    worse = _result(step_records({**STEPS_MS, "planned": 240.0}))
    slower = _result(step_records({who: 2 * ms for who, ms in STEPS_MS.items()}))
    verdicts = {line.what: line.verdict for line in compare.compare(before, worse)}
    timed = "a step of 2x3x56x56 a rank, slowest rank"
    assert verdicts == {
        f"models shm vgg16 2 ranks: planned, {timed}": "worse",
        f"models shm vgg16 2 ranks: DDP, not adopted, {timed}": "same",
    }
    assert {line.verdict for line in compare.compare(before, slower)} == {"same"}
    for name, result in (("a", before), ("b", worse)):
        write(result, tmp_path / f"{name}.json")
    assert command.main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 1
    assert "1 same, 1 worse" in capsys.readouterr().out


def test_a_model_of_another_size_is_another_row() -> None:
    scaled = _result(step_records(STEPS_MS, parameter_bytes=32 << 20, divisor=4))
    with pytest.raises(compare.NotComparable, match="in common"):
        compare.compare(_result(step_records(STEPS_MS)), scaled)


def test_a_contestant_that_fails_is_named_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Any, ...]] = []

    def run_ranks(*words: Any, **_: Any) -> list[Record]:
        asked.append(words)
        broken: Record = {"contestant": "gloo", "transport": "", "failed": "other parameters"}
        return [ABOUT, {**printed("planned", 1.0), "transport": "tcp"}, broken]

    monkeypatch.setattr(models, "run_ranks", run_ranks)
    settings = Settings(("models",), is_quick=True, models=("vgg16",), rounds=2)
    present, _ = peers.choose("models", ["gloo"])
    quiet = rounds.Progress("models", io.StringIO())
    planned, *failed = models.measure(settings, present, quiet)
    assert (planned["contestant"], planned["transport"]) == ("planned", "tcp")
    assert len(samples.turns_of(planned)) == 2
    assert failed == [
        {
            "topic": "models",
            "peer": "DDP on Gloo, vgg16",
            "missing": "failed: other parameters",
            "get": "",
        }
    ]
    assert "--divisor" in asked[0]
    assert "missing in models: DDP on Gloo, vgg16" in tables.show([planned, *failed])


def test_the_kept_plans_are_gone_after_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Path] = []

    def run_ranks(*words: str, **_: Any) -> list[Record]:
        kept.append(Path(words[words.index("--kept") + 1]))
        assert kept[-1].is_dir()
        return [ABOUT, {**printed("planned", 1.0), "transport": "tcp"}]

    monkeypatch.setattr(models, "run_ranks", run_ranks)
    quiet = rounds.Progress("models", io.StringIO())
    models.measure(Settings(("models",), models=("vgg16",), rounds=2), [], quiet)
    assert kept[0] == kept[1]
    assert not kept[0].exists()
