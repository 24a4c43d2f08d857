"""Rounds: everybody has a turn in each, so that a noisy moment hits all of them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from bench.benchlib.record import Record

FAILED = "failed:"
# What running others' programs ends in; all else is a mistake of the suite.
_FAILURES = (RuntimeError, OSError, subprocess.SubprocessError)
Turn = Callable[[], list[Record]]


class Progress:
    """Says what runs: one line that is written over on a terminal, else a line a round."""

    def __init__(self, topic: str, stream: TextIO | None = None) -> None:
        self._topic, self._stream = topic, sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._began_s = time.monotonic()
        self._width = 0

    def say(self, what: str, *, is_round: bool = False) -> None:
        """Show what begins now."""
        if not self._is_terminal and not is_round:
            return
        line = f"{self._topic}  {time.monotonic() - self._began_s:4.0f} s  {what}"
        if self._is_terminal:
            self._stream.write(f"\r{line.ljust(self._width)}")
            self._width = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def failure(self, name: str, error: Exception) -> Record:
        """Return the record of a turn that failed."""
        return {"topic": self._topic, "peer": name, "missing": f"{FAILED} {error}", "get": ""}

    def left_out(self, name: str) -> Record:
        """Return the record of a turn for which there was no time."""
        why = {"missing": "no time for it in this run", "get": "more of it"}
        return {"topic": self._topic, "peer": name, "left_out": True, **why}

    def end(self) -> None:
        """Leave the terminal's line to others."""
        if self._is_terminal:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()


def take(
    turns: Sequence[tuple[str, Turn]],
    rounds: int,
    seconds: float,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
    *,
    is_strict: bool = False,
) -> tuple[list[Record], list[Record]]:
    """Give all a turn in each round, beginning with another one each time.

    Returns the records of the turns, and one for each turn that failed, which is not taken again,
    or was left out.

    The first round is always ended; no further one begins after `seconds`, nor where the last one
    tells that it would end later than a half of itself after them. is_strict: no turn begins after
    `seconds`, in the first round either.
    """
    found: list[Record] = []
    failed: list[Record] = []
    broken: set[str] = set()
    began_s = clock()
    for number in range(rounds):
        started_s = clock()
        progress.say(f"round {number + 1} of up to {rounds}", is_round=True)
        first = number % len(turns)
        for name, turn in [*turns[first:], *turns[:first]]:
            if name in broken:
                continue
            if is_strict and clock() - began_s > seconds:
                failed += [progress.left_out(name)] if number == 0 else []
                continue
            progress.say(f"round {number + 1} of up to {rounds}: {name}")
            try:
                found += turn()
            except _FAILURES as error:
                broken.add(name)
                failed.append(progress.failure(name, error))
        ended_s = clock()
        beyond_s = 0.0 if is_strict else (ended_s - started_s) / 2
        if ended_s - began_s + beyond_s > seconds:
            break
    progress.end()
    return found, failed
