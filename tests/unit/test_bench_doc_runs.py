"""Generated tables of docs/performance.md: training steps, set-up, scale on paper."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench_made_up import cells_of, merged, result_of

from bench.benchlib.record import Record, Result
from bench.benchlib.verdict import size_text
from bench.suite import doc_runs, model, models, samples, scale_tables, setup
from bench.suite.peers import OURS


def _result(records: Sequence[Record], topic: str) -> Result:
    missing: Record = {"topic": topic, "peer": "nccl", "missing": "no GPU", "get": ""}
    return result_of([*records, missing], topic)


def _step(who: str, raw_ms: Sequence[float], peer: str = OURS, path: str = "shm") -> Record:
    fields: Record = {
        **samples.p2p_fields(who, peer, path, 36 << 20),
        "topic": "models",
        "op": "lstm",
        "divisor": 1,
        "timed": "a step",
    }
    spent: Record = {"cpu_ns": 5e6, "memory_bytes": 64 << 20, "parts": {"page_faults": 3.4}}
    return {**merged(fields, [ms * 1e6 for ms in raw_ms]), **spent}


def test_a_planned_step_stands_beside_all_others_with_the_targets() -> None:
    steps = models.with_shares(
        [
            _step(models.PLANNED, [100, 100, 110]),
            _step("DDP", [90, 90, 90]),
            _step("DDP on Gloo", [200, 200, 200], "gloo"),
            _step("server over gRPC, C++", [150, 150, 150], "grpc-cpp"),
            _step(models.FLOOR, [80, 80, 80], "floor"),
        ]
    )
    told = doc_runs.training(_result(steps, "models")).split("\n\n")
    head, table, notes, spent, _, targets = told
    assert "`python -m rdmatensor bench models`, 3 turns of each" in head
    heads = table.splitlines()[0]
    assert heads.index("DDP on Gloo") < heads.index("gRPC") < heads.index(models.FLOOR)
    assert cells_of(table) == [
        [
            "lstm, 36 MiB, shm",
            "100 ms (100-110)",
            "20 % (20 to 30)",
            "**0.90**",
            "2.00",
            "1.50",
            "0.80",
            "a",
        ]
    ]
    assert notes == "a: DDP: why is not known yet."
    ((name, planned, *_, floor),) = cells_of(spent)
    assert name == "lstm, 36 MiB, shm"
    assert (planned, floor) == ("20 %; 5.00 ms; 64 MiB; 3", "-; 5.00 ms; 64 MiB; 3")
    assert "- shm, the better server over gRPC, its step over ours >= 2: 0 of 1 models" in targets
    assert (
        "    - lstm: 1.50 (1.36 to 1.50); compute is 80 % of the planned step"
        in targets.splitlines()
    )


def test_a_step_within_the_other_ones_band_says_so() -> None:
    steps = [_step(models.PLANNED, [80, 100, 110]), _step("DDP", [80, 90, 110])]
    told = doc_runs.training(_result(steps, "models"))
    assert "a: each median lies in the other's band." in told


def _ready(who: str, ranks: int, ms: float) -> Record:
    fields: Record = {
        **samples.p2p_fields(who, who, "shm", 0),
        "topic": "setup",
        "op": "barrier",
        "ranks": ranks,
        "timed": setup.TIMED["barrier"],
        "rank_bytes": 1024.0 * (100 + 10 * (ranks - 1)),
    }
    return merged(fields, [ms * 1e6])


def test_set_up_has_its_curves_and_says_where_gloo_is_faster() -> None:
    found = [_ready(who, n, n * ms) for who, ms in ((OURS, 4), ("gloo", 2)) for n in (2, 4, 8)]
    found[-1] = _ready("gloo", 8, 64)
    head, table, notes = doc_runs.set_up(_result(found, "setup")).split("\n\n")
    assert "bench setup" in head
    ours, gloo = cells_of(table)
    fits = ["ranks^1.00", "100 KiB and 10 KiB for each other"]
    assert ours[1:] == ["8 ms (8-8)", "16 ms (16-16)", "32 ms (32-32)", *fits, ""]
    assert gloo[1:4] == ["4 ms (4-4), **0.50**", "8 ms (8-8), **0.50**", "64 ms (64-64), 2.00"]
    assert gloo[-1] == "a"
    assert notes.startswith("a: ours proves each path")
    found[-1]["contestant"] = found[-2]["contestant"] = "somebody"
    with pytest.raises(ValueError, match="somebody is faster, and why"):
        doc_runs.set_up(_result(found, "setup"))


def test_scale_has_what_was_fitted_and_the_error_beyond() -> None:
    true = model.Constants(20_000.0, 9_000.0, 30_000.0, 0.8, 0.25)
    found = []
    for ranks in (2, 4, 8, 12, 16):
        for size in (4096, 1 << 20):
            for name in model.ALGORITHMS:
                took_ns = model.predict(true, name, ranks, size, cores=2)
                took_ns *= 2 if ranks > 8 else 1
                fields = {**samples.p2p_fields(OURS, OURS, "tcp", size), "op": name}
                more: Record = {"topic": "scale", "ranks": ranks, "timed": "calls"}
                known: Record = {"cores": 2, "gamma_ns": true.gamma_ns}
                found.append({**merged({**fields, **more}, [took_ns]), **known})
    told = doc_runs.scale(_result(found, "scale")).split("\n\n")
    head, fitted, supports, missed, beyond, _, winners, needs, source = told
    assert cells_of(supports)[0][1:5] == ["2, 4, 8", "2", "4, 8", "2, 4, 8"]
    assert beyond.endswith("Of the 16 times that were not fitted 16 are above the model's.")
    assert "bench scale" in head
    assert cells_of(fitted)[0][:3] == ["tcp, messages", "20.00 us", "9.00 us"]
    assert cells_of(missed) == [["tcp, messages", "x 1.00", "x 1.00", "x 2.00", "x 2.00"]]
    assert [row[0] for row in cells_of(winners)] == list(map(size_text, scale_tables.SIZES))
    assert all(len(row) == 1 + len(scale_tables.LADDER) for row in cells_of(winners))
    all_pairs = cells_of(needs)[-1]
    assert (all_pairs[0], all_pairs[2]) == ("all pairs", "896.0 KiB, 21")
    assert "not measured" in source
    with pytest.raises(ValueError, match="too few"):
        doc_runs.scale(_result(found[:1], "scale"))
