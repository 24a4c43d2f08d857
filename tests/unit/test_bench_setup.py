"""`rdmatensor bench --quick` and `bench setup` end in time, and say what they left out."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_made_up import result_of

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib import ladder
from bench.benchlib.record import Record
from bench.suite import compare, peers, rounds, setup, tables
from bench.suite.settings import Settings

GLOO = peers.Peer("gloo", "somebody", ("setup",), lambda _: "")


def _climbed(seconds: float, of_turn: dict[int, float], turns: int = 1) -> list[int]:
    """Climb where a turn of so many ranks takes so long."""
    now_s = 100.0

    def clock() -> float:
        return now_s

    found = []
    for ranks in ladder.climb(list(of_turn), lambda _: turns, seconds, clock):
        found.append(ranks)
        now_s += turns * of_turn[ranks]
    return found


def test_no_number_of_ranks_begins_that_would_end_too_late() -> None:
    of_turn = {2: 1.0, 4: 2.0, 8: 4.0, 16: 8.0}
    assert _climbed(15.0, of_turn) == [2, 4, 8, 16]
    assert _climbed(14.9, of_turn) == [2, 4, 8]
    assert _climbed(0.0, of_turn) == [2]  # something is measured
    assert _climbed(13.9, of_turn, turns=2) == [2, 4]


def test_what_a_number_takes_follows_from_the_last_two() -> None:
    assert ladder.expected_s([(2, 1.0)], 4) == 2.0
    assert ladder.expected_s([(2, 1.0), (4, 3.0)], 8) == pytest.approx(9.0)
    assert ladder.expected_s([(2, 1.0), (4, 0.5)], 8) == 1.0  # more ranks take no less
    assert ladder.expected_s([(2, 0.1), (4, 10.0)], 8) == 40.0  # a hiccup is no law


def test_no_turn_of_a_quick_run_begins_too_late() -> None:
    now_s = [0.0]

    def turn() -> list[Record]:
        now_s[0] += 10.0
        return [{}]

    quiet = rounds.Progress("x", io.StringIO())
    turns = [(name, turn) for name in "abcd"]
    found, left = rounds.take(turns, 9, 15.0, quiet, lambda: now_s[0], is_strict=True)
    assert [len(found), *(one["peer"] for one in left)] == [2, "c", "d"]
    assert "missing in x: d (no time for it in this run)" in tables.missing(left)[1]
    found, left = rounds.take(turns, 9, 55.0, quiet, lambda: now_s[0], is_strict=True)
    assert (len(found), left) == (6, [])  # who lacks a turn of a later round has others


def _measure(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, reached: dict[str, int]
) -> tuple[list[Record], list[float], str]:
    """Measure where each path reaches so many ranks; the records, the limits, what was said."""
    limits: list[float] = []

    def run_ranks(
        worker: str, size: int, options: dict[str, Any], environment: dict[str, str], **_: Any
    ) -> list[Record]:
        assert (worker, size) == ("setup", 1)
        limits.append(options["seconds"])
        return [
            {"name": who, "op": "barrier", "ranks": n, "took_ns": n, "rank_bytes": 1}
            for n in options["ranks"]
            if n <= reached[environment["RDMATENSOR_TRANSPORT"]]
            for who in options["backends"]
        ]

    monkeypatch.setattr(setup, "run_ranks", run_ranks)
    said = io.StringIO()
    return setup.measure(settings, [GLOO], rounds.Progress("setup", said)), limits, said.getvalue()


def test_what_there_was_no_time_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(("setup",), rounds=2)
    found, limits, said = _measure(monkeypatch, settings, {"shm": 128, "tcp": 32})
    assert limits == [settings.seconds_of("setup") / 2] * 4
    assert said.count("tcp: 32 ranks, and no time for more") == 2
    assert "shm: 128" not in said
    left_out = [one["peer"] for one in found if "missing" in one]
    assert left_out == ["64 ranks over tcp", "128 ranks over tcp"]
    shown = tables.show(found)
    line = "missing in setup: 128 ranks over tcp (not begun, as it would have ended after 450 s)"
    assert f"{line}; to get it: --ranks 128, however long it takes" in shown
    result = result_of(found, "setup")
    more, *_ = _measure(monkeypatch, settings, {"shm": 128, "tcp": 128})
    verdicts = [line.verdict for line in compare.compare(result_of(more, "setup"), result)]
    assert "gone" not in verdicts  # it was slower perhaps, but nothing is lost


def test_who_names_the_ranks_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(("setup",), transports=("shm",), ranks=12, rounds=1)
    found, limits, _ = _measure(monkeypatch, settings, {"shm": 12})
    assert limits == [float("inf")]
    assert sorted({int(str(one["ranks"])) for one in found}) == [2, 4, 8, 12]
