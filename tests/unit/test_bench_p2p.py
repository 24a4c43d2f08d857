"""`bench p2p`: its turns, records and tables, and peers that are broken; nothing is measured."""

from __future__ import annotations

import io
import itertools
import os
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib import programs
from bench.benchlib.record import Record, load
from bench.suite import command, options, p2p, peers, plots, rounds, samples, tables, transfers
from bench.suite.peers import RDMATENSOR
from bench.suite.settings import MIB, TOPICS, Settings

GIB = 1024 * MIB
CSV = "iterations,50.0_percentile_lat\n10,17.9,446.2,400.5,140.0,141.0,2241,2242\n"


def _printed(who: str, ns: int, *, path: str = "tcp", size: int = MIB, depth: int = 1) -> Record:
    return {
        "name": who,
        "transport": path,
        "wait": "spin",
        "size": size,
        "depth": depth,
        "both": False,
        "raw_ns": [ns, ns, ns],
        "samples": 3,
        "first_cpu_s_per_gb": ns / 1e6,
        "second_cpu_s_per_gb": ns / 2e6,
    }


def _rows(who: str, ns: int, size: int = MIB, *, is_read: bool = False) -> list[Record]:
    return samples.merge(
        [
            transfers.row_record(
                {**_printed(who, ns * turn, size=size, depth=depth), "both": both}, is_read=is_read
            )
            for turn in (1, 3, 2)
            for depth in transfers.DEPTHS
            for both in ((False,) if is_read else (False, True))
        ]
    )


def _program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_depth_and_direction_are_rows_and_reads_a_table() -> None:
    found = _rows("rdmatensor", 1000)
    assert {record["timed"] for record in found} == {
        f"{depth} in flight, {ways}" for depth in (1, 16) for ways in transfers.WAYS
    }
    assert found[0]["first_cpu_s_per_gb"] == pytest.approx(2000 / 1e6)  # of the turns the middle
    reads = _rows("floor", 1000, is_read=True)
    assert {record["timed"] for record in reads} == {"a read alone", "16 reads under way"}
    assert {record["name"] for record in reads} == {"plain socket"}
    kinds = {transfers.kind_of(one) for one in [*found, *reads]}
    assert kinds == {"messages in a row", "one-sided reads"}


def test_the_table_has_rate_processor_time_and_ratio() -> None:
    found = [*_rows("rdmatensor", 1 << 20), *_rows("floor", 2 << 20)]
    shown = tables.table_of("p2p", found)
    (line,) = [one for one in shown.splitlines() if "socket, spinning, 16 in flight, one" in one]
    assert line.split()[-5:] == ["0.250", "4.19", "2.1", "-", "2.00"]
    assert "one transfer" not in shown  # none is measured alone


def test_what_finds_no_room_is_named() -> None:
    sizes, (record,) = transfers.row_sizes(Settings(sizes=(8, GIB)), 4 * GIB)
    assert sizes == [8]
    assert "missing in p2p: messages of 1 GiB in a row" in tables.missing([record])[0]
    assert transfers.row_sizes(Settings(sizes=(8, GIB)), 16 * GIB) == ([8, GIB], [])
    sizes, (record,) = transfers.cold_sizes(Settings(), 4 * GIB)
    assert max(sizes) == sizes[0] == 256 * MIB
    assert "missing in p2p: cold start with 1 GiB (needs 3 GiB" in tables.missing([record])[0]
    assert transfers.cold_sizes(Settings(sizes=(8, GIB)), 16 * GIB) == ([256 * MIB], [])


def test_counts_have_bounds() -> None:
    assert transfers.counts_of(64 * MIB, 16, is_quick=True)[0] == 16
    assert transfers.counts_of(8, 1, is_quick=False)[0] == 2000
    assert [transfers.trips_of(size, is_quick=False) for size in (8, 64 * MIB)] == [2000, 10]
    assert [transfers.warm_up_of(trips) for trips in (2, 25, 2000)] == [5, 5, 400]
    assert transfers.depths_of(GIB) == (1,)


