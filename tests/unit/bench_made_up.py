"""Results that nobody measured, and the cells of the tables that come of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.record import Record, Result, Run
from bench.suite import samples

MACHINE: Record = {
    "processor": "made up",
    "cores": 2,
    "is_virtual": True,
    "family_model": "1/2/3",
    "kernel": "6.0",
    "commit": "abc",
}


def result_of(records: Iterable[Record], topic: str = "p2p") -> Result:
    """Return a result of one run, in which others kept a quarter of a core busy."""
    run = Run(list(records), 0.25, 3.0)
    return Result("full", f"rdmatensor bench {topic}", MACHINE, [run])


def merged(fields: Record, raw_ns: Sequence[float]) -> Record:
    """Return the record of three turns with the same samples."""
    (record,) = samples.merge([samples.turn(fields, raw_ns) for _ in range(3)])
    return record
