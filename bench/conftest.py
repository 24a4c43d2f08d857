"""`pytest bench --benchmark-only`: fixtures and options of the benchmarks.

Each benchmark is one run in which all contestants take turns; what counts are ratios within a run.
--bench-repeats N runs each N times and judges the run that others disturbed least.
--bench-results DIR keeps all runs with their raw samples; bench/report.py prints the table of DIR.
--benchmark-json FILE has the raw samples too, one entry for each contestant and size, grouped by
size, and the machine as our own files have it: kernel, providers, MTUs, versions, commit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from pytest_benchmark.stats import Metadata

# At the end: `bench` is found here, and rdmatensor where it is installed, not in the sources.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from bench.benchlib import entries, machine, record, topics, verdict
from bench.benchlib.programs import TooFewCores

Judge = Callable[[str, str, Callable[[], list[record.Record]]], list[verdict.Row]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options."""
    group = parser.getgroup("bench")
    group.addoption("--bench-repeats", type=int, default=1, help="runs of each benchmark")
    group.addoption("--bench-results", type=Path, default=None, help="keep all runs in this folder")


def pytest_benchmark_update_machine_info(machine_info: record.Record) -> None:
    """Say of the machine what our own files say, and what its networks are."""
    machine_info["rdmatensor"] = {**machine.stamp(), **machine.networks()}


def _add_rows(benchmark: BenchmarkFixture, rows: Iterable[entries.Entry]) -> None:
    """Give pytest-benchmark rows of what programs measured; it has no public way to."""
    for entry in rows:
        stats = Metadata(  # type: ignore[no-untyped-call]
            entry, iterations=1, options=entry.options
        )
        for seconds in entry.seconds:
            stats.update(seconds)  # type: ignore[no-untyped-call]
        benchmark._add_stats(stats)


@pytest.fixture
def judge(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> Judge:
    """Return what measures, keeps, prints and asserts one topic: (topic, command, run once)."""
    repeats: int = request.config.getoption("--bench-repeats")
    folder: Path | None = request.config.getoption("--bench-results")

    def measure(
        topic: str, command: str, run_once: Callable[[], list[record.Record]]
    ) -> list[verdict.Row]:
        runs: list[record.Run] = []

        def watched() -> None:
            with machine.Watch() as watch:
                records = run_once()
            runs.append(record.Run(records, watch.foreign_cpus, watch.seconds))

        benchmark.group = entries.WHOLE_RUNS
        try:
            benchmark.pedantic(  # type: ignore[no-untyped-call]
                watched, rounds=repeats, iterations=1
            )
        except TooFewCores as error:
            pytest.skip(f"benchmark: {error}")
        result = record.Result(topic, command, machine.stamp(), runs)
        if folder is not None:
            record.save(result, folder)
        _add_rows(benchmark, entries.of(result.quietest.records, topic, request.node.nodeid))
        rows = topics.TOPICS[topic](result.quietest.records)
        benchmark.extra_info["rows"] = [f"{row.what}: {row.ratio}" for row in rows]
        benchmark.extra_info["foreign_cpus"] = result.quietest.foreign_cpus
        sys.stdout.write(f"\n{verdict.table(rows)}\n")
        missed = [row.what for row in rows if row.is_met_with_room is False]
        assert not missed, f"below the target by more than noise explains: {missed}"
        return rows

    return measure
