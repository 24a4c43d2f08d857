"""How tests ended, and what that means next to what Gloo passed."""

from __future__ import annotations

import json
import re
import time
import traceback
import unittest
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from settings import CANNOT_PASS, UNEVEN_LISTS

BAD = ("fail", "error", "hang")
_BRIEF_CHARS = 200
_ERROR = re.compile(r"^[\w.]*(Error|Exception|Timeout)\b.*:")
_EXIT = "exited with error code"  # the parent's words; those of the rank say more
_ENDED = "terminated or timed out"


@dataclass(frozen=True)
class Outcome:
    """status: pass, skip, fail, error or hang. detail: of what is bad, or a skip's reason."""

    test: str
    status: str
    seconds: float
    detail: str = ""

    def brief(self) -> str:
        """Return the line that says most."""
        lines = [line.strip() for line in self.detail.splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR.match(line)]
        best = [line for line in errors if _EXIT not in line] or errors or lines[-1:]
        return best[0][:_BRIEF_CHARS] if best else ""


@dataclass(eq=False)
class Recorder(unittest.TestResult):
    """Collects outcomes; tells each to `say`, but for skips."""

    total: int
    say: Callable[[str], None]
    outcomes: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._start_s = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        super().startTest(test)
        self._start_s = time.monotonic()

    def _add(self, test: unittest.TestCase, status: str, detail: str = "") -> None:
        name = test.id().rpartition(".")[2]
        seconds = time.monotonic() - self._start_s
        self.outcomes.append(Outcome(name, status, seconds, detail))
        if status != "skip":
            self.say(f"[{self.testsRun}/{self.total}] {status:5s} {seconds:6.2f} s {name}")

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._add(test, "pass")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._add(test, "skip", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._add(test, "fail", "".join(traceback.format_exception(*err)))

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        text = "".join(traceback.format_exception(*err))
        is_hang = _ENDED in text and _EXIT not in text
        self._add(test, "hang" if is_hang else "error", text)


@dataclass(frozen=True)
class Baseline:
    """What Gloo passed in one run, under one torch."""

    torch: str
    passed: frozenset[str]

    @classmethod
    def load(cls, path: Path) -> Baseline:
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(content["torch"], frozenset(content["passed"]))


def write_baseline(path: Path, torch: str, outcomes: Iterable[Outcome]) -> None:
    """Keep what passed; refuses outcomes in which something hung."""
    hung = [outcome.test for outcome in outcomes if outcome.status == "hang"]
    if hung:
        raise ValueError(f"no baseline is made of a run in which tests hung: {hung}")
    passed = sorted(outcome.test for outcome in outcomes if outcome.status == "pass")
    content = {"torch": torch, "passed": passed}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def problems(
    outcomes: Sequence[Outcome], wanted: Sequence[str], baseline: Baseline, persona: str
) -> list[str]:
    """Return what is wrong with a run, one line each; an empty list is success.

    wanted: the tests that the run was to have; more of the baseline is not asked for.
    """
    found = []
    status = {outcome.test: outcome.status for outcome in outcomes}
    for outcome in outcomes:
        if outcome.status in BAD and outcome.test not in CANNOT_PASS:
            found.append(f"{outcome.status}: {outcome.test}: {outcome.brief()}")
        if outcome.status == "pass" and outcome.test in CANNOT_PASS:
            found.append(f"passes now, take it off the list of what cannot: {outcome.test}")
    must_pass = set(baseline.passed)
    if persona == "mpi":
        must_pass.update(UNEVEN_LISTS)
    required = sorted(must_pass.intersection(wanted).difference(CANNOT_PASS))
    return found + [
        f"Gloo passes it, here it is {status.get(test, 'lost')}: {test}"
        for test in required
        if status.get(test, "lost") not in ("pass", *BAD)
    ]


def totals(outcomes: Iterable[Outcome]) -> str:
    """Return "91 pass, 194 skip"."""
    counts = Counter(outcome.status for outcome in outcomes)
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
