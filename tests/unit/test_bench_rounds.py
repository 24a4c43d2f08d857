"""Rounds of the suite: who has a turn when, and what is shown meanwhile."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.record import Record
from bench.suite import rounds


def test_everybody_leads_a_round_once() -> None:
    order: list[str] = []
    turns = [(name, lambda name=name: order.append(name) or [{}]) for name in "abc"]
    quiet = rounds.Progress("x", io.StringIO())
    found, _ = rounds.take(turns, 3, 1e9, quiet)
    assert "".join(order) == "abcbcacab"
    assert len(found) == 9


def test_no_round_begins_after_its_time() -> None:
    now = [0.0]

    def turn() -> list[Record]:
        now[0] += 10.0
        return [{}]

    quiet = rounds.Progress("x", io.StringIO())
    turns = [("a", turn)]
    assert len(rounds.take(turns, 100, 1.0, quiet, clock=lambda: now[0])[0]) == 1
    assert len(rounds.take(turns, 100, 35.0, quiet, clock=lambda: now[0])[0]) == 4
    assert len(rounds.take(turns, 2, 35.0, quiet, clock=lambda: now[0])[0]) == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_has_a_line_a_round_and_a_terminal_a_bar() -> None:
    for stream, has_bar in ((io.StringIO(), False), (Terminal(), True)):
        progress = rounds.Progress("p2p", stream)
        turns = [(name, lambda: [{}]) for name in "ab"]
        rounds.take(turns, 2, 1e9, progress)
        said = stream.getvalue()
        assert ("\n" in said) != has_bar
        assert "round 2 of up to 2" in said
        assert ("3/4 turns, 0% of 1000000000 s, round 2 of up to 2: a" in said) == has_bar
        assert ("%|" in said) == has_bar


def test_a_bar_counts_turns_that_nobody_takes_any_more() -> None:
    def fail() -> list[Record]:
        raise RuntimeError("no figures")

    stream = Terminal()
    rounds.take([("a", lambda: [{}]), ("b", fail)], 2, 1e9, rounds.Progress("p2p", stream))
    assert "100%|" in stream.getvalue()


def test_without_tqdm_a_terminal_has_lines_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "tqdm", None)
    stream = Terminal()
    rounds.take([("a", lambda: [{}])], 2, 1e9, rounds.Progress("p2p", stream))
    told, *lines = stream.getvalue().splitlines()
    assert "pip install tqdm" in told
    assert [line.rpartition("  ")[2] for line in lines] == [
        "round 1 of up to 2",
        "round 2 of up to 2",
    ]
