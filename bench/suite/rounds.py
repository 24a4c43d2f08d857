"""Rounds: each peer has a turn in each, so that a noisy moment hits all of them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, TextIO

from bench.benchlib.record import Record

try:
    import tqdm
except ModuleNotFoundError:
    tqdm = None
else:
    tqdm.tqdm.monitor_interval = 0  # no thread next to what is measured

FAILED = "failed:"
# What running others' programs ends in; all else is a mistake of the suite.
_FAILURES = (RuntimeError, OSError, subprocess.SubprocessError)
_BAR = "{desc} {percentage:3.0f}%|{bar:20}| {n}/{total} turns{postfix}"
NO_BAR = "a progress bar needs tqdm (pip install tqdm); a line a round instead"
Turn = Callable[[], list[Record]]


class Progress:
    """Says what runs: a bar on a terminal, else a line a round.

    The bar has the turns of those that rounds could have at most, and how much of the time that
    they may take is over: whichever is used up first ends them.
    """

    def __init__(
        self,
        topic: str,
        stream: TextIO | None = None,
        keep: Callable[[list[Record]], None] | None = None,
    ) -> None:
        """keep: gets all turns so far after each round, so that a run may be ended at any time."""
        self._keep = keep
        self._topic, self._stream = topic, sys.stderr if stream is None else stream
        self._began_s = time.monotonic()
        self._seconds = 0.0
        self._bar: tqdm.tqdm[NoReturn] | None = None
        self._has_bar = self._stream.isatty() and tqdm is not None
        if self._stream.isatty() and not self._has_bar:
            self._stream.write(f"{topic}: {NO_BAR}\n")

    def begin(self, turns: int, seconds: float) -> None:
        """Show that so many turns begin, or as many of them as the seconds allow."""
        self._began_s, self._seconds = time.monotonic(), seconds
        if self._has_bar:
            self._bar = tqdm.tqdm(
                total=turns,
                desc=self._topic,
                file=self._stream,
                leave=False,
                dynamic_ncols=True,
                mininterval=0,
                bar_format=_BAR,
            )

    def say(self, what: str, *, is_round: bool = False) -> None:
        """Show what begins now."""
        taken_s = time.monotonic() - self._began_s
        if self._bar is not None:
            share = min(1.0, taken_s / self._seconds)
            self._bar.set_postfix_str(f"{share:.0%} of {self._seconds:.0f} s, {what}")
        elif is_round:
            self._stream.write(f"{self._topic}  {taken_s:4.0f} s  {what}\n")
            self._stream.flush()

    def advance(self) -> None:
        """Show that a turn is over, or will not be taken."""
        if self._bar is not None:
            self._bar.update()

    def keep(self, found: list[Record]) -> None:
        """Keep all turns so far."""
        if self._keep is not None:
            self._keep(found)

    def failure(self, name: str, error: Exception) -> Record:
        """Return the record of a turn that failed."""
        return {"topic": self._topic, "peer": name, "missing": f"{FAILED} {error}", "get": ""}

    def left_out(self, name: str) -> Record:
        """Return the record of a turn for which there was no time."""
        why = {"missing": "no time for it in this run", "get": "more of it"}
        return {"topic": self._topic, "peer": name, "left_out": True, **why}

    def end(self) -> None:
        """Leave the terminal's line to others."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


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
    progress.begin(len(turns) * rounds, seconds)
    began_s = clock()
    for number in range(rounds):
        started_s = clock()
        progress.say(f"round {number + 1} of up to {rounds}", is_round=True)
        first = number % len(turns)
        for name, turn in [*turns[first:], *turns[:first]]:
            if is_strict and name not in broken and clock() - began_s > seconds:
                failed += [progress.left_out(name)] if number == 0 else []
            elif name not in broken:
                progress.say(f"round {number + 1} of up to {rounds}: {name}")
                try:
                    found += turn()
                except _FAILURES as error:
                    broken.add(name)
                    failed.append(progress.failure(name, error))
            progress.advance()
        progress.keep(found)
        ended_s = clock()
        beyond_s = 0.0 if is_strict else (ended_s - started_s) / 2
        if ended_s - began_s + beyond_s > seconds:
            break
    progress.end()
    return found, failed
