"""The workers of `rdmatensor bench collectives`: every operation over every backend, tiny."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib import mpi
from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, text
from bench.suite import collectives, tables
from bench.workers.copies import LEAST_BYTES, Copies
from bench.workers.operations import Operation

pytestmark = pytest.mark.slow
ROWS = ["plain", "same", "fresh", "arena"]
OPTIONS = {"rounds": 3, "sizes": [8, 65536], "rows": ROWS, "seconds": 0.01}
ALL = ["rdmatensor", "gloo", "fake", "copies"]


def _records(printed: list[Record]) -> list[Record]:
    found = collectives.by_key(printed).values()
    return [collectives.with_bandwidth(collectives.record_of(one, "shm")) for one in found]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.timeout(150)
def test_every_backend_delivers_every_operation_in_every_row(ranks: int) -> None:
    names = [name for name in collectives.OPERATIONS if name != "send" or ranks == 2]
    options = {**OPTIONS, "ranks": ranks, "operations": names, "backends": ALL}
    records = _records(run_ranks("collectives", ranks, options, timeout_s=140.0))
    cells = [(one["name"], one["op"], one["size"], one["row"]) for one in records]
    assert len(set(cells)) == len(cells)
    moving = len(names) - 1
    of = {who: sum(cell[0] == who for cell in cells) for who, *_ in cells}
    assert of == {
        "rdmatensor": 4 * 2 * moving + 1,
        "gloo": 3 * 2 * moving + 1,
        "does nothing": 4 * 2 * moving + 1,
        "copy floor": moving,  # of 64 KiB
    }
    for one in records:
        assert number(one, "median_ns") > 0
        assert number(one, "call_cpu_ns") > 0
        assert ("loop_ns" in one) == (one["row"] != "plain")
    assert "copy floor" in tables.show(records)


@pytest.mark.timeout(150)
def test_mpi_has_the_same_cells_where_it_is() -> None:
    options = {**OPTIONS, "ranks": 2, "operations": collectives.OPERATIONS, "mpi": True}
    if mpi.why_missing():
        with pytest.raises((RuntimeError, OSError)):
            mpi.run("collectives", 2, "shm", options, timeout_s=60.0)
        return
    records = _records(mpi.run("collectives", 2, "shm", options, timeout_s=140.0))
    assert {text(one, "op") for one in records} == set(collectives.OPERATIONS)
    assert len(records) == 3 * 2 * (len(collectives.OPERATIONS) - 1) + 1
    assert {text(one, "row") for one in records} == {"plain", "same", "fresh"}


@pytest.mark.timeout(100)
def test_the_copy_floor_is_there_for_rows_that_are_asked_for_alone() -> None:
    options = {"ranks": 2, "operations": ["send", "barrier"], "rows": ["arena"], "rounds": 1}
    options |= {"sizes": [8, 65536], "backends": ALL}
    records = _records(run_ranks("collectives", 2, options, timeout_s=90.0))
    assert [(one["name"], one["row"], one["size"]) for one in records] == [
        ("copy floor", "plain", 65536),
        ("rdmatensor", "arena", 8),
        ("does nothing", "arena", 8),
        ("rdmatensor", "arena", 65536),
        ("does nothing", "arena", 65536),
    ]


@pytest.mark.parametrize("name", ["all_reduce", "reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_copy_floor_moves_and_sums_what_the_operation_has_to(
    name: str, ranks: int, tmp_path: Path
) -> None:
    copies = Copies(f"rdt-test-{tmp_path.name}", 0, ranks, LEAST_BYTES, lambda: None)
    for rank, block in enumerate(copies._blocks):
        block.fill_(rank + 1.0)
    operation = Operation(name, LEAST_BYTES, 0, ranks)
    operation.source.fill_(1.0)
    copies.call(operation)()
    if name == "all_gather":
        assert operation.is_right()
        return
    summed = operation.target if name == "reduce_scatter" else operation.source
    total = float(ranks * (ranks + 1) // 2)
    assert bool((operation.block(summed, 0) == total).all())
    if name == "all_reduce":
        for other in range(1, ranks):
            assert bool((operation.block(summed, other) == other + 1.0).all())
