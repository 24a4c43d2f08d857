"""Calls of a parameter server in JSON: whatever a peer says, the other side goes on or says why."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ps_clusters
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rdmatensor import errors, ps
from rdmatensor.ps.calls import flag, number, parse_answer, region
from rdmatensor.ps.pyrules import described

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=True)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
RULE = {"kind": "SGD", "lr": 0.1}


@dataclass
class Mine(ps.PythonRule):
    """A rule that the server knows."""

    lr: float = 0.5

    def state(self, dim: int) -> int:
        return dim


VALID: list[dict[str, Any]] = [
    {
        "call": "table",
        "table": {
            "name": "t", "dim": 2, "rows": 10, "seed": 1, "consistency": "relaxed",
            "rule": ps.SGD(0.1)._spec(), "init": {"kind": "ZERO", "first": 0.0, "second": 0.0},
        },
    },
    {"call": "queue", "name": "q", "chunks": 5},
    {
        "call": "dense", "name": "d", "rule": ps.SGD(0.1)._spec(), "count": 4, "params_off": 0,
        "params": "00" * 64, "model": [4, "x", "y"],
    },
    {"call": "first values", "name": "d"},
    {"call": "values", "name": "d"},
    {"call": "describe"},
    {
        "call": "table",
        "table": {
            "name": "p", "dim": 2, "rows": 10, "seed": 1, "consistency": "relaxed",
            "rule": described(Mine(), 2)._spec(),
            "init": {"kind": "ZERO", "first": 0.0, "second": 0.0},
        },
    },
    {"call": "feed"},
    {"call": "feed more", "chunks": 3, "last": False},
]  # fmt: skip


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the paths of all values within a call."""
    found = [path]
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for key, one in inner:
        found += places(one, (*path, key))
    return found


@st.composite
def mutated(draw: st.DrawFn) -> object:
    """A valid call, of which up to two values are others or missing."""
    call: Any = copy.deepcopy(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(0, 2))):
        path = draw(st.sampled_from(places(call)))
        if not path:
            return draw(JSON)
        goal = call
        for key in path[:-1]:
            goal = goal[key]
        if isinstance(goal, dict) and draw(st.booleans()):
            del goal[path[-1]]
        else:
            goal[path[-1]] = draw(JSON)
    return call


def test_no_call_ends_a_server(tmp_path: Path) -> None:
    refused, done = [], []

    def main(w: ps.Worker) -> None:
        for call in VALID[:2]:
            w._call(0, call)

        @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
        @given(mutated())
        @example(["call"])
        @example(b"")
        @example(b"\xff{}")
        @example(b"[" * 100_000)
        @example(b"1" * 100_000)
        @example({"call": "table", "table": {**VALID[0]["table"], "rows": 1 << 40, "name": "big"}})
        def say(call: Any) -> None:
            try:
                w._ask(0, "some", call if isinstance(call, bytes) else json.dumps(call).encode())
                done.append(call)
            except errors.RdmaTensorError as error:
                refused.append(str(error))

        say()
        table = w.table("after", 2, rows=4, rule=ps.Add(), init=ps.constant(1.0))
        assert float(table.pull([3]).sum()) == 2.0
        w.clock()

    ps_clusters.run(tmp_path, main, workers=1, servers=1)
    assert all("server 0: " in one for one in refused)
    assert len(refused) > 50
    assert len(done) > 1


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.binary(max_size=40), JSON.map(lambda one: json.dumps(one).encode())))
@example(b"[" * 100_000)
@example(b"1" * 10_000)
@example(b'{"id": true, "rows": "00", "is_ready": 1}')
def test_any_answer_is_read_or_refused_with_the_server(data: bytes) -> None:
    wrong = None
    try:
        found = parse_answer(data, "table", 3, 7, id=number, rows=region, is_ready=flag)
        assert isinstance(found["id"], int)
    except errors.ProtocolError as error:
        wrong = error
    assert wrong is None or (wrong.rank == 7 and "server 3 answered 'table'" in str(wrong))


def test_an_answer_of_the_right_kind_is_read() -> None:
    assert parse_answer(b'{"id": 4, "x": [1]}', "queue", 0, 1, id=number) == {"id": 4, "x": [1]}
    for data, words in (
        (b'{"id": -1}', "id: no number"),
        (b'{"id": 4294967296}', "id: no number"),
        (b'{"id": true}', "id: no number"),
        (b"{}", "id: 'id'"),
        (b"[]", "is not an object"),
    ):
        with pytest.raises(errors.ProtocolError, match=words):
            parse_answer(data, "queue", 0, 1, id=number)
