"""describe() as lines: every value of it is told, in units that a person reads."""

from __future__ import annotations

import pytest

from rdmatensor import Context, Settings
from rdmatensor._observe.describe_text import text_of


def test_everything_has_its_line() -> None:
    state = {
        "version": "1.2",
        "arena": {"mapped_bytes": 4 << 20, "populate_s": 0.5, "is_huge": False},
        "listens": ["127.0.0.1:1", "[::1]:2"],
        "groups": [],
        "error": "",
        "endpoints": [
            {"rank": 1, "lane": "a long text " * 10, "counts": {"writes": 3}},
            {"rank": 2, "path": "tcp"},
        ],
    }
    assert text_of(state).splitlines() == [
        "version: 1.2",
        "arena: mapped 4 MiB, populate 0.5 s, huge no",
        "listens: 127.0.0.1:1, [::1]:2",
        "groups: none",
        "error: none",
        "endpoints:",
        "  - rank: 1",
        "    lane: " + "a long text " * 10,
        "    counts: writes 3",
        "  - rank 2, path tcp",
    ]


def test_sizes_are_in_units() -> None:
    sizes = {"a_bytes": 0, "b_bytes": 1023, "c_bytes": 1536, "d_bytes": 5 << 30, "e_bytes": 1 << 60}
    assert text_of(sizes).splitlines() == [
        "a: 0 B", "b: 1023 B", "c: 1.5 KiB", "d: 5 GiB", "e: 1.049e+06 TiB",
    ]  # fmt: skip


def test_large_times_and_lists_in_lists_lose_nothing() -> None:
    state = {"limit_ns": 30_000_000_001, "rows": [[{"a": [{"b": 1}]}], [2, 3]]}
    assert text_of(state).splitlines() == [
        "limit: 30000000001 ns",
        "rows:",
        "  -",
        "    - a:",
        "        - b 1",
        "  - 2, 3",
    ]


NEAR = {"node_bytes": {"0": 8 << 20}, "cpu_nodes": [0], "far_bytes": 0, "reason": ""}


@pytest.mark.parametrize(
    ("differs", "line"),
    [
        ({}, "8 MiB on node 0 (usable CPUs: node 0)"),
        ({"node_bytes": {}}, "no page yet (usable CPUs: node 0)"),
        (
            {
                "node_bytes": {"0": 6 << 20, "3": 2 << 20},
                "cpu_nodes": [0, 1],
                "far_bytes": 2 << 20,
            },
            "6 MiB on node 0, 2 MiB on node 3 (usable CPUs: nodes 0, 1); "
            "2 MiB on a node without any of these",
        ),
        (
            {"node_bytes": None, "far_bytes": None, "reason": "not told by the kernel: why"},
            "not told by the kernel: why",
        ),
    ],
)
def test_where_the_arena_lies_is_one_line(differs: dict[str, object], line: str) -> None:
    state = {"arena": {"mapped_bytes": 4 << 20, "placement": {**NEAR, **differs}}}
    told = "\n".join(text.strip() for text in text_of(state).splitlines())
    assert f"placement{':' if 'placement:' in told else ''} {line}" in told


def test_a_context_is_told() -> None:
    with Context(Settings(loopback=True, arena_mib=1)) as context:
        text = context.describe_text(verbose=True)
        for key in context.describe():
            assert any(
                line.startswith(key.removesuffix("_s").replace("_", " ") + ":")
                for line in text.splitlines()
            ), key
    assert max(len(line) for line in text.splitlines()) < 200
