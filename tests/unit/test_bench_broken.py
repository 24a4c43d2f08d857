"""A rival of `rdmatensor bench` that is broken is named, and nothing that was measured is lost."""

from __future__ import annotations

import functools
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
from bench.suite import command, p2p, peers, rounds, samples
from bench.suite.settings import Settings


def _program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("script", ["exit 1", "echo other; exec sleep 60", "exec sleep 60"])
def test_a_server_that_does_not_start_is_given_up(tmp_path: Path, script: str) -> None:
    server = _program(tmp_path / "server", f"echo $$ > {tmp_path}/pid; {script}")
    began_s = time.monotonic()
    with pytest.raises(RuntimeError, match="did not start"), p2p._grpc_server(server, 1.0):
        raise AssertionError
    assert time.monotonic() - began_s < 20
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text(encoding="utf-8")), 0)


@pytest.mark.parametrize("peer", [peers.MOONCAKE, peers.NIXL])
def test_what_does_not_import_in_time_is_a_reason(
    peer: peers.Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = _program(tmp_path / "python", "exec sleep 60")
    monkeypatch.setenv(peer.variable, str(python))
    monkeypatch.setattr(peers, "_PROBE_LIMIT_S", 0.1)
    assert peer.find() == (None, f"{peer.name} is not imported after 0.1 s")


def test_what_is_compared_has_turns_side_by_side() -> None:
    settings = Settings(("p2p",), sizes=(8, 4 << 10), transports=("shm", "tcp"))
    present = {peer.name for peer in peers.PEERS}
    found = [
        [name for name, _ in p2p._turns_of(size, settings, "nowhere:1", present, settings.sizes)]
        for size in settings.sizes
    ]
    small, large = found
    assert all("8 B" in name for name in small)
    assert all("4 KiB" in name for name in large)
    kinds = ["row" if "in flight" in n else "read" if "read" in n else "single" for n in large]
    assert [kind for kind, _ in itertools.groupby(kinds)] == ["single", "row", "read"]
    singles = [name for name in large if "in flight" not in name]
    for who in ("rdmatensor and floor, shm", "rdmatensor and floor, tcp", "UCX put", "gRPC C++"):
        assert any(who in name for name in singles), who


def test_a_large_message_has_ten_trips_at_least() -> None:
    assert [p2p.trips_of(size, is_quick=False) for size in (8, 64 << 20)] == [2000, 10]
    assert [p2p.trips_of(size, is_quick=True) for size in (8, 16 << 20)] == [400, 4]


def test_the_others_go_on_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def c_turns(*_: object) -> list[tuple[str, rounds.Turn]]:
        fields = samples.p2p_fields("rdmatensor", "rdmatensor", "shm", 8, language="C")
        return [("ours", lambda: [samples.turn(fields, [1.0])])]

    server = _program(tmp_path / "server", "exit 1")
    monkeypatch.setattr(p2p, "_grpc_server", lambda serve=p2p._grpc_server: serve(server))
    monkeypatch.setattr(p2p, "_c_turns", c_turns)
    for module, name in (
        (p2p.tensors, "turns"),
        (p2p.streams, "turns"),
        (p2p.streams, "read_turns"),
        (p2p.streams, "cold_turns"),
    ):
        monkeypatch.setattr(module, name, lambda *_, **__: [])
    monkeypatch.setattr(p2p, "_python_turns", lambda *_: [])
    present = [peer for peer in peers.PEERS if peer.name == "grpc-cpp"]
    settings = Settings(("p2p",), is_quick=True, transports=("shm",), rounds=2)
    ours, failed = p2p.measure(settings, present, rounds.Progress("p2p", io.StringIO()))
    assert ours["contestant"] == "rdmatensor"
    assert failed["missing"] == "failed: gRPC's server did not start"


@pytest.mark.parametrize("printed", ["no JSON", '{"median_us": 1}', ""])
def test_a_rival_that_prints_something_else_fails(tmp_path: Path, printed: str) -> None:
    words = [str(_program(tmp_path / "rival", f"echo '{printed}'"))]
    with pytest.raises(RuntimeError, match=r"no records|another version"):
        p2p._grpc(words, "gRPC", 8, ["tcp"])


def test_what_was_measured_is_kept_when_a_later_topic_breaks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> list[Record]:
        raise RuntimeError("broken")

    measured: Record = {"topic": "p2p", "raw_ns": [1]}
    monkeypatch.setattr(programs, "build", lambda: tmp_path)
    for topic in command.TOPICS:
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
    port = programs.free_port()
    client = programs.run_ucx(["-s", "8"], "sm,self", port, 30.0)
    assert client.split()[-4:] == ["-s", "8", "-c", "3"]
    assert log.read_text(encoding="utf-8").split()[-2:] == ["-c", "5"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    with pytest.raises(programs.TooFewCores, match="a core for each"):
        programs.run_ucx(["-s", "8"], "sm,self", port, 30.0)


def test_warm_up_is_never_less_than_five() -> None:
    assert [p2p.warm_up_of(trips) for trips in (2, 25, 2000)] == [5, 5, 400]


def test_ucx_has_round_trips_enough_for_what_it_calls_typical() -> None:
    settings = Settings(sizes=(8, 64 << 20))
    turns = [turn for _, turn in p2p._ucx_turns(settings, "tcp", {"ucx"})]
    words = [turn.args[0] for turn in turns if isinstance(turn, functools.partial)]
    counts = {int(one[one.index("-s") + 1]): int(one[one.index("-n") + 1]) for one in words}
    assert counts == {8: 2000, 64 << 20: 10}
