"""describe(): it has the keys and types that rdmatensor.state says, and a short text."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from rdmatensor import Context, FileStore, Settings, join, state
from rdmatensor._observe.brief import brief_of


def wrong(value: object, kind: typing.Any, where: str) -> Iterator[str]:
    """Yield what of a value is not as its type says."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if typing.is_typeddict(kind):
        yield from _wrong_keys(value, kind, where)
    elif origin is list and isinstance(value, list):
        for part in value:
            yield from wrong(part, parts[0], f"{where}[]")
    elif origin is dict and isinstance(value, dict):
        for name, part in value.items():
            yield from wrong(part, parts[1], f"{where}.{name}")
    elif not _is_one(value, kind, origin, parts):
        yield f"{where} is {value!r}, not {kind}"


def _is_one(value: object, kind: typing.Any, origin: object, parts: tuple[typing.Any, ...]) -> bool:
    if origin is typing.Literal:
        return value in parts
    if origin in (typing.Union, types.UnionType):
        return any(not list(wrong(value, part, "")) for part in parts)
    return origin is None and isinstance(value, (int, float) if kind is float else kind)


def _wrong_keys(value: object, kind: typing.Any, where: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{where} is {value!r}"
        return
    hints = typing.get_type_hints(kind)
    for name in kind.__required_keys__ - set(value):
        yield f"{where}.{name} is missing"
    for name, part in value.items():
        if name in hints:
            yield from wrong(part, hints[name], f"{where}.{name}")
        else:
            yield f"{where}.{name} is not declared"


@pytest.fixture
def contexts() -> Iterator[tuple[Context, Context]]:
    settings = Settings(transport="shm", loopback=True, arena_mib=1, secret=b"state")
    with Context(settings) as left, Context(settings) as right:
        left.add_job(rank=0)
        right.add_job(rank=1)
        with left.connect(right.address, rank=1) as to_right, right.connect(left.address):
            to_right.wait_ready(10)
            yield left, right


def test_a_context_is_described_as_its_type_says(contexts: tuple[Context, Context]) -> None:
    left, _ = contexts
    found = left.describe()
    assert list(wrong(found, state.ContextState, "state")) == []
    assert found["endpoints"][0]["path"] == "shm"
    assert set(found["counters"]) == set(left.counters().__dataclass_fields__)


def test_a_job_and_its_groups_are_described_too(tmp_path: object) -> None:
    with join(FileStore(str(tmp_path)), 0, 1) as world, world.group("all") as group:
        group.all_reduce(np.ones(3)).wait()
        found = world.describe()
        assert list(wrong(found, state.ContextState, "state")) == []
        assert found["job"]["size"] == 1
        assert found["groups"][0]["name"] == "all"


def test_the_check_sees_what_is_not_declared() -> None:
    kind = {"is_viable": 1.5, "why": ""}
    assert sorted(wrong(kind, state.TransportState, "t")) == [
        "t.is_viable is 1.5, not <class 'bool'>", "t.reason is missing", "t.why is not declared",
    ]  # fmt: skip


def test_the_short_text_has_what_matters(contexts: tuple[Context, Context]) -> None:
    left, _ = contexts
    lines = left.describe_text().splitlines()
    assert len(lines) <= 8
    assert lines[0].startswith("rdmatensor ")
    assert "shm (ok)" in lines[1]
    assert lines[2].startswith("peer 1: shm (same host, ")
    assert any(line.startswith("arena: ") for line in lines)
    assert len(left.describe_text(verbose=True).splitlines()) > 20


def test_peers_with_one_path_are_one_line(contexts: tuple[Context, Context]) -> None:
    found = contexts[0].describe()
    (one,) = found["endpoints"]
    for rank in (2, 3):
        lane = one["lane"].replace(f"process {one['pid']}", f"process {rank}")
        found["endpoints"].append({**one, "rank": rank, "lane": lane})
    assert "\npeers 1, 2, 3: shm (same host, " in brief_of(found)
