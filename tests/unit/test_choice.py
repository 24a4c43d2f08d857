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


@pytest.mark.parametrize("is_again", [True, False])
def test_what_is_in_use_stays_whole_where_gradients_are_held(
    monkeypatch: pytest.MonkeyPatch, *, is_again: bool
) -> None:
    """The algorithms with the buckets, also where it was to be as planned again."""
    calls: list[str] = []
    choice, memory = _switching(monkeypatch, "", calls)
    memory.is_free = lambda: False
    vars(choice).update(_next=is_again, _current="planned" if is_again else "other", text="")
    vars(choice).update(_planned="planned")
    assert choice.switched(memory) is None
    assert "use" not in calls
    assert choice._is_done
    assert choice.text.endswith("left as planned" if is_again else "left as chosen again")


def _judged(monkeypatch: pytest.MonkeyPatch, taken: list[int]) -> list[tuple[int, bool]]:
    """Let steps 3 and on take so long; return after which ones who has the next: the choice?"""
    monkeypatch.setattr(Choice, "_agree", lambda _self, numbers, _how: numbers)
    choice = Choice.__new__(Choice)
    vars(choice).update(_is_done=False, _took_ns={}, text="")
    vars(choice).update(_choose=lambda _memory: vars(choice).update(_next=True))
    memory: Any = None
    said = []
    for step, took_ns in enumerate(taken, start=3):
        choice._step, choice._waited_ns, choice._next = step, 0, None
        choice._begin_ns = -took_ns
        choice.end_step(memory)
        if choice._next is not None:
            said.append((step, choice._next))
    return said


@pytest.mark.parametrize(
    ("taken", "is_kept"),
    [
        # Slower, as fast, and no faster than noise.
        ([100, 120, 110, 100, 100, 120, 120, 100], False),
        ([100, 100, 100, 100, 100, 100, 100, 100], False),
        ([100, 97, 96, 100, 100, 97, 97, 100], False),
        # Faster beside each planned step, and beside three of four.
        ([100, 80, 81, 105, 110, 90, 80, 100], True),
        ([100, 500, 80, 100, 100, 80, 80, 100], True),
        # The machine was busy in half of the planned steps, or in all but one.
        ([200, 100, 100, 190, 100, 99, 100, 100], False),
        ([200, 100, 100, 190, 180, 99, 100, 100], False),
        # It became slower and slower, or faster and faster, whatever the buckets.
        ([100, 110, 121, 133, 146, 161, 177, 195], False),
        ([195, 177, 161, 146, 133, 121, 110, 100], False),
    ],
)
def test_a_choice_stays_only_if_steps_by_it_were_faster_in_turns(
    monkeypatch: pytest.MonkeyPatch, taken: list[int], *, is_kept: bool
) -> None:
    monkeypatch.setattr(_choice, "time", SimpleNamespace(perf_counter_ns=lambda: 0))
    in_turns = [(3, True), (5, False), (7, True), (9, False)]
    assert _judged(monkeypatch, taken) == in_turns + [(10, True)] * is_kept


def test_of_each_step_the_slowest_rank_counts() -> None:
    """Rank 1 was slow where this one was not: no step by the choice was fast."""
    asked: list[tuple[list[float], str]] = []

    def agree(numbers: list[float], how: str) -> list[float]:
        asked.append((numbers, how))
        return [100.0] * len(numbers)

    choice = Choice.__new__(Choice)
    took_ns = {3: 100, 4: 50, 5: 51, 6: 101, 7: 102, 8: 52, 9: 53, 10: 103}
    vars(choice).update(_step=10, _took_ns=took_ns, _is_done=False, text="", _agree=agree)
    choice._judge()
    assert asked == [([100.0, 50.0, 101.0, 51.0, 102.0, 52.0, 103.0, 53.0], "max")]
    assert choice._is_done
    assert choice.text == ", taken back after step 10: 1.00 of the time, faster in 0 of 4 pairs"
