"""Run cases in both ways, and say of each whether it is right."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fuzz_training.case import Case
from tests.fuzz_training.judge import (
    PART_FIRST,
    PART_LATER,
    PART_SHORT,
    difference,
    ranks_part,
)
from tests.fuzz_training.pool import Pool
from tests.fuzz_training.worker import Outcome

# What a plan refuses, by its words, and of which cases: "rdmatensor.plan" documents each.
REFUSALS: tuple[tuple[str, Callable[[Case], bool]], ...] = (
    ("sparse", lambda case: case.has("sparse")),
    ("is frozen now", lambda case: bool(case.get("frozen_later"))),
    ("is trained now", lambda case: bool(case.get("unfrozen_later"))),
    ("whose graph did not use it", lambda case: case.get("unused") is not None),
    ("in the same backward pass", lambda case: case.get("checkpoint") == "reentrant"),
    ("has a plan|share", lambda case: case.get("second") == "shared"),
)
REFUSED_BY = ("PlanMismatchError", "InvalidArgumentError")


@dataclass(frozen=True)
class Verdict:
    """How a case ended.

    kind: "same", "agreed" (both raised), "refused", "only oracle" (raised), "failed", or
    "undecided" (Gloo hangs, dies, or raises on some ranks only).
    """

    kind: str
    words: str = ""
    born: int = 0


@dataclass
class Summary:
    kinds: Counter[str] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[Case, Verdict]] = field(default_factory=list)
    born: int = 0  # gradients of one rank

    def add(self, case: Case, verdict: Verdict) -> None:
        self.kinds[verdict.kind] += 1
        self.born += verdict.born
        if verdict.kind == "failed":
            self.failures.append((case, verdict))
        elif verdict.words:
            self.words[f"{verdict.kind}: {verdict.words[:110]}"] += 1


def judge(case: Case, pool: Pool) -> Verdict:
    """Run a case in both ways."""
    wanted = pool.ask(case, "oracle")
    if case.mode == "plan" and not case.is_by_hand() and all(o.error for o in wanted):
        wanted = pool.ask(case, "by hand")  # what DDP does not train, a plan may
    errors = {outcome.error for outcome in wanted}
    if "Hangs" in errors or "Died" in errors or (len(errors) > 1 and "" in errors):
        return Verdict("undecided", f"the oracle itself: {_first_line(wanted)}")
    found = pool.ask(case, "subject")
    why = _compared(case, wanted, found)
    if why:
        return Verdict("failed", f"{why}; {_told(found)}" if _told(found) else why)
    is_oracle_ended = bool(wanted[0].error)
    is_ended = [bool(outcome.error) for outcome in found]
    if any(is_ended) and not all(is_ended):
        return Verdict("failed", f"an error on some ranks only: {_told(found)}")
    if not any(is_ended):
        same = ("only oracle", _first_line(wanted)) if is_oracle_ended else ("same", "")
        return Verdict(*same, born=found[0].born)
    refusal = _refusal(case, found)
    if refusal:
        return Verdict("refused", refusal)
    if not is_oracle_ended:
        return Verdict("failed", f"the oracle trains, this raises: {_told(found)}")
    is_other_step = len(wanted[0].steps) != len(found[0].steps)
    if is_other_step:
        return Verdict("failed", f"another error than the oracle's {_told(wanted)}; {_told(found)}")
    # A callback of torch wraps some errors of one backend and not of the other.
    return Verdict("agreed", _first_line(wanted))


def _compared(case: Case, wanted: list[Outcome], found: list[Outcome]) -> str:
    """Return the first difference in steps that both ways made."""
    count = min(len(outcome.steps) for outcome in [*wanted, *found])
    # Where DDP raises, sums of the step before may have been left under way: what a parameter
    # without a gradient does is found out by the next forward pass.
    if wanted[0].error and case.mode != "plan":
        count -= 1
    for step in range(count):
        part = _allowed_part(case, step)
        for rank, (theirs, mine) in enumerate(zip(wanted, found, strict=True)):
            why = difference(theirs.steps[step], mine.steps[step], part=part)
            if why:
                return f"step {step}, rank {rank}: {why}"
        why = ranks_part([o.steps[step] for o in found], [o.steps[step] for o in wanted])
        if why:
            return f"step {step}: {why}"
    return ""


def _allowed_part(case: Case, step: int) -> float:
    """Return the part of a tensor's largest element by which it may be off after a step."""
    if case.world == 2 or case.is_summed_by_rank():
        return 0.0
    if case.is_short():
        return PART_SHORT if step == 0 else math.inf
    return PART_FIRST if step == 0 else PART_LATER


def _refusal(case: Case, found: list[Outcome]) -> str:
    for outcome in found:
        if case.mode == "plan" and outcome.error in REFUSED_BY:
            for words, is_so in REFUSALS:
                if re.search(words, outcome.words) and is_so(case):
                    return words
    return ""


def _first_line(outcomes: list[Outcome]) -> str:
    line = (outcomes[0].words.strip().splitlines() or [""])[0]
    return f"{outcomes[0].error}: {re.sub(r'[0-9]+', 'N', line)}"


def _told(outcomes: list[Outcome]) -> str:
    return "; ".join(
        f"rank {rank}, after {len(outcome.steps)} steps: {outcome.error}: {outcome.words[-1500:]}"
        for rank, outcome in enumerate(outcomes)
        if outcome.error
    )


def minimised(case: Case, is_failing: Callable[[Case], bool]) -> Case:
    """Return the case without what it fails without."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        smaller = [case.without_feature(name) for name in case.features]
        smaller += [case.without_piece(piece) for piece in case.pieces]
        for one in smaller:
            if is_failing(one):
                case, is_smaller = one, True
                break
    return case
