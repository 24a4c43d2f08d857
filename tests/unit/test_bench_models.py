"""`bench models`: turns, figures, tables, bars and losses; nothing is trained here."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench_made_up import result_of
from bench_made_up_steps import ABOUT, MS, STEPS_MS, printed
from bench_made_up_steps import records as step_records

from bench.benchlib.record import Record
from bench.suite import command, compare, models, peers, plots, rounds, samples, tables
from bench.suite.settings import Settings

SECOND = 1_000_000_000
LOSSES = [8.0, 3.0, 5.0, 2.0, 0.5]
QUIET = rounds.Progress("models", io.StringIO())


def test_rdmatensors_transports_have_turns_of_their_own_and_others_one() -> None:
    turns = models.worker_turns(("shm", "tcp"), {"floor", "gloo", "copies"})
    over = ("planned", "adopted", "copied", "variant")
    assert turns == [
        *((who, path) for who in over for path in ("shm", "tcp")),
        *((who, "") for who in ("gloo", "floor", "planned_floor")),
    ]
    assert models.worker_turns(("shm",), set()) == [(who, "shm") for who in over[:3]]
    (variant,) = models.records_of(printed("variant", 1.0), ABOUT, "shm", 0)
    assert variant["peer"] == peers.COPIES  # `compare` does not judge it


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each worker that is asked for a step, which one peer of two has."""
    found: list[dict[str, Any]] = []

    def run_ranks(_: str, __: int, options: dict[str, Any], **___: Any) -> list[Record]:
        found.append(options)
        assert Path(options["kept"]).is_dir()
        broken: Record = {"name": "gloo", "transport": "", "failed": "other parameters"}
        return [ABOUT, {**printed("planned", 1.0), "transport": "tcp"}, broken]

    monkeypatch.setattr(models, "run_ranks", run_ranks)
    return found


def _turns(options: dict[str, Any]) -> list[str]:
    return [":".join(turn) for turn in options["turns"]]


def test_a_peer_that_fails_is_named_and_the_others_go_on(asked: list[dict[str, Any]]) -> None:
    settings = Settings(
        ("models",), is_quick=True, models=("vgg16",), rounds=2, transports=("tcp",)
    )
    planned, *failed = models.measure(settings, peers.choose("models", ["gloo"])[0], QUIET)
    assert (planned["name"], planned["transport"]) == ("planned", "tcp")
    assert len(samples.turns_of(planned)) == 2
    (one,) = failed
    assert (one["peer"], one["missing"]) == ("DDP on Gloo, vgg16", "failed: other parameters")
    assert "missing in models: DDP on Gloo, vgg16" in tables.show([planned, one])
    assert [_turns(options)[0] for options in asked] == ["planned:tcp", "adopted:tcp"]
    kept = {options["kept"] for options in asked}
    assert len(kept) == 1
    assert not Path(kept.pop()).exists()


def test_the_copy_variant_has_no_row_of_more_than_two_ranks(asked: list[dict[str, Any]]) -> None:
    present, _ = peers.choose("models", [peers.COPIES])
    for ranks, is_refused in ((2, False), (3, True)):
        settings = Settings(("models",), models=("vgg16",), ranks=ranks, rounds=1)
        found = models.measure(settings, present, QUIET)
        assert ("variant:shm" in _turns(asked[-1])) != is_refused
        refused = [one for one in found if "sends all to every" in str(one.get("missing"))]
        assert bool(refused) == is_refused


def test_quick_has_all_models_only_where_it_has_all_the_time() -> None:
    alone, among = Settings(("models",), is_quick=True), Settings(is_quick=True)
    assert models.names_of(alone) == models.names_of(Settings()) == models.OF_THE_PAPER
    assert models.names_of(among) == models.QUICK_NAMES
    assert models.names_of(Settings(models=("gru",))) == ("gru",)
    assert alone.seconds_of("models") > among.seconds_of("models")