def test_a_context_is_opened_once_in_cold_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ("open", "connect", "alloc", "register", "populate", "first write")
    printed: list[Record] = [{"name": step, "raw_ns": [1]} for step in steps]
    monkeypatch.setattr(programs, "run", lambda *_, **__: printed)
    turns = transfers.cold_turns(Settings(), "shm", [256 * MIB, 8, GIB], has_floor=True)
    found = [record for _, turn in turns for record in turn()]
    for step, times in (("a context", 1), ("memory that exists, registered", 3)):
        assert sum(one["timed"] == transfers.COLD + step for one in found) == times
    shown = tables.table_of("p2p", samples.merge(found))
    assert "cold: memory that exists, registered" in shown


def test_what_is_compared_has_turns_side_by_side() -> None:
    settings = Settings(("p2p",), sizes=(8, 4 << 10), transports=("shm", "tcp"))
    present = {peer.name for peer in peers.PEERS}
    small, large = (
        [name for name, _ in p2p._turns_of(size, settings, "nowhere:1", present, settings.sizes)]
        for size in settings.sizes
    )
    assert all("8 B" in name for name in small)
    assert all("4 KiB" in name for name in large)
    assert len(set(large)) == len(large)
    kinds = ["row" if "in flight" in n else "read" if "read" in n else "single" for n in large]
    assert [kind for kind, _ in itertools.groupby(kinds)] == ["single", "row", "read"]
    singles = [name for name in large if "in flight" not in name]
    for who in ("rdmatensor and floor, shm", "rdmatensor and floor, tcp", "UCX put", "gRPC C++"):
        assert any(who in name for name in singles), who


def test_tensors_come_from_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    known: Record = {"raw_ns": [5, 7], "samples": 2}
    printed = [{"name": way, **known} for way in ("slot", "dynamic", "copy")]
    monkeypatch.setattr(programs, "run", lambda *_, **__: printed)
    for has_copies, wanted in ((True, 3), (False, 2)):
        found = transfers.tensors(Settings(is_quick=True), "tcp", 4096, has_copies=has_copies)
        assert len(found) == wanted
        assert {record["timed"] for record in found} == {transfers.TENSOR}


def test_grpc_counts_with_both_paths() -> None:
    printed: Record = {
        **_printed("", 5 << 20, depth=16),
        "both": True,
        "raw_us": [(5 << 20) / 1000] * 3,
    }
    of_grpc = [p2p.grpc_record(printed, "gRPC C++ stream", path) for path in ("shm", "tcp")]
    found = samples.merge([*_rows("rdmatensor", 1 << 20), *of_grpc])
    shown = [line for line in tables.table_of("p2p", found).splitlines() if "gRPC" in line]
    assert sorted(line.split(",")[0] for line in shown) == ["shm", "tcp"]
    (line,) = [line for line in shown if line.startswith("tcp")]
    assert "sleeping, 16 in flight, both ways" in line
    assert line.split()[-2:] == ["2.50", "-"]  # rdmatensor spins


def test_processor_time_of_ucx_is_given_where_its_start_is_less_than_half() -> None:
    fields = p2p._ucx_fields("UCX put", "tcp", MIB, "1 in flight, one way", depth=1)
    one, many = (programs.Spent(CSV, (s, s)) for s in (0.1, 0.3))
    known = p2p.ucx_record(fields, one, many, 1000)
    assert known["median_ns"] == 400500
    assert known["first_cpu_s_per_gb"] == pytest.approx(0.2 / (MIB * 1000 / 1e9))
    unknown = p2p.ucx_record(fields, one, programs.Spent(CSV, (0.3, 0.15)), 1000)
    assert samples.COSTS[0] not in unknown
    assert samples.COSTS[0] not in p2p.ucx_record(fields, None, many, 1000)  # quick
    assert p2p.ucx_record(fields, None, many, 1000, 1)["median_ns"] == 17900  # what is typical


def test_a_picture_needs_two_sizes(tmp_path: Path) -> None:
    assert plots.of_p2p(_rows("rdmatensor", 1000), tmp_path) == []
    both = [*_rows("rdmatensor", 1000), *_rows("rdmatensor", 3000, 4 * MIB), *_rows("floor", 900)]
    (picture,) = plots.of_p2p(both, tmp_path)
    assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


def test_only_messages_in_a_row_are_larger_than_64_mib(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["collectives", "--sizes", str(GIB)])
    assert "but for p2p" in capsys.readouterr().err
    chosen = options.parser_of(None).parse_args(["p2p", "--sizes", f"8,{GIB}"])
    assert options.settings_of(chosen).sizes_of("p2p") == (8,)


