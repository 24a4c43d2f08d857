"""Plans on disk: same bytes, round trip, and a clear PlanError for everything else."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from generated_graphs import graphs
from hypothesis import given
from hypothesis import strategies as st

from graph_analysis.build import build_plan
from graph_analysis.errors import PlanError
from graph_analysis.ir import Graph, Op, Symbol, SymbolicDim, Value
from graph_analysis.plan import canonical_json, first_difference
from graph_analysis.plan_json import VERSION, plan_from_json, plan_to_json
from graph_analysis.strategies import DataParallel

pytestmark = pytest.mark.timeout(300)


def _graph() -> Graph:
    weight = Value("w", "parameter", "float32", 4, (3, 5))
    bias = Value("b", "parameter", "float32", 4, (5,))
    batch = SymbolicDim("batch", ("batch",), 8, 2)
    values = (
        weight,
        bias,
        Value("mean", "buffer", "float32", 4, (5,)),
        Value("x", "input", "float32", 4, (batch, 3)),
        Value("y", "activation", "float32", 4, (batch, 5), producer=0),
        replace(weight, name="w.grad", role="gradient", producer=1, ready=1, of="w"),
        replace(bias, name="b.grad", role="gradient", producer=2, ready=2, of="b"),
    )
    ops = (
        Op("linear", "aten.linear", ("x", "w", "b"), ("y",)),
        Op("w_grad", "aten.mm", ("x", "y"), ("w.grad",)),
        Op("b_grad", "aten.sum", ("y",), ("b.grad",)),
    )
    symbols = (Symbol("batch", 1, 8, "x", 0),)
    return Graph(symbols, values, ops, (), "joint_graph", "output_sum", "by hand")


PLAN = build_plan(_graph(), DataParallel(2))
TEXT = plan_to_json(PLAN)
Json = dict[str, Any]


@given(graphs(), st.integers(1, 3))
def test_round_trip(graph: Graph, world_size: int) -> None:
    plan = build_plan(graph, DataParallel(world_size))
    text = plan_to_json(plan)
    assert plan_from_json(text) == plan
    assert plan_from_json(text.encode()) == plan
    assert plan_to_json(plan_from_json(text)) == text
    assert plan_from_json(text).fingerprint() == plan.fingerprint()


def test_every_changed_byte_is_noticed() -> None:
    """A changed byte gives PlanError, or the same plan where only a blank moved."""
    raw = TEXT.encode()
    noticed = 0
    for at in range(0, len(raw), 3):
        for mask in (0x01, 0x80):
            damaged = raw[:at] + bytes([raw[at] ^ mask]) + raw[at + 1 :]
            try:
                assert plan_from_json(damaged) == PLAN
            except PlanError:
                noticed += 1
    assert noticed > len(raw) // 3


def test_every_truncation_is_noticed() -> None:
    for count in range(len(TEXT) - 1):  # without the last newline it is still whole
        with pytest.raises(PlanError):
            plan_from_json(TEXT[:count])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b'{"format": "transfer-plan", "version": 1, "sha256": "", "plan": {}}',
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b'{"format": "transfer-plan", "version": 1}',
        b'{"format": "transfer-plan", "version": "1"}',
        b'{"format": "transfer-plan", "version": true}',
        b'{"format": "transfer-plan", "version": 0}',
        b'{"format": "other", "version": 1}',
        b'{"format": "transfer-plan", "version": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_plan_is_refused(raw: bytes) -> None:
    with pytest.raises(PlanError):
        plan_from_json(raw)


def test_newer_version_says_what_to_do() -> None:
    document = json.loads(TEXT)
    document["version"] = VERSION + 1
    with pytest.raises(PlanError, match=f"version {VERSION + 1}.*up to {VERSION}.*upgrade"):
        plan_from_json(json.dumps(document))


def _sealed(body: object) -> str:
    """A document whose checksum is right, whatever the body says."""
    found = hashlib.sha256(canonical_json(body).encode()).hexdigest()
    document = {"format": "transfer-plan", "version": VERSION, "sha256": found, "plan": body}
    return json.dumps(document)


def _paths(node: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [path] if path else []
    items = node.items() if isinstance(node, dict) else []
    items = enumerate(node) if isinstance(node, list) else items
    for key, child in items:
        found += _paths(child, (*path, key))
    return found


def test_a_missing_or_mistyped_field_is_refused_by_name() -> None:
    """The checksum is right each time, so this is the reader's own judgement."""
    body = json.loads(TEXT)["plan"]
    for path in _paths(body):
        for change in ("drop", 1.5, True, {"unknown": 1}):
            copy = json.loads(TEXT)["plan"]
            holder = copy
            for key in path[:-1]:
                holder = holder[key]
            if change != "drop":
                holder[path[-1]] = change
            elif isinstance(holder, dict):
                del holder[path[-1]]
            else:
                continue
            with pytest.raises(PlanError, match=r"plan"):
                plan_from_json(_sealed(copy))


def test_unknown_field_is_refused() -> None:
    body = json.loads(TEXT)["plan"]
    body["arenas"][0]["extra"] = 1
    with pytest.raises(PlanError, match=r"plan\.arenas\[0\].*extra"):
        plan_from_json(_sealed(body))


def _tensor(body: Json, name: str) -> Json:
    found: Json = next(t for t in body["tensors"] if t["name"] == name)
    return found


