"""Which figures tables and pictures of `rdmatensor bench` print, on records that are made up."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.record import Record
from bench.suite import p2p, samples, tables

_TAILS = ("p99", "p999")


def _most(count: int, ns: int) -> str:
    return f"most of {count}: {ns} ns"


def _row(name: str, peer: str, ns: float, wait: str = "spinning") -> Record:
    fields = samples.p2p_fields(name, peer, "tcp", 8, language="C", wait=wait, timed=samples.HALF)
    (merged,) = samples.merge([samples.turn(fields, [ns] * 3) for _ in range(3)])
    return merged


def _by_waiting() -> list[Record]:
    return [
        _row("rdmatensor", "rdmatensor", 100.0),
        _row("rdmatensor", "rdmatensor", 400.0, "sleeping"),
        _row("plain socket", "floor", 80.0),
        _row("plain socket", "floor", 600.0, "sleeping"),
        _row("gRPC", "grpc-cpp", 2000.0, "sleeping"),
    ]


def test_who_waits_alike_is_compared() -> None:
    own = tables.fastest_of(_by_waiting(), "rdmatensor")
    found = [tables.factors_of(record, own) for record in _by_waiting()]
    assert found == [(None, None)] * 2 + [(0.8, None), (1.5, None), (5.0, 20.0)]
    only_spinning = tables.fastest_of(_by_waiting()[:1], "rdmatensor")
    assert tables.factors_of(_by_waiting()[-1], only_spinning) == (None, 20.0)


def test_the_table_has_both_factors_of_who_sleeps() -> None:
    lines = tables.table_of("p2p", _by_waiting()).splitlines()
    assert lines[0].endswith("over rdmatensor")
    (sleeping,) = [line for line in lines if "plain socket, sleeping" in line]
    assert sleeping.split()[-2:] == ["-", "1.50"]
    (grpc,) = [line for line in lines if "gRPC" in line]
    assert grpc.split()[-2:] == ["20.00", "5.00"]


def test_a_row_that_was_to_sleep_says_how_often_it_did() -> None:
    one: Record = {**_row("plain socket", "floor", 600.0, "sleeping"), "cpu_ns_per_trip": 9000}
    shown = [tables.table_of("p2p", [{**one, "switches_per_trip": slept}]) for slept in (1.02, 0.1)]
    assert "plain socket, sleeping (1.02 times a trip, CPU 9.00 us), half" in shown[0]
    assert "plain socket, hardly sleeping (0.10 times a trip, CPU 9.00 us), half" in shown[1]
    spins: Record = {**_row("plain socket", "floor", 600.0), "switches_per_trip": 0.0}
    assert "plain socket, spinning, half" in tables.table_of("p2p", [spins])


def test_a_tail_needs_samples_of_all_turns_together() -> None:
    fields: Record = {"topic": "p2p", "name": "x"}
    for count, names in ((6, ()), (33, ()), (34, ("p99",)), (333, ("p99",)), (334, _TAILS)):
        (merged,) = samples.merge([samples.turn(fields, range(count)) for _ in range(3)])
        assert tuple(name for name in _TAILS if name in merged) == names
        shown = samples.tail_text(merged, "p999")
        assert shown == (f"{count - 1} ns" if "p999" in names else _most(3 * count, count - 1))
        assert (samples.tail_text(merged, "p99") == "-") == ("p99" not in names)


def test_tails_of_means_are_those_of_their_calls() -> None:
    fields: Record = {"topic": "collectives", "name": "x"}
    turns = [samples.turn(fields, [50], calls_ns=range(400)) for _ in range(3)]
    (merged,) = samples.merge(turns)
    assert (merged["median_ns"], merged["p90"], merged["p999"]) == (50, 50, 399)
    assert "calls_ns" not in merged
    (merged,) = samples.merge(turns[:1])
    assert samples.tail_text(merged, "p999") == _most(400, 399)


def test_of_more_samples_than_are_printed_the_turns_say_the_tail() -> None:
    fields: Record = {"topic": "p2p", "name": "x"}
    knows: Record = {"p99": 7, "p999": 9, "samples": 5000}
    turns = [samples.turn(fields, [1, 2], known) for known in (knows, {**knows, "samples": 500})]
    assert samples.merge(turns[:1])[0]["p999"] == 9
    assert samples.merge(turns)[0]["p99"] == 7
    assert samples.tail_text(samples.merge(turns)[0], "p999") == "-"  # nobody knows the largest


def test_a_row_that_goes_over_another_path_says_so() -> None:
    assert p2p.name_of("nixl", "prepared", "shm", 8) == "NIXL, one handle, over TCP"
    assert p2p.name_of("nixl", "prepared", "shm", 64 << 20) == "NIXL, one handle"
    assert p2p.name_of("nixl", "prepared", "tcp", 8) == "NIXL, one handle"
    assert p2p.name_of("rdmatensor", "write", "shm", 8) == "rdmatensor, Python"
    assert p2p.name_of("rdmatensor", "prepared", "shm", 8) == "rdmatensor, Python, one handle"


def test_a_cost_that_some_turns_do_not_tell_is_left_out() -> None:
    """Processor time of a run that was little more than its start says nothing."""
    fields = samples.p2p_fields("UCX put", "ucx", "shm", 8, timed="1 in flight, one way")
    cost = samples.COSTS[0]
    told, silent = (samples.turn({**fields, **more}, [5.0]) for more in ({cost: 2.0}, {}))
    for turns in ([told, silent], [silent, told]):
        assert cost not in samples.merge(turns)[0]
    assert samples.merge([told, {**told, cost: 4.0}, told])[0][cost] == 2.0