# ---- Peers that are broken ----------------------------------------------------------------------


@pytest.mark.parametrize("script", ["exit 1", "echo other; exec sleep 60", "exec sleep 60"])
def test_a_server_that_does_not_start_is_given_up(tmp_path: Path, script: str) -> None:
    server = _program(tmp_path / "server", f"echo $$ > {tmp_path}/pid; {script}")
    began_s = time.monotonic()
    with pytest.raises(RuntimeError, match="did not start"), p2p._grpc_server(server, 1.0):
        raise AssertionError
    assert time.monotonic() - began_s < 20
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text(encoding="utf-8")), 0)


def test_what_does_not_import_in_time_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = _program(tmp_path / "python", "exec sleep 60")
    monkeypatch.setenv(peers._NIXL_PYTHON, str(python))
    monkeypatch.setattr(peers, "_PROBE_LIMIT_S", 0.1)
    assert peers.find_nixl() == (None, "NIXL is not imported after 0.1 s")


def test_the_others_go_on_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fields = samples.p2p_fields(RDMATENSOR, RDMATENSOR, "shm", 8, language="C")
    turn = ("rdmatensor", lambda: [samples.turn(fields, [1.0])])
    server = _program(tmp_path / "server", "exit 1")
    monkeypatch.setattr(p2p, "_grpc_server", lambda serve=p2p._grpc_server: serve(server))
    monkeypatch.setattr(p2p, "_turns_of", lambda size, *_: [turn] if size == 8 else [])
    monkeypatch.setattr(transfers, "cold_turns", lambda *_, **__: [])
    monkeypatch.setattr(p2p, "_python_turns", lambda *_: [])
    present = [peer for peer in peers.PEERS if peer.name == "grpc-cpp"]
    settings = Settings(("p2p",), is_quick=True, transports=("shm",), rounds=2)
    own, failed = p2p.measure(settings, present, rounds.Progress("p2p", io.StringIO()))
    assert own["name"] == RDMATENSOR
    assert failed["missing"] == "failed: gRPC's server did not start"


@pytest.mark.parametrize("printed", ["no JSON", '{"median_us": 1}', ""])
def test_a_program_that_prints_something_else_fails(tmp_path: Path, printed: str) -> None:
    program = _program(tmp_path / "peer", f"echo '{printed}'")
    with pytest.raises(RuntimeError, match=r"no records|another version"):
        p2p._grpc([], "gRPC", ["tcp"], program)


def test_what_was_measured_is_kept_when_a_later_topic_breaks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> list[Record]:
        raise RuntimeError("broken")

    measured: Record = {"topic": "p2p", "raw_ns": [1]}
    monkeypatch.setattr(programs, "build", lambda: tmp_path)
    for topic in TOPICS:
        monkeypatch.setitem(command._MEASURES, topic, fail)
    monkeypatch.setitem(command._MEASURES, "p2p", lambda *_: [measured])
    assert command.main(["--peers", "none", "--out", str(tmp_path / "kept.json")]) == 1
    (run,) = load(tmp_path / "kept.json").runs
    assert run.records == [measured]


_UCX = """#!{python}
import os, socket, sys
port = int(sys.argv[sys.argv.index("-p") + 1])
if "127.0.0.1" in sys.argv:
    socket.create_connection(("127.0.0.1", port)).close()
    print(" ".join(sys.argv[1:]))
else:
    with open({log!r}, "w") as log:
        log.write(" ".join(sys.argv[1:]))
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.accept()[0].recv(1)
"""


def test_ucx_has_a_core_for_each_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "server"
    program = tmp_path / "ucx_perftest"
    program.write_text(_UCX.format(python=sys.executable, log=str(log)), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})
    client = programs.run_ucx(["-s", "8"], "sm,self", programs.free_port(), 30.0).output
    assert client.split()[-4:] == ["-s", "8", "-c", "3"]
    assert log.read_text(encoding="utf-8").split()[-2:] == ["-c", "5"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    with pytest.raises(programs.TooFewCores, match="needs 2 cores"):
        programs.run_ucx(["-s", "8"], "sm,self", 1, 30.0)
