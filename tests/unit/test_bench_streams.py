"""What the suite says of messages in a row and of a cold start; nothing is measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib import programs
from bench.benchlib.record import Record
from bench.suite import command, plots, samples, streams, tables
from bench.suite.peers import OURS
from bench.suite.settings import MIB, Settings

GIB = 1024 * MIB


def _printed(who: str, ns: int, *, size: int = MIB, depth: int = 1, both: bool = False) -> Record:
    return {
        "contestant": who,
        "transport": "tcp",
        "wait": "spin",
        "size": size,
        "depth": depth,
        "both": both,
        "raw_ns": [ns, ns, ns],
        "samples": 3,
        "first_cpu_s_per_gb": ns / 1e6,
        "second_cpu_s_per_gb": ns / 2e6,
    }


def _rows(who: str, ns: int, size: int = MIB) -> list[Record]:
    found = [
        streams.record_of(_printed(who, ns * turn, size=size, depth=depth, both=both))
        for turn in (1, 3, 2)
        for depth in streams.DEPTHS
        for both in (False, True)
    ]
    return samples.merge(found)


def test_depth_and_direction_are_rows_of_their_own() -> None:
    found = _rows("ours", 1000)
    assert len(found) == 4
    assert {record["timed"] for record in found} == {
        "1 in flight, one way",
        "16 in flight, one way",
        "1 in flight, both ways",
        "16 in flight, both ways",
    }
    assert all(streams.is_stream(record) and record["peer"] == OURS for record in found)


def test_processor_time_is_the_median_of_the_turns() -> None:
    first = _rows("ours", 1000)[0]
    assert first["first_cpu_s_per_gb"] == pytest.approx(2000 / 1e6)
    assert first["second_cpu_s_per_gb"] == pytest.approx(1000 / 1e6)


def test_quantiles_of_turns_that_differ_stand_in_their_order() -> None:
    """Medians of the turns' tails did not: 339 ms as the median, 343 ms as the lowest tenth."""
    fields: Record = {"topic": "models", "contestant": "x", "size": 8}
    (one,) = samples.merge(
        [samples.turn(fields, [100, 110, 120]), samples.turn(fields, [300, 310])]
    )
    assert (one["p10"], one["median_ns"], one["p90"]) == (100, 120, 310)


def test_the_table_has_rate_processor_time_and_ratio() -> None:
    shown = tables.p2p([*_rows("ours", 1 << 20), *_rows("floor", 2 << 20)])
    (line,) = [one for one in shown.splitlines() if "socket, spinning, 16 in flight, one" in one]
    assert line.split()[-5:] == ["0.250", "4.19", "2.1", "-", "2.00"]
    assert "times ours" in shown
    assert "one transfer" not in shown  # none is measured alone


def test_a_picture_needs_two_sizes(tmp_path: Path) -> None:
    assert plots.p2p(_rows("ours", 1000), tmp_path) == []
    both = [*_rows("ours", 1000), *_rows("ours", 3000, 4 * MIB), *_rows("floor", 900)]
    picture, _ = plots.p2p(both, tmp_path)
    assert (tmp_path / picture.file).read_bytes().startswith(b"\x89PNG")


def test_what_finds_no_room_is_named() -> None:
    sizes, without = streams.sizes_of(Settings(sizes=(8, GIB)), 4 * GIB)
    assert sizes == [8]
    (record,) = without
    assert "missing in p2p: messages of 1 GiB in a row" in tables.missing([record])[0]
    assert streams.sizes_of(Settings(sizes=(8, GIB)), 16 * GIB) == ([8, GIB], [])
    assert max(streams.sizes_of(Settings(is_quick=True), 16 * GIB)[0]) == MIB
    assert max(streams.sizes_of(Settings(), 16 * GIB)[0]) == GIB


def test_a_sample_has_as_many_messages_as_are_in_flight() -> None:
    assert streams.counts_of(64 * MIB, 16, is_quick=True)[0] == 16
    assert streams.counts_of(8, 1, is_quick=False)[0] == 2000


def test_the_largest_are_one_at_a_time() -> None:
    settings = Settings(is_quick=True)
    names = [name for name, _ in streams.turns(settings, "shm", [MIB, GIB], has_floor=True)]
    assert sum("1 MiB" in name for name in names) == 4
    assert sum("1 GiB" in name for name in names) == 2
    ((name, _),) = streams.cold_turns(settings, "shm", [64 * MIB], has_floor=True)
    assert name == "cold start, shm 64 MiB"


def test_a_cold_start_has_registration_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ["alloc", "alloc again", "register", "populate", "open", "connect", "first write"]
    printed: list[Record] = [
        {"contestant": step, "raw_ns": [place + 1]} for place, step in enumerate(steps)
    ]
    monkeypatch.setattr(programs, "run", lambda *_: printed)
    *_, (_, cold) = streams.cold_turns(Settings(), "tcp", [256 * MIB], has_floor=True)
    records = samples.merge(cold())
    assert len(records) == len(steps)
    assert sum(record["peer"] == "floor" for record in records) == 1
    shown = tables.p2p(records)
    assert "rdmatensor: memory that exists, registered" in shown
    assert "rdmatensor: a connection" in shown


