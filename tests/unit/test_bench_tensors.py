"""What the suite says of one tensor in four ways: turns, gains, and what compare makes of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib import programs
from bench.benchlib.record import Record
from bench.suite import compare, samples, tables, tensors
from bench.suite.peers import COPIES, OURS
from bench.suite.settings import Settings


def _row(contestant: str, peer: str, ns: float, timed: str = tensors.TENSOR) -> Record:
    fields = samples.p2p_fields(
        contestant, peer, "shm", 65536, language="C", wait="spinning", timed=timed
    )
    (merged,) = samples.merge([samples.turn(fields, [ns] * 3) for _ in range(3)])
    return merged


def _all() -> list[Record]:
    return [
        _row(tensors.SLOT, OURS, 1000.0),
        _row(tensors.DYNAMIC, OURS, 1500.0),
        _row(tensors.COPY, COPIES, 3000.0),
        _row(tensors.SERIALISED, COPIES, 6000.0),
        _row("gRPC C++ unary", "grpc-cpp", 60000.0, samples.HALF),
        _row("gRPC C++ stream", "grpc-cpp", 30000.0, samples.HALF),
        _row("UCX tag", "ucx", 2700.0, samples.HALF),
    ]


def test_each_gain_is_told_apart() -> None:
    (line,) = tensors.gains(_all())
    assert line == ("shm 64 KiB", "1.00 us", "1.50", "3.00", "2.00", "5.00", "30.00", "0.90")
    assert len(line) == 2 + len(tensors.GAINS)


def test_what_was_not_measured_is_no_gain() -> None:
    (line,) = tensors.gains(_all()[:3])
    assert line[2:] == ("1.50", "3.00", "-", "-", "-", "-")
    assert tensors.gains(_all()[2:]) == []
    other_timing = _row("UCX tag", "ucx", 2700.0, "until the peer knows")
    assert tensors.gains([_all()[0], _all()[2], other_timing])[0][-1] == "-"


def test_the_table_has_the_gains_below_the_transfers() -> None:
    shown = tables.p2p(_all())
    assert "what gains" in shown
    assert shown.index("times ours") < shown.index("dynamic / slot")
    assert shown.index("dynamic / slot") < shown.index("mixes its sleeping with our spinning")
    (copy,) = [line for line in shown.splitlines() if tensors.COPY in line]
    assert copy.endswith("3.00")
    assert "what gains" not in tables.p2p(_all()[4:])


def test_turns_come_from_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str, *words: str, **_: object) -> list[Record]:
        assert name == "tensors"
        assert words[:4] == ("--transport", "tcp", "--size", "4096")
        known: Record = {"raw_ns": [5, 7], "samples": 2}
        return [{"contestant": way, **known} for way in ("slot", "dynamic", "copy")]

    monkeypatch.setattr(programs, "run", run)
    settings = Settings(is_quick=True, sizes=(8, 4096))
    for has_copies, wanted in ((True, 3), (False, 2)):
        ((name, turn),) = tensors.turns(settings, "tcp", has_copies=has_copies)
        assert "4 KiB" in name
        found = turn()
        assert len(found) == wanted
        assert {record["timed"] for record in found} == {tensors.TENSOR}


def test_rivals_made_of_our_transports_are_no_drift() -> None:
    ours, others = _row(tensors.SLOT, OURS, 1000.0), _row(tensors.COPY, COPIES, 3000.0)
    slower = _row(tensors.COPY, COPIES, 6000.0)
    assert compare.drift(ours, [(ours, ours), (others, slower)]) == 0.0
    grpc = [_row("gRPC C++ unary", "grpc-cpp", ns) for ns in (100.0, 150.0)]
    assert compare.drift(ours, [(grpc[0], grpc[1])]) == pytest.approx(0.5)
