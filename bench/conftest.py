"""`pytest bench --benchmark-only`: the costs of bench/suite/costs.py as benchmarks with targets.

Each benchmark is one run in which all take turns. --benchmark-json FILE has the raw samples, an
entry for each series, grouped by size, and the machine as `rdmatensor bench --out` has it, with the
drivers of RDMA devices ("provider") and the MTUs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from pytest_benchmark.stats import Metadata

# At the end: `bench` is found here, and rdmatensor where it is installed, not in the sources.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from bench.benchlib import machine
from bench.benchlib.record import Record, number
from bench.benchlib.units import size_text

Keep = Callable[[Sequence[Record]], None]
_TELLS = ("transport", "way", "wait", "timed", "streams", "chunk", "sockbuf", "congestion")


@dataclass(frozen=True, slots=True)
class Entry:
    """What pytest-benchmark reads of a fixture."""

    name: str
    fullname: str
    group: str
    extra_info: Record
    param: None = None
    params: None = None
    cprofile_stats: None = None
    has_error: bool = False
    options: Record = field(default_factory=dict)


def pytest_benchmark_update_machine_info(machine_info: Record) -> None:
    """Add what our own files say of the machine, and its networks."""
    machine_info["rdmatensor"] = {**machine.stamp(), **machine.networks()}


def entry_of(record: Record, test: str) -> Entry:
    """Return the row of a record that has samples; test: the node that measured them."""
    words = [str(record.get("name"))]
    words += [str(record[key]) for key in _TELLS if record.get(key) not in (None, "")]
    name = f"{record['op']}: {', '.join(words)}"
    group = size_text(number(record, "size")) if "size" in record else "no bytes"
    more = {key: value for key, value in record.items() if key != "raw_ns"}
    return Entry(name, f"{test}::{group}::{name}", group, more)


@pytest.fixture
def keep(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> Keep:
    """Return what gives pytest-benchmark the samples of records; it has no public way to."""

    def add(records: Sequence[Record]) -> None:
        for record in records:
            if "raw_ns" not in record:
                continue
            entry = entry_of(record, request.node.nodeid)
            stats = Metadata(  # type: ignore[no-untyped-call]
                entry, iterations=1, options=entry.options
            )
            for ns in cast("list[float]", record["raw_ns"]):
                stats.update(ns / 1e9)  # type: ignore[no-untyped-call]
            benchmark._add_stats(stats)

    return add
