"""What a choice makes of its measurements, and of gradients while the buckets change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rdmatensor import _choice
from rdmatensor._choice import Choice


class _Lost(RuntimeError):
    """A peer is gone."""


def _switching(monkeypatch: pytest.MonkeyPatch, fails: str, calls: list[str]) -> tuple[Choice, Any]:
    """Return a choice that is about to switch, and the memory that its gradients lie in."""

    def call(name: str) -> Any:
        def called(*given: object) -> object:
            calls.append(name)
            if name == fails:
                raise _Lost
            return given[1] if name == "agree" else None  # alone: what it says itself

        return called

    monkeypatch.setattr(_choice, "check_plan", call("check"))
    monkeypatch.setattr(Choice, "_agree", call("agree"))
    monkeypatch.setattr(Choice, "_use", call("use"))
    choice = Choice.__new__(Choice)
    state = {"_next": True, "_again": "other", "_current": "planned", "_group": None}
    vars(choice).update(state, _is_compared=False, _faster={}, _algorithms=None)
    memory = SimpleNamespace(lift=call("lift"), lower=call("lower"), is_free=lambda: True)
    return choice, memory


def test_gradients_are_lifted_once_all_ranks_have_one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    choice, memory = _switching(monkeypatch, "", calls)
    assert choice.switched(memory) == "other"
    assert calls == ["check", "lift", "agree", "use"]


@pytest.mark.parametrize(
    ("fails", "wanted"),
    [
        ("check", ["check"]),
        ("lift", ["check", "lift", "agree", "lower"]),  # it tells the others before
        ("agree", ["check", "lift", "agree", "lower"]),
        ("use", ["check", "lift", "agree", "use", "lower"]),
    ],
)
def test_gradients_are_where_they_were_if_a_rank_is_lost(
    monkeypatch: pytest.MonkeyPatch, fails: str, wanted: list[str]
) -> None:
    calls: list[str] = []
    choice, memory = _switching(monkeypatch, fails, calls)
    with pytest.raises(_Lost):
        choice.switched(memory)
    assert calls == wanted


def _judged(monkeypatch: pytest.MonkeyPatch, taken: list[int]) -> list[tuple[int, bool]]:
    """Let steps 3 and on take so long; return after which ones who has the next: the choice?"""
    monkeypatch.setattr(Choice, "_agree", lambda _self, numbers, _how: numbers)
    choice = Choice.__new__(Choice)
    vars(choice).update(_next=True, _is_done=False, _took_ns={}, text="", _choose=lambda _memory: 0)
    memory: Any = None
    said = []
    for step, took_ns in enumerate(taken, start=3):
        if choice._is_done:
            break
        choice._step, choice._waited_ns, choice._next = step, 0, None
        choice._begin_ns = -took_ns
        choice.end_step(memory)
        if choice._next is not None:
            said.append((step, choice._next))
    return said


@pytest.mark.parametrize(
    ("taken", "wanted"),
    [
        # Slower, as fast, and no faster than noise: as planned, at once.
        ([100, 100, 120, 110], [(6, False)]),
        ([100, 100, 100, 100], [(6, False)]),
        ([100, 100, 97, 100], [(6, False)]),
        # Faster twice: planned steps in between, and then for good.
        ([100, 105, 95, 80, 110, 100, 81, 90], [(6, False), (8, True)]),
        # The machine was busy in the first planned steps only.
        ([200, 190, 100, 110, 100, 99, 100, 104], [(6, False), (8, True), (10, False)]),
        # One busy step on each side decides nothing.
        ([100, 300, 500, 80, 100, 100, 80, 80], [(6, False), (8, True)]),
    ],
)
def test_a_choice_stays_only_if_it_was_judged_faster_twice(
    monkeypatch: pytest.MonkeyPatch, taken: list[int], wanted: list[tuple[int, bool]]
) -> None:
    monkeypatch.setattr(_choice, "time", SimpleNamespace(perf_counter_ns=lambda: 0))
    assert _judged(monkeypatch, taken) == wanted


def test_of_each_step_the_slowest_rank_counts() -> None:
    """One rank fast in the one step and another in the other make no step that was fast."""
    asked: list[tuple[list[float], str]] = []

    def agree(numbers: list[float], how: str) -> list[float]:
        asked.append((numbers, how))
        return [100.0, 100.0, 100.0, 100.0]  # the other rank was slow where this one was not

    choice = Choice.__new__(Choice)
    took_ns = {3: 100, 4: 100, 5: 50, 6: 100}
    vars(choice).update(_step=6, _took_ns=took_ns, _is_done=False, text="", _agree=agree)
    choice._judge()
    assert asked == [([100.0, 100.0, 50.0, 100.0], "max")]
    assert choice._is_done
    assert choice.text == ", taken back after step 6: 1.00 of the time"