def test_memory_of_many_sizes_is_registered_and_a_context_is_opened_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, ...]] = []

    def print_steps(_name: str, *words: str) -> list[Record]:
        asked.append(words)
        steps = ("open", "connect", "alloc", "register", "populate", "first write")
        return [{"contestant": step, "raw_ns": [1]} for step in steps]

    monkeypatch.setattr(programs, "run", print_steps)
    sizes, without = streams.cold_sizes(Settings(), 16 * GIB)
    assert without == []
    assert {min(sizes), max(sizes)} == {8, GIB}
    found = [
        record
        for _, turn in streams.cold_turns(Settings(), "shm", sizes, has_floor=True)
        for record in turn()
    ]
    assert [words[words.index("--size") + 1] for words in asked] == [str(size) for size in sizes]
    for step, times in (("a context", 1), ("memory that exists, registered", len(sizes))):
        of_step = [record for record in found if record["timed"] == streams.COLD + step]
        assert len(of_step) == times, step


def test_memory_that_finds_no_room_is_named() -> None:
    sizes, (record,) = streams.cold_sizes(Settings(), 4 * GIB)
    assert max(sizes) == sizes[0] == 256 * MIB
    assert "missing in p2p: cold start with 1 GiB (needs 3 GiB" in tables.missing([record])[0]


def test_a_quick_run_and_chosen_sizes_have_one_cold_start() -> None:
    assert streams.cold_sizes(Settings(is_quick=True), 16 * GIB) == ([64 * MIB], [])
    assert streams.cold_sizes(Settings(sizes=(8, GIB)), 16 * GIB) == ([256 * MIB], [])


def test_only_messages_in_a_row_are_larger_than_64_mib(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["collectives", "--sizes", str(GIB)])
    assert "but for p2p" in capsys.readouterr().err
    chosen = command._parser().parse_args(["p2p", "--sizes", f"8,{GIB}"])
    settings = command.settings_of(chosen)
    assert settings.sizes == (8, GIB)
    assert settings.sizes_of("p2p") == (8,)


def _of_grpc(ns: int, *, size: int = MIB, both: bool = False) -> list[Record]:
    printed: Record = {
        **_printed("", ns, size=size, depth=16, both=both),
        "raw_us": [ns / 1000] * 3,
    }
    return [
        streams.grpc_record(printed, "gRPC C++ stream", transport) for transport in ("shm", "tcp")
    ]


def test_grpc_in_a_row_stands_beside_both_paths_and_over_our_spinning() -> None:
    found = samples.merge([*_rows("ours", 1 << 20), *_of_grpc(5 << 20, both=True)])
    shown = [line for line in tables.p2p(found).splitlines() if "gRPC" in line]
    assert [line.split()[0] for line in shown] == ["tcp", "shm"]
    assert "sleeping, 16 in flight, both ways" in shown[0]
    assert shown[0].split()[-2:] == ["2.50", "-"]  # ours spins, two ns a byte in the median


def test_processor_time_of_ucx_is_told_where_its_start_is_less_than_half() -> None:
    fields = samples.p2p_fields(
        "UCX put", "ucx", "tcp", MIB, language="C", wait="spinning", timed="1 in flight, one way"
    )
    output = "iterations,50.0_percentile_lat\n10,17.9,446.2,400.5,140.0,141.0,2241,2242\n"
    one, many = (programs.Spent(output, (s, s)) for s in (0.1, 0.3))
    told = streams.ucx_record(fields, one, many, 1000)
    assert told["median_ns"] == 400500
    assert told["first_cpu_s_per_gb"] == pytest.approx(0.2 / (MIB * 1000 / 1e9))
    untold = streams.ucx_record(fields, one, programs.Spent(output, (0.3, 0.15)), 1000)
    assert samples.COSTS[0] not in untold
    assert "UCX put" in tables.p2p(samples.merge([untold]))
    assert samples.COSTS[0] not in streams.ucx_record(fields, None, many, 1000)  # quick


def test_rivals_have_a_turn_for_each_depth() -> None:
    settings = Settings(transports=("tcp",))
    names = [name for name, _ in streams.grpc_turns(settings, "nowhere", [MIB, GIB])]
    assert len(names) == len(set(names)) == 8  # calls and a stream, two depths, two ways
    assert "1 GiB" in tables.missing(streams.without_room([MIB, GIB]))[0]
    of_ucx = [name for name, _ in streams.ucx_turns(settings, "tcp", "tcp", [MIB, GIB])]
    assert len(of_ucx) == len(set(of_ucx)) == 6
    words = streams.grpc_words("row", "a:1", 64 * MIB, 16, "both ways", is_quick=True)
    assert words == ["row", "a:1", str(64 * MIB), "16", "16", "3", "both"]
