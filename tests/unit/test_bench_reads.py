"""What the suite says of one-sided reads; nothing is measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))


from bench.benchlib import programs
from bench.benchlib.record import Record
from bench.suite import plots, samples, streams, tables
from bench.suite.peers import OURS
from bench.suite.settings import KIB, MIB, Settings


def _printed(who: str, ns: int, *, path: str = "shm", size: int = 8, depth: int = 1) -> Record:
    return {
        "contestant": who,
        "transport": path,
        "wait": "spin",
        "size": size,
        "depth": depth,
        "raw_ns": [ns] * 1000,
        "samples": 1000,
        "first_cpu_s_per_gb": 1.5,
        "second_cpu_s_per_gb": 0.25,
    }


def _reads(who: str, ns: int, *, path: str = "shm", size: int = 8) -> list[Record]:
    return samples.merge(
        [
            streams.record_of(
                _printed(who, ns, path=path, size=size, depth=depth), is_of_reads=True
            )
            for _ in range(3)
            for depth in streams.DEPTHS
        ]
    )


def _ucx(ns: int, path: str = "shm", size: int = 8) -> list[Record]:
    fields = [
        streams._ucx_fields(streams.UCX_GET, path, size, depth, streams.timed_read(depth))
        for depth in streams.DEPTHS
    ]
    return samples.merge([samples.turn(one, [ns]) for _ in range(3) for one in fields])


def test_reads_are_rows_of_their_own() -> None:
    found = [*_reads("ours", 100), *_reads("floor", 50), *_ucx(300)]
    assert {record["timed"] for record in found} == {"a read alone", "16 reads under way"}
    assert {record["contestant"] for record in found} == {OURS, "memcpy", "UCX get"}
    assert all(map(streams.is_read, found))
    assert not any(streams.is_stream(one) or streams.is_cold(one) for one in found)


def test_the_table_has_tails_rate_processor_time_and_ratio() -> None:
    found = [*_reads("ours", 100), *_reads("floor", 50), *_ucx(300)]
    lines = tables.p2p(found).splitlines()
    assert sum("one-sided reads" in line for line in lines) == 1
    assert not any("one transfer" in line for line in lines)  # no other table
    (ours,) = [one for one in lines if f"{OURS}, spinning, a read alone" in one]
    assert ours.split()[-11:] == [*["100", "ns"] * 3, "-", "1.5", "0.25", "-", "-"]
    (floor,) = [one for one in lines if "memcpy, spinning, 16 reads under way" in one]
    assert floor.split()[-5:] == ["-", "1.5", "0.25", "-", "0.50"]
    (ucx,) = [one for one in lines if "UCX get, spinning, a read alone" in one]
    assert ucx.split()[-5:] == ["-", "-", "-", "-", "3.00"]  # too few


def test_there_is_a_turn_for_each_size_depth_and_way_of_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, ...]] = []

    def run(name: str, *words: str) -> list[Record]:
        asked.append((name, *words))
        return [_printed(who, 100) for who in ("ours", "floor")]

    monkeypatch.setattr(programs, "run", run)
    full = list(streams.read_turns(Settings(), "tcp", has_floor=True))
    assert len(full) == len({name for name, _ in full}) == 6 * 2 * 2
    quick = list(streams.read_turns(Settings(is_quick=True), "tcp", has_floor=False))
    assert len(quick) == 4
    ((one,), *_) = [turn() for _, turn in quick]
    assert one["peer"] == OURS
    assert asked[0][0] == "reads"
    assert asked[0][asked[0].index("--count") + 1] == "200"
    assert streams.read_count(64 * MIB, 16, is_quick=True) == 16
    assert streams.read_sizes(Settings(sizes=(4 * KIB, 1 << 30))) == (4 * KIB,)


def test_ucx_tells_what_is_typical_of_one_and_the_mean_of_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = "iterations,50.0_percentile_lat\n10,17.9,446.2,400.5,140.0,141.0,2241,2242\n"
    asked: list[list[str]] = []

    def spent(words: list[str], *_: object) -> programs.Spent:
        asked.append(words)
        return programs.Spent(row, (0.1 * len(asked), 0.1 * len(asked)))

    monkeypatch.setattr(programs, "run_ucx_spent", spent)
    settings = Settings(sizes=(64 * MIB,))
    (_, alone), (_, many) = streams.ucx_read_turns(settings, "tcp", "tcp,self")
    assert [alone()[0]["median_ns"], many()[0]["median_ns"]] == [17900, 400500]
    assert asked[1][:6] == ["-t", "ucp_get", "-s", str(64 * MIB), "-O", "1"]
    assert int(asked[1][asked[1].index("-n") + 1]) == 10


def test_reads_have_pictures_of_their_own(tmp_path: Path) -> None:
    found = [*_reads("ours", 100), *_reads("ours", 900, size=MIB), *_reads("floor", 50)]
    files = [picture.file for picture in plots.p2p(found, tmp_path)]
    assert files == ["p2p_shm_time.png", "p2p_shm_rate.png"]
