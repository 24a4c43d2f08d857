"""Pipelines: cuts against all cuts, times against tasks one by one; equal bytes everywhere."""

import itertools
import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from graph_analysis.partition import Part, cut_chain, pipeline_ns

SAME_EVERYWHERE = """
from graph_analysis.machine import Cost, Device, Machine
from graph_analysis.partition import (
    BatchTimes, Pair, Part, Step, Unit, partition_to_json, partitions, pipelines,
)
names = {f"m{i}.weight" for i in range(9)}
units = tuple(
    Unit(f"m{i}", (f"m{i}",), (), (f"m{i}.weight",), 1000 * (i % 3 + 1), 900,
         Pair((f"m{i}",), f"l{i}", i, i, 500, 600) if i % 2 else None)
    for i in range(9)
)
ready = tuple(sorted((9 + i, name) for i, name in enumerate(sorted(names))))
step = Step((1000,) * 18, 9, ready, {n: 1000 for n in names}, units, 5000, 2, {}, {})
costs = sorted({"all_gather", "all_reduce", "reduce_scatter", "send"})
lines = tuple(Cost(f"{n}.{w}", v) for n in costs for w, v in (("alpha_ns", 9), ("beta_ps", 999)))
machine = Machine(tuple(Device(r, "host", 1, 0, 1000) for r in range(3)), (), lines)
batch = BatchTimes(2, 9000, 4, 18000)
staged = pipelines([Part(f"m{i}", 500, 500, 64) for i in range(9)], step, machine, batch, 64)
for one in partitions(step, machine, batch, staged=staged):
    print(partition_to_json(one))
"""


def test_the_same_facts_give_the_same_bytes_in_every_process() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", SAME_EVERYWHERE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=50,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1
    assert next(iter(said)).count('"format": "partition"') == 4


@given(
    st.lists(st.integers(0, 50), min_size=2, max_size=7),
    st.lists(st.integers(1000, 3000), min_size=2, max_size=3),
)
def test_the_cut_of_a_chain_is_the_best_of_all(times: list[int], speeds: list[int]) -> None:
    parts = [Part(f"m{i}", ns * 1000, 2000 * ns, 8) for i, ns in enumerate(times)]
    if len(parts) < len(speeds):
        return

    def longest(cuts: tuple[int, ...]) -> int:
        bounds = (0, *cuts, len(parts))
        return max(
            sum(p.forward_ns + p.backward_ns for p in parts[a:b]) * 1000 // speed
            for a, b, speed in zip(bounds, bounds[1:], speeds, strict=False)
        )

    every = itertools.combinations(range(1, len(parts)), len(speeds) - 1)
    assert longest(cut_chain(parts, speeds)) == min(map(longest, every))


def played(forward: list[int], backward: list[int], sends: list[int], micros: int) -> int:
    """The end of a step, by the moments at which each task can begin, found one by one."""
    last = len(forward) - 1
    ends: dict[tuple[str, int, int], int] = {}

    def end(kind: str, stage: int, micro: int) -> int:
        if micro < 0 or not 0 <= stage <= last:
            return 0
        if (kind, stage, micro) not in ends:
            if kind == "f":
                before = end("f", stage, micro - 1)
                came = end("f", stage - 1, micro) + (sends[stage - 1] if stage else 0)
                ends[kind, stage, micro] = max(before, came) + forward[stage]
            else:
                before = end("b", stage, micro - 1) if micro else end("f", stage, micros - 1)
                came = end("b", stage + 1, micro) + (sends[stage] if stage < last else 0)
                ends[kind, stage, micro] = max(before, came) + backward[stage]
        return ends[kind, stage, micro]

    return max(end("b", stage, micros - 1) for stage in range(last + 1))


@given(
    st.lists(st.tuples(*[st.integers(0, 99)] * 3), min_size=1, max_size=5),
    st.integers(1, 6),
)
def test_a_pipeline_ends_when_its_tasks_do(stages: list[tuple[int, ...]], micros: int) -> None:
    forward, backward, sends = (list(column) for column in zip(*stages, strict=True))
    assert pipeline_ns(forward, backward, sends, micros) == played(forward, backward, sends, micros)


def test_equal_stages_without_sends_have_the_known_time() -> None:
    assert pipeline_ns([5] * 4, [7] * 4, [0] * 3, 8) == (8 + 4 - 1) * (5 + 7)
