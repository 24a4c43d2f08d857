"""Rows of pytest-benchmark's table and JSON: one for each thing that a run measured.

A benchmark here is one run of all contestants, whose time says nothing. What it measured has raw
samples of its own; they become rows, grouped by size, so that contestants of one size stand
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from bench.benchlib.record import Record, number
from bench.benchlib.verdict import size_text

WHOLE_RUNS = "whole runs, all contestants and sizes"
_NO_SIZE = "no bytes"
# What tells contestants of one size apart, in this order.
_TELLS = (
    *("transport", "path", "op", "way", "wait", "timed"),
    *("streams", "chunk", "sockbuf", "congestion"),
)
_MORE = ("trips", "tensors")


@dataclass(frozen=True, slots=True)
class Entry:
    """One row: what pytest-benchmark wants to know of a fixture, and the samples in seconds."""

    name: str
    fullname: str
    group: str
    extra_info: Record
    seconds: list[float]
    param: None = None
    params: None = None
    cprofile_stats: None = None
    has_error: bool = False
    options: Record = field(default_factory=dict)


def of(records: Sequence[Record], topic: str, test: str) -> Iterator[Entry]:
    """Return a row for each record that has samples; test: the node that measured them."""
    for record in records:
        raw_ns = cast("list[float]", record.get("raw_ns", []))
        if not raw_ns:
            continue
        words = [f"{record.get('contestant')}"]
        words += [f"{record[key]}" for key in _TELLS if record.get(key) not in (None, "")]
        words += [f"{record[key]} {key}" for key in _MORE if key in record]
        name = f"{topic}: {', '.join(words)}"
        size = _size_of(record)
        yield Entry(
            name,
            f"{test}::{size} B::{name}",
            _NO_SIZE if size is None else size_text(size),
            {key: value for key, value in record.items() if key != "raw_ns"},
            [ns / 1e9 for ns in raw_ns],
        )


def _size_of(record: Record) -> float | None:
    """Return the bytes of what was timed; of many blocks in one call, of all of them."""
    if "block_bytes" in record:
        return number(record, "blocks") * number(record, "block_bytes")
    return number(record, "size") if "size" in record else None
