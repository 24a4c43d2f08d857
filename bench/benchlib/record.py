"""Records: lines of JSON that programs and workers print, and files of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

Record = dict[str, object]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of all that is compared, by turns.

    foreign_cpus: how many cores, on average, others kept busy meanwhile.
    """

    records: list[Record]
    foreign_cpus: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    """Several runs of one benchmark, and the machine they ran on."""

    name: str
    command: str
    machine: Record
    runs: list[Run]

    @property
    def quietest(self) -> Run:
        """The run that other processes disturbed least."""
        return min(self.runs, key=lambda run: run.foreign_cpus)


def parse(text: str) -> list[Record]:
    """Read lines of JSON objects; other lines are not allowed."""
    return [cast("Record", json.loads(line)) for line in text.splitlines() if line.strip()]


def number(record: Record, key: str) -> float:
    """Return a number of a record."""
    value = record[key]
    if not isinstance(value, int | float):
        raise TypeError(f"{key} is {value!r} in {record}")
    return float(value)


def text(record: Record, key: str) -> str:
    """Return a text of a record."""
    value = record[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} is {value!r} in {record}")
    return value


def save(result: Result, folder: Path) -> Path:
    """Write <folder>/<name>.json: one record a line, so that changes can be read."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.name}.json"
    write(result, path)
    return path


def write(result: Result, path: Path) -> None:
    """Write one file; load() reads it."""
    head = json.dumps(
        {"name": result.name, "command": result.command, "machine": result.machine}, indent=1
    )
    runs = ",\n".join(_run_text(run) for run in result.runs)
    path.write_text(f'{head[:-2]},\n "runs": [\n{runs}\n ]\n}}\n', encoding="utf-8")


def _run_text(run: Run) -> str:
    fields = asdict(run)
    rows = ",\n".join(f"   {json.dumps(record)}" for record in run.records)
    return (
        f'  {{"foreign_cpus": {fields["foreign_cpus"]:.3f}, "seconds": {fields["seconds"]:.1f}, '
        f'"records": [\n{rows}\n  ]}}'
    )


def load(path: Path) -> Result:
    """Read what save() wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))
    runs = [Run(run["records"], run["foreign_cpus"], run["seconds"]) for run in data["runs"]]
    return Result(data["name"], data["command"], data["machine"], runs)
