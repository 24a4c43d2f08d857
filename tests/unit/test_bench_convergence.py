"""`rdmatensor bench models --converge`: losses over seconds; nothing is trained here."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))


from bench.benchlib.record import Record, Result, Run
from bench.suite import (
    command,
    compare,
    convergence,
    models,
    page,
    peers,
    rounds,
    samples,
    tables,
)
from bench.suite.settings import Settings

SECOND = 1_000_000_000
ABOUT: Record = {
    "model": "lstm",
    "divisor": 1,
    "ranks": 2,
    "parameter_bytes": 36 << 20,
    "batch": "8x20x1024",
}
LOSSES = [8.0, 3.0, 5.0, 2.0, 0.5]
PRESENT = {"copies", "gloo", "grpc-cpp", "floor"}


def _printed(who: str, step_s: float, **more: object) -> Record:
    raw_ns = [round(step_s * SECOND)] * len(LOSSES)
    transport = "shm" if who in ("planned", "adopted") else ""
    return {
        "contestant": who,
        "transport": transport,
        "raw_ns": raw_ns,
        "losses": LOSSES,
        "off": 0.0,
        **more,
    }


def _record(who: str, *step_s: float, peer: str = "rdmatensor") -> Record:
    turns = [
        convergence.record_of(_printed(who, seconds), ABOUT, (who, peer), "shm")
        for seconds in step_s
    ]
    (merged,) = samples.merge(turns)
    return merged


def _records() -> list[Record]:
    return [_record("planned", 1.0), _record("DDP on Gloo", 2.0, peer="gloo")]


def test_a_loss_is_known_when_its_step_begins_in_the_turn_in_the_middle() -> None:
    record = _record("planned", 3.0, 1.0, 2.0)
    assert convergence.seconds_of(record) == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_a_loss_is_reached_only_where_it_stays() -> None:
    record = _record("planned", 1.0)
    assert convergence.reached_s(record, 0.5) == 3.0  # 3 comes sooner, and 5 after it
    assert convergence.reached_s(record, 0.1) == 4.0
    assert convergence.reached_s(record, 0.01) is None
    assert convergence.reached_s(record, 1.0) == 0.0


def test_the_table_has_times_and_says_whose_losses_differ() -> None:
    other = {**_record("server over gRPC, C++", 3.0, peer="grpc-cpp"), "off": 2e-7}
    lines = tables.show([*_records(), other]).splitlines()
    (gloo,) = [line for line in lines if "DDP on Gloo" in line]
    assert gloo.split()[-8:] == ["6", "s", "8", "s", "8", "s", "2.00", "same"]
    (grpc,) = [line for line in lines if "gRPC" in line]
    assert grpc.split()[-2:] == ["3.00", "2e-07"]


def test_the_page_has_a_picture_of_it(tmp_path: Path) -> None:
    result = Result("full", "x", {"cores": 2}, [Run(_records(), 0.0, 1.0)])
    words = page.write(result, tmp_path).read_text(encoding="utf-8")
    assert "Loss over time" in words
    assert (tmp_path / "convergence.png").read_bytes().startswith(b"\x89PNG")


def test_it_is_measured_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def run_ranks(*words: str, **_: Any) -> list[Record]:
        asked.append(words)
        failed = {"contestant": "gloo", "transport": "", "failed": "losses are 0.1 off Gloo's"}
        return [ABOUT, _printed("planned", 1.0), failed]

    monkeypatch.setattr(convergence, "run_ranks", run_ranks)
    monkeypatch.setattr(models.rounds, "take", lambda turns, *_, **__: (turns[0][1](), []))
    monkeypatch.setattr(models, "run_ranks", lambda *_, **__: [ABOUT])
    present = [peer for peer in peers.PEERS if peer.name in PRESENT]
    quiet = rounds.Progress("models", io.StringIO())
    settings = Settings(("models",), models=("gru",), transports=("shm",), converge="lstm")
    learnt, failed = models.measure(settings, present, quiet)
    turns = asked[0][asked[0].index("--turns") + 1]
    assert turns == "planned:shm,adopted:shm,gloo:,grpc_cpp:"
    assert learnt["losses"] == LOSSES
    assert (failed["peer"], failed["missing"]) == (
        "DDP on Gloo, shm",
        "failed: losses are 0.1 off Gloo's",
    )
    assert models.measure(Settings(("models",), models=("gru",)), present, quiet) == []
    assert len(asked) == 1


def test_options_choose_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["models", "--converge", "gru"]
    assert command.settings_of(command._parser().parse_args(words)).converge == "gru"
    with pytest.raises(SystemExit):
        command.main(["p2p", "--converge", "gru"])
    assert "--converge is of models" in capsys.readouterr().err


def test_compare_judges_our_rows(tmp_path: Path) -> None:
    machine: Record = {"processor": "x", "family_model": "1", "cores": 2, "is_virtual": False}
    before, after = (
        Result(
            "full",
            "x",
            machine,
            [
                Run(
                    [_record("planned", *[s] * 3), _record("Gloo", 2.0, 2.0, 2.0, peer="gloo")],
                    0,
                    1,
                )
            ],
        )
        for s in (1.0, 3.0)
    )
    (line,) = compare.compare(before, after)
    assert line.verdict == "worse"
