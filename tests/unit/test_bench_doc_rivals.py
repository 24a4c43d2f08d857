"""README's tables beside gRPC and from Python: the faster way counts, aims by all their sizes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench_made_up import cells_of, merged, result_of

from bench.benchlib.record import Record
from bench.suite import doc_rivals, samples, tensors
from bench.suite.p2p import ANSWERED
from bench.suite.peers import OURS

KIB, MIB = 1 << 10, 1 << 20
SPINNING, SLEEPING = samples.WAITS["spin"], samples.WAITS["sleep"]


def _record(who: str, peer: str, path: str, size: int, ns: int, **more: str) -> Record:
    how = {"language": "C", "wait": SPINNING, "timed": samples.HALF, **more}
    return merged(samples.p2p_fields(who, peer, path, size, **how), [ns])


def _grpc(way: str, path: str, size: int, ns: int) -> Record:
    name = f"gRPC C++ {way}"
    return _record(name, "grpc-cpp", path, size, ns, language="C++", wait=SLEEPING)


def test_beside_grpc_its_faster_way_counts_and_ours_that_spins() -> None:
    records = [
        _record(OURS, OURS, "shm", 8, 100),
        _record(OURS, OURS, "tcp", 8, 10_000),
        _record(OURS, OURS, "tcp", 8, 40_000, wait=SLEEPING),
        *(_grpc(way, path, 8, ns) for path in ("shm", "tcp") for way, ns in WAYS),
    ]
    _, table, aims = doc_rivals.beside_grpc(result_of(records)).split("\n\n")
    grpc, shm, tcp, *tensors_read = cells_of(table)
    assert grpc[1].startswith("stream: 25 us")
    assert shm[1].endswith(", 250x")
    assert tcp[1].startswith("10 us")
    assert tcp[1].endswith(", 2.5x")
    assert [cells[1:] for cells in tensors_read] == [[""], [""]]
    assert "- gRPC C++, shm, 8 B, its time over ours >= 100: met: 250.00" in aims
    assert "- gRPC C++, tcp, 8 B, its time over ours >= 3: missed: 2.50" in aims
    assert "64 MiB" not in aims


WAYS = (("unary", 30_000), ("stream", 25_000))


def test_a_tensor_that_is_read_stands_beside_the_same_message_of_grpc() -> None:
    slot = _record(tensors.SLOT, OURS, "shm", MIB, 50_000, timed=tensors.TENSOR)
    records = [_record(OURS, OURS, "shm", MIB, 20_000), slot, _grpc("stream", "shm", MIB, 100_000)]
    _, table = doc_rivals.beside_grpc(result_of(records)).split("\n\n")
    _, _, read = cells_of(table)
    assert read[1].endswith(", 2.0x")


def test_an_aim_of_many_sizes_names_those_that_miss_it() -> None:
    records = [
        one
        for size, ns in ((8, 10), (4 * KIB, 949), (64 * KIB, 500), (MIB, 960))
        for one in (
            _record(OURS, OURS, "shm", size, 1000),
            _record("UCX put", "ucx", "shm", size, ns),
        )
    ]
    aims = doc_rivals.beside_grpc(result_of(records)).split("\n\n")[2].splitlines()
    (ucx,) = aims
    assert ucx.endswith("missed: 0.949 at 4 KiB, 0.50 at 64 KiB")  # 8 B is none of it


def test_from_python_rivals_stand_beside_both_of_our_ways() -> None:
    records = [
        _record(f"{OURS}, Python{more}", OURS, "shm", size, ns, language="Python", timed=timed)
        for more, of in (("", (4_000, 8_000_000)), (", one handle", (2_000, 4_000_000)))
        for (size, timed), ns in zip(CELLS, of, strict=True)
    ]
    # What goes over TCP says so, and is the same rival.
    for (size, timed), more, ns in zip(CELLS, (", over TCP", ""), (12_000, 5_000_000), strict=True):
        name, how = f"NIXL, one handle{more}", {"language": "Python", "timed": timed}
        records.append(_record(name, "nixl", "shm", size, ns, **how))
    table, aims = doc_rivals.from_python(result_of(records)).split("\n\n")
    call, handle, nixl = cells_of(table)
    assert (call[0], handle[0], nixl[0]) == ("ours", "ours, one handle", "NIXL, one handle")
    assert nixl[1] == "12 us (12-12), over TCP, 3.0x, 6.0x"
    assert nixl[2].endswith(", 0.6x, 1.2x")
    assert nixl[3:] == ["", ""]
    tcp = "- NIXL, shm (which sends these over TCP), 8 B"
    assert f"{tcp}, its time over ours >= 4: met: 6.00" in aims
    assert "- NIXL, shm, 64 MiB, its time over ours >= 1.5: missed: 1.25" in aims


CELLS = ((8, samples.HALF), (64 * MIB, ANSWERED))
