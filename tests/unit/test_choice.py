"""A planned model's gradients while its buckets change: none is lost where a step fails."""

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

    def call(name: str, result: object = None) -> Any:
        def called(*_: object) -> object:
            calls.append(name)
            if name == fails:
                raise _Lost
            return result

        return called

    monkeypatch.setattr(_choice, "check_plan", call("check"))
    monkeypatch.setattr(Choice, "_agree", call("agree", [1.0]))
    monkeypatch.setattr(Choice, "_use", call("use"))
    choice = Choice.__new__(Choice)
    state = {"_next": "other", "_current": None, "_group": None, "_step": 5}
    vars(choice).update(state, _faster={}, _algorithms=None)
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
        ("lift", ["check", "lift", "lower"]),
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