def test_what_is_beyond_the_floor_is_exposed() -> None:
    of = {record["name"]: record for record in step_records(STEPS_MS)}
    assert of["planned"]["exposed_ns"] == 20 * MS
    assert of["planned"]["share"] == pytest.approx(1 / 6, abs=1e-3)
    assert "share" not in of[models.FLOOR]
    assert all("share" not in record for record in step_records({"planned": 1.0, "gloo": 2.0}))
    floors = {"floor": 100.0, "planned_floor": 90.0}
    records = step_records({"planned": 120.0, "adopted": 125.0, **floors})
    exposed = {one["name"]: one.get("exposed_ns") for one in records}
    assert (exposed["planned"], exposed["DDP"]) == (30 * MS, 25 * MS)


def test_figures_of_turns_are_their_medians_and_blocks_are_turns() -> None:
    parts = {"posting_s": 0.001, "summing_s": 0.004, "page_faults": 7.0}
    found = []
    for start, cpu_ms in enumerate((30.0, 10.0, 20.0)):
        said = {
            **printed("planned", 9.0, cpu_ms=cpu_ms),
            "parts": {**parts, "ending_s": cpu_ms / 1e3},
        }
        said["blocks_ns"] = [[MS, 2 * MS], [3 * MS, 4 * MS]]
        found += models.records_of(said, ABOUT, "shm", start)
    (merged,) = samples.merge(found)
    assert merged["cpu_ns"] == 20 * MS
    assert merged["parts"]["ending_s"] == 0.02  # type: ignore[index]
    assert [len(turns) for turns in samples.starts_of(merged).values()] == [2, 2, 2]
    shown = tables.show([merged])
    assert "posting" in shown
    assert shown.splitlines()[-1].split()[-1] == "7.0"


def test_the_table_has_each_model_with_its_size_and_times_planned() -> None:
    more = step_records(STEPS_MS, model="lstm", parameter_bytes=3 << 20, divisor=4)
    shown = tables.show([*step_records(STEPS_MS), *more])
    lines = [line for line in shown.splitlines() if "vgg16 512.0 MiB, shm, 2 ranks" in line]
    (grpc,) = [line for line in lines if "gRPC" in line]
    assert grpc.split()[-4:] == ["96", "-", "5.00", "2e-06"]  # memory, and none in the arena
    (own,) = [line for line in lines if " planned " in line]
    assert own.split()[-4:] == ["96", "32", "1.00", "2e-06"]
    assert "lstm 3.0 MiB, widths / 4, shm, 2 ranks" in shown
    assert shown.index("vgg16") < shown.index("lstm")  # as in the table of the paper


def test_those_that_had_turns_in_other_minutes_are_named() -> None:
    records = step_records(STEPS_MS)
    assert models.apart(records) == []
    for turn in records[0]["turns"]:  # type: ignore[attr-defined]
        turn["beside"] = 2
    (line,) = models.apart(records)
    assert line.startswith("vgg16: there was no memory for all at once")
    assert "planned" not in line.partition(": ")[2]


def test_bars_of_each_path(tmp_path: Path) -> None:
    records = [one for name in models.NAMES[:4] for one in step_records(STEPS_MS, model=name)]
    words = plots.write(result_of(records, "models"), tmp_path).read_text(encoding="utf-8")
    assert 'src="models_shm.png"' in words
    assert (tmp_path / "models_shm.png").read_bytes().startswith(b"\x89PNG")


def test_compare_judges_rdmatensors_rows_and_knows_the_floor() -> None:
    before = result_of(step_records(STEPS_MS))
    worse = result_of(step_records({**STEPS_MS, "planned": 240.0}))
    slower = result_of(step_records({who: 2 * ms for who, ms in STEPS_MS.items()}))
    verdicts = {line.what: line.verdict for line in compare.compare(before, worse)}
    timed = "a step of 2x3x56x56 a rank, slowest rank"
    assert verdicts == {
        f"models shm vgg16 2 ranks: planned, {timed}": "worse",
        f"models shm vgg16 2 ranks: DDP, not adopted, {timed}": "same",
    }
    assert {line.verdict for line in compare.compare(before, slower)} == {"same"}
    scaled = result_of(step_records(STEPS_MS, parameter_bytes=32 << 20, divisor=4))
    with pytest.raises(compare.NotComparable, match="in common"):
        compare.compare(before, scaled)


