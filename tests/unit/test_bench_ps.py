"""`bench ps`: its tables, and a model that finds the costs which made-up records were made from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.record import Record, number
from bench.suite import crossover, ps, samples

ROUND_NS, BYTE_NS = 30_000.0, 16.0
WAYS = [("all_reduce", 0), ("dense", 1), ("dense", 2), ("rows", 1), ("rows", 2), ("all_gather", 0)]
SIZES = (1 << 19, 1 << 20, 1 << 21, 1 << 22)


def _crossed(path: str, factor: float = 1.0) -> list[Record]:
    """Return a record of each cell that costs what the model says, by a factor every second."""
    found = []
    for op, servers in WAYS:
        is_whole = op in ("all_reduce", "dense")
        shares = (1000,) if is_whole else (1, 3, 10, 30, 100, 300, 1000)
        for ranks in (2, 4):
            for size in SIZES if is_whole else SIZES[-1:]:
                for permille in shares:
                    record: Record = {
                        "topic": "crossover",
                        "name": f"{op} {servers}",
                        "peer": "rdmatensor",
                        "transport": path,
                        "op": op,
                        "size": size,
                        "ranks": ranks,
                        "servers": servers,
                        "permille": permille,
                    }
                    one = crossover.exchange_of(record)
                    ns = one.rounds * ROUND_NS + one.link_bytes * BYTE_NS
                    found.append(samples.turn(record, [ns]))
    order = sorted(found, key=crossover._order)
    for place, record in enumerate(order):
        if place % 3 == 1:
            record["median_ns"] = number(record, "median_ns") * factor
    return found


@pytest.mark.parametrize("path", ["shm", "hosts 500mbit"])
def test_the_model_finds_the_costs(path: str) -> None:
    fits = crossover.fits_of(_crossed(path))
    assert [fit.kind for fit in fits] == list(crossover.KINDS)
    for fit in fits:
        assert fit.costs == pytest.approx((ROUND_NS, BYTE_NS, 0.0), rel=1e-3, abs=1e-3)
        assert len(fit.predicted) == len(fit.cells) // 2
        assert all(abs(cell.error) < 1e-3 for cell in fit.cells)
    rows = crossover.fit_rows(_crossed(path))
    assert all(row[5] == row[6] for row in rows)


def test_errors_are_those_of_cells_that_were_not_fitted() -> None:
    records = _crossed("tcp", factor=2.0)
    rows = crossover.fit_rows(records)
    assert any(row[5] != row[6] for row in rows)
    for fit in crossover.fits_of(records):
        for cell in fit.predicted:
            took = number(cell.record, "median_ns")
            assert cell.error == pytest.approx(cell.predicted_ns / took - 1)


def test_costs_are_never_below_zero() -> None:
    records = _crossed("shm")
    for record in records:
        record["median_ns"] = 1e6 / number(record, "size")  # less time for more bytes
    assert all(min(fit.costs) >= 0 for fit in crossover.fits_of(records))


def test_the_fastest_way_depends_on_the_share() -> None:
    rows = crossover.crossing_rows(_crossed("hosts 500mbit"))
    assert len(rows) == 2 * 7
    assert {row[4] for row in rows} == {"the same"}
    fastest = {(row[0], row[1]): row[2] for row in rows}
    assert fastest["hosts 500mbit, 4", "0.1 %"].startswith(("rows", "all_gather"))
    assert fastest["hosts 500mbit, 4", "100 %"] == "all_reduce 0"
    said = crossover.show(_crossed("hosts 500mbit"))
    assert "CostModel(latency_ns=30000, bandwidth_bytes_per_s=62500000)" in said


def _pulled(peer: str, ns: float, op: str = "pull") -> Record:
    fields: Record = {
        "topic": "ps",
        "name": peer,
        "peer": peer,
        "transport": "shm",
        "op": op,
        "size": 1 << 20,
        "timed": "quiet",
        "call_cpu_ns": 1.0,
        "cpu_ns": 2.0,
    }
    return samples.turn(fields, [ns, ns, 4 * ns])


def test_ratios_are_of_means_and_have_what_was_wanted() -> None:
    records = [_pulled("rpc", 30e5), _pulled("rdmatensor", 1e5), _pulled("redis", 40e5)]
    own, rpc, redis = ps.rows_of(records)
    assert own[1:3] == ("rdmatensor", "200.00 us")
    assert rpc[-3:] == ("30.00", ">= 20", "met")
    assert redis[-3:] == ("40.00", ">= 50", "NOT met")
    assert ps.rows_of([_pulled("rpc", 1e5)])[0][-3:] == ("-", "-", "")
