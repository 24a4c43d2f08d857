"""The table of tails, processor time and a cold start: what is marked, and what is left out."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench_made_up import cells_of, result_of

from bench.benchlib.record import Record
from bench.suite import doc_costs, samples, streams
from bench.suite.peers import OURS

IN_A_ROW = "1 in flight, one way"


def _record(peer: str, us: float, **more: object) -> Record:
    known = {"samples": 5000, "p99": us * 2000, "p999": us * 4000}
    fields = samples.p2p_fields(peer, peer, "tcp", 4096)
    fields |= {"timed": samples.HALF, "wait": "spinning", "language": "C", **more}
    (merged,) = samples.merge([samples.turn(fields, [us * 1000], known)] * 3)
    return merged


def _moved(peer: str, us: float, *cpu_s: float) -> Record:
    return _record(peer, us, timed=IN_A_ROW, **dict(zip(samples.COSTS, cpu_s, strict=False)))


def test_each_figure_is_marked_by_itself() -> None:
    floor = _record("floor", 9) | {"p99": 25_000}
    slow = _record("floor", 12, contestant="another")
    grpc = _record("grpc-cpp", 90, wait="sleeping")
    text = doc_costs.block(result_of([_record(OURS, 10), floor, slow, grpc]))
    (row,) = cells_of(text.split("\n\n")[1])
    assert row[0] == "tcp 4 KiB, spinning"
    assert row[1:] == [
        "10.00 us, 20.00 us, 40.00 us",
        "**9.00 us**, 25.00 us, **36.00 us**",
        "90.00 us, 180.00 us, 360.00 us",
        "-",
    ]


def test_processor_time_is_of_both_sides_and_only_where_it_is_known() -> None:
    records = [
        _record(OURS, 10),
        _moved(OURS, 10, 0.3, 0.2),
        _moved("floor", 12, 0.1, 0.3),
        _moved("ucx", 5),
    ]
    _, _, spent = doc_costs.block(result_of(records)).split("\n\n")
    (row,) = cells_of(spent)
    assert row == [f"tcp 4 KiB, spinning, {IN_A_ROW}", "0.3 + 0.2", "**0.1 + 0.3**", "-", "-"]


def test_the_steps_of_a_cold_start_stand_in_their_order() -> None:
    steps = [_record(OURS, us, timed=f"{streams.COLD}{step}") for us, step in ((9, "b"), (7, "a"))]
    *_, cold = doc_costs.block(result_of([_record(OURS, 10), *steps])).split("\n\n")
    assert [row[1] for row in cells_of(cold)] == [f"{OURS}: b", f"{OURS}: a"]
