"""The table of bandwidths: by nccl-tests' definitions, and only of what nobody touches."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench_made_up import cells_of, merged, result_of

from bench.benchlib.record import Record
from bench.suite import doc_bandwidths, samples
from bench.suite.collectives import with_bandwidth
from bench.suite.peers import OURS

MIB = 1 << 20


def _record(who: str, us: float, *, size: int = MIB, row: str = "plain") -> Record:
    fields = {
        **samples.p2p_fields(who, OURS if who == OURS else who, "shm", size),
        "topic": "collectives",
        "op": "all_gather",
        "ranks": 4,
        "row": row,
        "timed": row,
        "moved_bytes": size,
        "call_cpu_ns": 524_288.0,
    }
    return with_bandwidth(merged(fields, [us * 1000]))


def test_bandwidths_stand_beside_those_of_others() -> None:
    records = [
        _record(OURS, 1048.576),
        _record("gloo", 2097.152),
        _record("OpenMPI", 524.288),
        _record(OURS, 10, size=4096),
        _record(OURS, 10, row="same"),
    ]
    _, table = doc_bandwidths.block(result_of(records, "collectives")).split("\n\n")
    assert cells_of(table) == [
        ["all_gather, 1 MiB", "1, 0.75, 0.5", "0.5, 0.375, 0.5", "**2, 1.5, 0.5**"]
    ]


def test_without_large_tensors_there_is_no_table() -> None:
    assert doc_bandwidths.block(result_of([_record(OURS, 10, size=4096)])) == ""