def _set(path: str, value: object) -> Callable[[Json], None]:
    """A change of one field, as section.index.field or tensors:NAME.field."""

    def change(body: Json) -> None:
        *keys, last = path.split(".")
        node: Any = body
        for key in keys:
            if key.startswith("tensors:"):
                node = _tensor(body, key.removeprefix("tensors:").replace("/", "."))
            else:
                node = node[int(key)] if isinstance(node, list) else node[key]
        node[int(last) if isinstance(node, list) else last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("op_count", -1),
        _set("op_count", 2),
        _set("strategy.options.0", ["world_size"]),
        _set("strategy.world_size", 0),
        _set("strategy.world_size", 1),
        _set("symbols.0.name", "other"),
        _set("tensors:w.name", "b"),
        _set("tensors:w.size_bytes", 61),
        _set("tensors:w.max_bytes", 61),
        _set("tensors:w.kind", "bounded"),
        _set("tensors:w.item_bytes", 0),
        _set("tensors:w.shape", [3, -5]),
        _set("tensors:x.kind", "dynamic"),
        _set("tensors:x.kind", "static"),
        _set("tensors:x.max_bytes", None),
        _set("tensors:x.symbols", []),
        _set("tensors:y.first_use", -1),
        _set("tensors:y.first_use", 3),
        _set("tensors:w/grad.ready_order", 1),
        _set("tensors:w/grad.parameter", "nothing"),
        _set("tensors:w/grad.role", "backward"),
        _set("groups.0.ranks", [0, 0]),
        _set("groups.0.ranks", [0, 7]),
        _set("groups.0.name", "other"),
        _set("crossings.0.tensor", "nothing"),
        _set("crossings.0.root", None),
        _set("crossings.0.root", 5),
        _set("crossings.4.root", 0),
        _set("crossings.3.operation", "all_reduce"),
        _set("arenas.0.alignment_bytes", 48),
        _set("arenas.0.peak_bytes", 64),
        _set("arenas.0.lower_bound_bytes", 10_000),
        _set("arenas.0.naive_bytes", 64),
        _set("arenas.0.placements.0.offset", 64),
        _set("arenas.0.placements.0.offset", -64),
        _set("arenas.0.placements.0.offset", 3),
        _set("arenas.0.placements.0.size_bytes", 64),
        _set("arenas.0.placements.0.tensor", "x"),
        _set("arenas.0.placements", []),
        _set("buckets", []),
        _set("buckets.0.tensors", ["w.grad"]),
        _set("buckets.0.dtype", "int8"),
        _set("buckets.0.places.0.offset", 64),
        _set("buckets.0.places.0.arena", "other"),
        _set("buckets.0.places.0.origin", 1),
        _set("buckets.0.places", []),
        _set("forward_op_count", 4),
        _set("forward_end_ns", 1 << 40),
        _set("tensors:w.homes", ["other"]),
        _set("tensors:w.view_of", "other"),
        _set("crossings.0.result", "other"),
        _set("arenas.0.name", "other"),
        _set("arenas.0.ranks", [0, 0]),
        _set("arenas.0.placements.0.first_use", -1),
        _set("arenas.0.placements.0.last_use", 9),
        _set("arenas.0.placements.0.origin", 9),
        _set("buckets.0.payload_bytes", 1),
        _set("buckets.0.span_bytes", 1),
        _set("buckets.0.finish_ns", -1),
        _set("buckets.0.operation", "all_reduce"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(change: Callable[[Json], None]) -> None:
    body = json.loads(TEXT)["plan"]
    change(body)
    assert body != json.loads(TEXT)["plan"], "the change changed nothing"
    with pytest.raises(PlanError):
        plan_from_json(_sealed(body))


def test_overlap_in_the_arena_is_named() -> None:
    """Both gradients live at the optimizer step; each moved with its bucket, only they clash."""
    body = json.loads(TEXT)["plan"]
    buckets = [b for b in body["buckets"] if b["phase"] == "backward"]
    body["buckets"] = [b for b in body["buckets"] if b["phase"] == "forward"]
    for name in [name for bucket in buckets for name in bucket["tensors"]]:
        size = _tensor(body, name)["size_bytes"]
        alone: Json = {"tensors": [name], "payload_bytes": size, "span_bytes": 64}
        alone["places"] = [{"arena": "rank", "origin": None, "offset": 64}]
        body["buckets"].append({**buckets[0], **alone})
        place = next(p for p in body["arenas"][0]["placements"] if p["tensor"] == name)
        place["offset"] = 64
    with pytest.raises(PlanError, match=r"\.grad and .*\.grad overlap"):
        plan_from_json(_sealed(body))


def test_first_difference_names_the_tensor() -> None:
    assert first_difference(PLAN, PLAN) is None
    graph = _graph()
    wider = replace(graph.values[1], shape=(6,))
    other = build_plan(
        replace(graph, values=(graph.values[0], wider, *graph.values[2:])), DataParallel(2)
    )
    assert "tensor b:" in str(first_difference(PLAN, other))
    shorter = build_plan(
        replace(
            graph,
            values=graph.values[:-1],
            ops=(*graph.ops[:2], replace(graph.ops[2], outputs=())),
        ),
        DataParallel(2),
    )
    assert "tensor b.grad: unknown here" in str(first_difference(shorter, PLAN))
    assert "tensor b.grad:" in str(first_difference(PLAN, shorter))
    assert "strategy differ" in str(first_difference(build_plan(graph, DataParallel(3)), PLAN))
