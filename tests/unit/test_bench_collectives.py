"""`rdmatensor bench collectives`: rows, tails, costs, floors and verdicts, on made-up records."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib import mpi
from bench.benchlib.record import Record, number
from bench.suite import (
    collectives,
    peers,
    plots,
    samples,
    tables,
)
from bench.suite.settings import KIB, MIB, Settings


def _said(name: str, rank: int, **fields: object) -> Record:
    """Return what a rank prints of one cell."""
    return {
        "name": name,
        "op": "all_reduce",
        "size": MIB,
        "row": "plain",
        "moved_bytes": MIB,
        "ranks": 2,
        "rank": rank,
        "raw_ns": [1000, 1100],
        "cpu_ns": [400, 600],
        "each_ns": [1000] * 198 + [5000, 9000],
        "loop_ns": [],
        **fields,
    }


def _turn(name: str, ns: int, **fields: object) -> Record:
    more = {"raw_ns": [ns] * 3, "each_ns": [ns] * 100, "cpu_ns": [ns] * 3, **fields}
    said = [_said(name, rank, **more) for rank in (0, 1)]
    (merged,) = samples.merge([collectives.record_of(said, "shm")])
    return collectives.with_bandwidth({**merged, "cores": 2})


def _cells(line: str) -> list[str]:
    return [cell for cell in line.split("  ") if cell]


def test_a_sample_is_the_slowest_rank_s_and_cpu_time_that_of_all() -> None:
    said = [
        _said("gloo", 0, raw_ns=[10, 40], cpu_ns=[1, 3], each_ns=[9, 11, 40]),
        _said("gloo", 1, raw_ns=[30, 20], cpu_ns=[2, 4], each_ns=[30, 5, 6]),
    ]
    found = collectives.record_of(said, "tcp")
    assert found["raw_ns"] == [30, 40]
    assert found["samples"] == 3  # calls, of which the tails are
    assert number(found, "call_cpu_ns") in (3, 7)
    assert found["waits"] == "sleeps"


def test_sizes_that_move_as_much_stay_apart() -> None:
    said: list[Record] = [
        {
            "name": "gloo",
            "op": "all_gather",
            "size": size,
            "moved_bytes": 16,
            "ranks": 4,
            "row": "plain",
            "raw_ns": [100],
            "each_ns": [90, 110],
            "cpu_ns": [50],
            "loop_ns": [],
        }
        for size in (8, 16)
        for _ in range(4)
    ]
    found = [collectives.record_of(several, "shm") for several in collectives.by_key(said).values()]
    assert [record["size"] for record in samples.merge(found)] == [8, 16]
    assert collectives.with_bandwidth(found[0])["algbw_gb_per_s"] == pytest.approx(0.16)


def test_tails_are_of_single_calls_where_a_turn_has_enough() -> None:
    found = collectives.record_of([_said("rdmatensor", rank) for rank in (0, 1)], "shm")
    assert found["p99"] == 1000
    assert "p999" not in found
    many: list[int] = [1000] * 990 + [7000] * 10
    found = collectives.record_of(
        [_said("rdmatensor", rank, each_ns=many) for rank in (0, 1)], "shm"
    )
    assert found["p999"] == 7000
    assert found["p90"] == 1100  # of the means


def test_processor_time_of_a_call_and_of_as_many_bytes() -> None:
    record = _turn("rdmatensor", 1000)
    assert record["call_cpu_ns"] == 2000
    assert record["cpu_s_per_gb"] == pytest.approx(2000 / MIB)


def test_what_the_ranks_do_themselves_is_taken_off() -> None:
    record = _turn("gloo", 5000, row="same", loop_ns=[2000] * 3)
    assert collectives.net_ns(record) == 3000
    assert record["algbw_gb_per_s"] == pytest.approx(MIB / 3000, rel=1e-4)
    noisy = _turn("gloo", 5000, row="same", loop_ns=[6000] * 3)
    assert "algbw_gb_per_s" not in noisy
    assert "-1.00 us" in tables.table_of("collectives", [noisy])


def test_the_table_has_the_share_of_the_copy_floor() -> None:
    records = [_turn("rdmatensor", 1250), _turn("copies", 1000), _turn("gloo", 5000)]
    lines = tables.table_of("collectives", records).splitlines()
    heads = _cells(lines[0])
    assert [head.strip() for head in heads[-2:]] == ["of floor", "over rdmatensor"]
    (own,) = [line for line in lines if "rdmatensor, " in line]
    (gloo,) = [line for line in lines if "gloo, sleeps" in line]
    (floor,) = [line for line in lines if "copy floor" in line and "MiB" in line]
    assert [cell.strip() for cell in _cells(own)[-2:]] == ["0.80", "-"]
    assert [cell.strip() for cell in _cells(gloo)[-2:]] == ["0.20", "4.00"]
    assert [cell.strip() for cell in _cells(floor)[-2:]] == ["-", "0.80"]


def test_who_has_no_arena_stands_beside_it_with_the_same_tensors() -> None:
    records = [
        _turn("rdmatensor", 1500, row="arena", loop_ns=[500] * 3),
        _turn("gloo", 6500, row="same", loop_ns=[500] * 3),
        _turn("copies", 800),
    ]
    shown = tables.table_of("collectives", records)
    (arena,) = [line for line in shown.splitlines() if " arena " in line and "MiB" in line]
    assert _cells(arena)[-2].strip() == "0.80"
    assert (
        "shm, 2 ranks on 2 cores, arena: Gloo's time over rdmatensor's, geometric mean of 1: 6.00"
        in shown
    )


def test_every_cell_in_which_another_library_is_faster_is_named() -> None:
    records = [
        _turn("rdmatensor", 1000),
        _turn("gloo", 4000),
        _turn("rdmatensor", 1000, op="gather", size=64 * KIB),
        _turn("gloo", 250, op="gather", size=64 * KIB),
        _turn("mpi", 2000),
    ]
    gloo, other = tables.verdicts(records)
    assert gloo == (
        "shm, 2 ranks on 2 cores, plain: Gloo's time over rdmatensor's, geometric mean of 2: 1.00; "
        "Gloo is faster in: gather 64 KiB (0.25)"
    )
    assert other.endswith("geometric mean of 1: 2.00; Open MPI is faster in: none")


@pytest.mark.parametrize(
    ("settings", "is_first", "ways"),
    [
        (Settings(is_quick=True), True, "plain"),
        (Settings(), True, "plain,same,fresh,arena"),
        (Settings(), False, "plain"),
        (Settings(is_quick=True, rows=("fresh",)), False, "fresh"),
    ],
)
def test_rows_are_those_that_there_is_time_for(
    settings: Settings, is_first: bool, ways: str
) -> None:
    words = collectives.words_of(settings, 4, is_first=is_first)
    assert words["rows"] == tuple(ways.split(","))
    assert "send" not in words["operations"]  # of two ranks


def test_mpi_is_named_with_what_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, module, why in (
        (None, object(), "no mpirun"),
        ("/bin/mpirun", None, "no module mpi4py"),
        ("/bin/mpirun", object(), ""),
    ):
        monkeypatch.setattr(mpi.shutil, "which", lambda _, found=found: found)
        monkeypatch.setattr(mpi, "version", lambda: "Open MPI 4")
        monkeypatch.setattr(mpi.importlib.util, "find_spec", lambda _, module=module: module)
        mpi.why_missing.cache_clear()
        assert why in mpi.why_missing()
        assert bool(mpi.why_missing()) == bool(why)
    mpi.why_missing.cache_clear()
    (peer,) = [one for one in peers.PEERS if one.name == "mpi"]
    assert "openmpi-bin" in peer.how_to_get


def test_more_ranks_than_cores_offer_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    for ranks, waits, is_yielding in ((2, "spins", "0"), (3, "yields, oversubscribed", "1")):
        words = mpi.command(ranks, "tcp")
        assert words[words.index("mpi_yield_when_idle") + 1] == is_yielding
        assert words[words.index("btl") + 1] == "self,tcp"
        assert mpi.waits(ranks) == waits


def test_a_program_that_fails_says_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for script, why in (("echo so; exit 3", "status 3\nso"), ("sleep 60", "status None")):
        monkeypatch.setattr(mpi, "command", lambda *_, script=script: ["bash", "-c", script])
        with pytest.raises(RuntimeError, match=why):
            mpi.run("collectives", 2, "shm", {}, timeout_s=0.5)


def test_mpirun_ends_with_who_started_it(tmp_path: Path) -> None:
    root, told = Path(__file__).resolve().parents[2], tmp_path / "told"
    script = f"trap 'echo told > {told}; exit' TERM; echo ready > {tmp_path}/ready; sleep 50 & wait"
    program = (
        "import sys; sys.path.append(sys.argv[1])\n"
        "from bench.benchlib import mpi\n"
        "mpi._wait(['bash', '-c', sys.argv[2]], 1, 50.0)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(root), script])
    for awaited in (tmp_path / "ready", told):
        deadline_s = time.monotonic() + 20.0
        while not awaited.exists():
            assert time.monotonic() < deadline_s, awaited
            time.sleep(0.02)
        parent.kill()
        parent.wait()


def test_a_picture_has_a_panel_for_each_operation(tmp_path: Path) -> None:
    sizes = (8, 64 * KIB, MIB)
    records = [
        _turn(who, ns, size=size, moved_bytes=size)
        for who, ns in (("rdmatensor", 1000), ("copies", 900), ("mpi", 1500))
        for size in sizes
    ]
    assert plots.of_collectives(records, tmp_path) == ["collectives_shm_2.png"]
    assert (tmp_path / "collectives_shm_2.png").read_bytes().startswith(b"\x89PNG")
    assert plots.of_collectives(records[:1], tmp_path) == []


def test_the_loop_of_a_turn_is_taken_off_its_own_samples() -> None:
    """Of three turns two are slow; what ranks do themselves is that of each turn."""
    fields: Record = {**samples.p2p_fields("gloo", "gloo", "shm", 8), "op": "send", "ranks": 2}
    turns = ([10, 11, 12, 13, 14], [10, 50, 51, 52, 53], [10, 50, 51, 52, 53])
    loops = (5, 40, 41)
    (record,) = samples.merge(
        [samples.turn({**fields, "loop_ns": of}, raw) for of, raw in zip(loops, turns, strict=True)]
    )
    assert [samples.figure(record, name) for name in ("p10", "median_ns", "p90")] == [10, 50, 53]
    assert record[samples.LOOPS] == [5, 40, 41]
    assert sorted(collectives.net_samples(record)) == sorted(
        [5, 6, 7, 8, 9, -30, 10, 11, 12, 13, -31, 9, 10, 11, 12]
    )
    assert collectives.net_ns(record) == 9
