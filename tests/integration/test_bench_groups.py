"""Groups of training processes that take blocks in turns; nobody trains here."""

from __future__ import annotations

import faulthandler
import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.workers import models
from bench.workers.model_groups import Group, Line, forwards_and_back
from bench.workers.trainers import Job

PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def _no_watchdog() -> None:
    """A forked child would wait for the watchdog's thread, which it does not have, to set its own.

    pytest-timeout ends a test that hangs all the same.
    """
    faulthandler.cancel_dump_traceback_later()


def _group(*ranks: Callable[[Line], None], patience_s: float = PATIENCE_S) -> Group:
    return Group("a group", [], ranks, {}, patience_s)


def _count(path: Path, line: Line) -> None:
    for number, _ in enumerate(line.blocks()):
        with path.open("a", encoding="utf-8") as words:
            words.write(f"block {number}\n")
    with path.open("a", encoding="utf-8") as words:
        words.write("end\n")


def _raise_in_a_block(line: Line) -> None:
    for _ in line.blocks():
        raise ValueError("a mistake")


def _leave_in_a_block(line: Line) -> None:
    for _ in line.blocks():
        os._exit(0)


def _hang_in_a_block(line: Line) -> None:
    for _ in line.blocks():
        time.sleep(600)


def test_a_block_is_over_when_all_ranks_are_done(tmp_path: Path) -> None:
    paths = [tmp_path / "0", tmp_path / "1"]
    group = _group(*(functools.partial(_count, path) for path in paths))
    group.await_ready()
    for number in range(3):
        group.take_block()
        words = "".join(f"block {of}\n" for of in range(number + 1))
        assert [path.read_text(encoding="utf-8") for path in paths] == [words, words]
    group.end()
    assert all(path.read_text(encoding="utf-8").endswith("end\n") for path in paths)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (_raise_in_a_block, "a group: .* a process ended with status 1"),
        (_leave_in_a_block, "a group: a rank left before its time"),
        (_hang_in_a_block, "a group: .* a process ended with status 1"),  # and said where
    ],
)
@pytest.mark.timeout(60)
def test_a_rank_that_fails_ends_its_group(
    tmp_path: Path, act: Callable[[Line], None], words: str
) -> None:
    group = _group(functools.partial(_count, tmp_path / "0"), act, patience_s=3.0)
    group.await_ready()
    with pytest.raises(RuntimeError, match=words):
        group.take_block()
    group.kill()  # nobody is left, and that is no error


def test_helpers_run_beside_the_ranks_until_these_end(tmp_path: Path) -> None:
    def help_them() -> None:
        while not (tmp_path / "0").exists():
            time.sleep(0.01)

    counts = functools.partial(_count, tmp_path / "0")
    group = Group("a group", [help_them], [counts], {"HELPED": "1"}, PATIENCE_S)
    group.await_ready()
    group.take_block()
    group.end()
    assert "HELPED" not in os.environ  # it is theirs


@pytest.mark.timeout(60)
def test_a_helper_that_outstays_its_ranks_is_ended(tmp_path: Path) -> None:
    def stay() -> None:
        time.sleep(600)

    counts = functools.partial(_count, tmp_path / "0")
    group = Group("a group", [stay], [counts], {}, 1.0)
    group.await_ready()
    with pytest.raises(RuntimeError, match="a group: 1 processes do not end"):
        group.end()


def test_blocks_go_forwards_and_back() -> None:
    orders = ["".join(forwards_and_back("abc", number)) for number in range(3)]
    assert orders == ["abc", "cba", "abc"]


@pytest.mark.parametrize(("room", "beside"), [(4, [2, 2, 2]), (2, [1, 1, 0]), (1, [0, 0, 0])])
def test_those_without_room_have_their_turns_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, room: int, beside: list[int]
) -> None:
    """room: of how many peers the memory is."""
    log: list[str] = []
    standing: list[str] = []

    class Standing:
        is_there = True

        def __init__(self, job: Job, *_: object) -> None:
            self.said: dict[str, Any] = {"name": job.name}
            self._name = job.name
            standing.append(self._name)

        def take_block(self) -> None:
            assert self._name in standing
            log.append(self._name)

        def end(self) -> None:
            standing.remove(self._name)

        def kill(self) -> None:
            raise AssertionError("all ended by themselves")

    monkeypatch.setattr(models, "Standing", Standing)
    monkeypatch.setattr(models, "has_room", lambda _: len(standing) < room)
    job = functools.partial(Job, model="fcn5", divisor=64, ranks=2, steps=1)
    jobs = [(job(who, plan=tmp_path, folder=tmp_path, patience_s=1.0), "shm") for who in "abc"]
    found = list(models.run_together(jobs, 2, tmp_path, PATIENCE_S))
    assert [one["name"] for one in found] == ["a", "b", "c"]
    assert [one["beside"] for one in found] == beside
    assert "".join(log) == {4: "abccba", 2: "abbacc", 1: "aabbcc"}[room]
    assert not standing
