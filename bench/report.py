"""Print the table of a folder of results: floor, ours, ratio, target, and whether it is met.

    python bench/report.py [bench/results]

Each result may hold several runs; the figures are those of the run that others disturbed least,
and the line above says how much that was. Exit status 1 if a target is missed.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Run as a file: `bench` lies beside this file's folder.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from bench.benchlib.record import Result, load
from bench.benchlib.topics import TOPICS
from bench.benchlib.verdict import Row, table


def machine_line(result: Result) -> str:
    """Say what machine a result comes from."""
    m = result.machine
    return (
        f"{m['processor']}{' (virtual)' if m['is_virtual'] else ''}, {m['cores']} cores, "
        f"Linux {m['kernel']}, Python {m['python']}, commit {m['commit']}, {m['date']}"
    )


def main(words: list[str]) -> int:
    """Print the report; return the exit status."""
    folder = Path(words[0]) if words else Path(__file__).parent / "results"
    rows: list[Row] = []
    absent: list[str] = []
    machines: dict[str, list[str]] = {}
    for topic, rows_of in TOPICS.items():
        path = folder / f"{topic}.json"
        if not path.exists():
            absent.append(topic)
            continue
        result = load(path)
        rows += rows_of(result.quietest.records)
        foreign = f"{topic} ({len(result.runs)} runs, {result.quietest.foreign_cpus:.2f})"
        machines.setdefault(machine_line(result), []).append(foreign)
    for line, topics in machines.items():
        sys.stdout.write(f"{line}\n  cores that others kept busy: {', '.join(topics)}\n")
    sys.stdout.write(f"\n{table(rows)}\n")
    if absent:
        sys.stdout.write(f"\nnot measured: {', '.join(absent)}\n")
    return 1 if any(row.is_met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