@pytest.mark.parametrize(
    ("topic", "wanted", "other"),
    [("models", "libparameters.so", "grpc_transfer"), ("p2p", "grpc_transfer", "libparameters.so")],
)
def test_grpc_is_missing_only_where_what_it_needs_is_not_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, topic: str, wanted: str, other: str
) -> None:
    monkeypatch.setattr(peers, "GRPC_PARAMETERS", tmp_path / "libparameters.so")
    monkeypatch.setattr(peers, "GRPC_PROGRAM", tmp_path / "grpc_transfer")
    (tmp_path / other).touch()
    present, missing = peers.choose(topic, ["grpc-cpp"])
    assert not present
    assert missing[0].why == f"not built in build/peers: {wanted}"
    (tmp_path / wanted).touch()
    assert [peer.name for peer in peers.choose(topic, ["grpc-cpp"])[0]] == ["grpc-cpp"]


# ---- Losses -------------------------------------------------------------------------------------


def _learns(who: str, step_s: float, **more: object) -> Record:
    raw_ns = [round(step_s * SECOND)] * len(LOSSES)
    path = "shm" if who in ("planned", "adopted") else ""
    return {"name": who, "transport": path, "raw_ns": raw_ns, "losses": LOSSES, "off": 0.0, **more}


def _curve(who: str, *step_s: float, **more: object) -> Record:
    turns = [models.curve_of(_learns(who, one, **more), ABOUT, "shm") for one in step_s]
    (merged,) = samples.merge(turns)
    return merged


def test_a_loss_is_reached_only_where_it_stays_in_the_turn_in_the_middle() -> None:
    record = _curve("planned", 3.0, 1.0, 2.0)
    assert models.seconds_of(record) == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert models.reached_s(record, 0.5) == 6.0  # 3 comes sooner, and 5 after it
    assert models.reached_s(record, 0.01) is None
    assert models.reached_s(record, 1.0) == 0.0


def test_the_table_of_losses_has_times_and_whose_differ() -> None:
    records = [_curve("planned", 1.0), _curve("gloo", 2.0), _curve("grpc_cpp", 3.0, off=2e-7)]
    lines = tables.show(records).splitlines()
    (gloo,) = [line for line in lines if "DDP on Gloo" in line]
    assert gloo.split()[-8:] == ["6", "s", "8", "s", "8", "s", "2.00", "same"]
    (grpc,) = [line for line in lines if "gRPC" in line]
    assert grpc.split()[-2:] == ["3.00", "2e-07"]


def test_losses_are_measured_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    curves: list[list[str]] = []

    def run_ranks(_: str, __: int, options: dict[str, Any], **___: Any) -> list[Record]:
        if "curve" not in options:
            return [ABOUT]
        curves.append(_turns(options))
        failed = {"name": "gloo", "transport": "", "failed": "losses are 0.1 off Gloo's"}
        return [ABOUT, _learns("planned", 1.0), failed]

    monkeypatch.setattr(models, "run_ranks", run_ranks)
    present = [one for one in peers.PEERS if one.name in ("copies", "gloo", "grpc-cpp", "floor")]
    plain = Settings(("models",), models=("gru",), transports=("shm",), rounds=1)
    learnt, failed = models.measure(replace(plain, converge="lstm"), present, QUIET)
    assert curves == [["planned:shm", "adopted:shm", "gloo:", "grpc_cpp:"]]
    assert (learnt["topic"], learnt["losses"]) == (models.CONVERGENCE, LOSSES)
    assert failed["missing"] == "failed: losses are 0.1 off Gloo's"
    assert models.measure(plain, present, QUIET) == []
    with pytest.raises(SystemExit):
        command.main(["p2p", "--converge", "gru"])
    assert "--converge is of models" in capsys.readouterr().err
