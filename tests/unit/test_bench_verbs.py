"""Topics over verbs, without the rig: perftest and the C programs are stand-ins."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib import programs, rig
from bench.benchlib.record import Record, load
from bench.suite import collectives, command, links, samples, verbs
from bench.suite.settings import MIB, Settings

# Listens or connects as perftest does; the last word is an address on the connecting side only.
PERFTEST = """#!{python}
import socket, sys
words = sys.argv[1:]
at = lambda name: words[words.index(name) + 1]
port, size = int(at("-p")), at("-s")
if words[-1] != "127.0.0.1":
    listener = socket.create_server(("127.0.0.1", port))
    listener.accept()
    sys.exit(0)
socket.create_connection(("127.0.0.1", port)).close()
print(" #bytes     #iterations    columns")
if sys.argv[0].endswith("_lat"):
    for trip in range(1, 101):
        print(f"{{trip}}, {{trip / 2}}")
else:
    print(f" {{size}} 48 70.0 64.0 0.0001")
"""


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The rig's environment, with stand-ins for perftest's tools before all else."""
    found = {
        "RIG_HOST": "0",
        "RIG_MEANS": "test",
        "RIG_ADDR": "127.0.0.1",
        "RIG_DEVICE": "rxe0",
        "RIG_GID_INDEX": "1",
        "RIG_SHARED": str(tmp_path),
        "RIG_OUT": str(tmp_path),
    }
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("ib_write_bw", "ib_write_lat", "ib_send_lat", "ib_read_lat"):
        (tools / name).write_text(PERFTEST.format(python=sys.executable), encoding="utf-8")
        (tools / name).chmod(0o755)
    for name, value in {**found, "PATH": f"{tools}:{os.environ['PATH']}"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def _run(name: str, *words: str, environment: Any = None, **_: Any) -> list[Record]:
    """What rdtperf says: the library alone, 20 us each, half of it with several QPs."""
    ns = 20_000 if not environment else 10_000
    who = "slot" if name == "tensors" else "rdmatensor"
    return [{"name": who, "raw_ns": [ns] * 4, "samples": 4}]


def test_a_run_has_perftest_and_the_library_and_keeps_a_file(
    guest: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(programs, "run", _run)
    words = ["p2p", "--transport", "verbs", "--peers", "perftest", "--sizes", f"8,{MIB}"]
    assert command.main([*words, "--rounds", "1", "--out", "kept.json"]) == 0
    said = capsys.readouterr().out
    assert "ib_write_lat, spinning, half a round trip" in said
    records = [one for run in load(guest / "kept.json").runs for one in run.records]
    of = {(one["name"], one["size"], one["timed"]): one for one in records}
    assert of["ib_write_lat", 8, samples.HALF]["median_ns"] == 25_500
    timed = "16 in flight, one way, 2 QPs"
    assert of["ib_write_bw", MIB, timed]["median_ns"] == round(1e9 / 64)
    assert of["rdmatensor", MIB, timed]["median_ns"] == 10_000
    machine = load(guest / "kept.json").machine
    assert machine["rig"]["name"] == "rxe0"  # type: ignore[index]


def test_outside_the_rig_verbs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert not rig.is_here()
    with pytest.raises(SystemExit, match="2"):
        command.main(["p2p", "--transport", "verbs"])
    assert "measured in the rig" in capsys.readouterr().err


def test_a_tool_that_fails_is_named(guest: Path) -> None:
    (guest / "bin" / "ib_read_lat").write_text("#!/bin/sh\necho broken; exit 3\n", encoding="utf-8")
    with pytest.raises(RuntimeError, match="broken"):
        verbs._latency_of("ib_read_lat", 8, "x")


def test_the_share_of_the_device_is_what_a_ring_moves_at_the_least(guest: Path) -> None:
    turns = dict(verbs.write_turns(Settings(sizes=(8, MIB))))
    assert list(turns) == ["ib_write_bw, 1 MiB", "ib_write_bw -b, 1 MiB"]
    device = samples.merge([one for turn in turns.values() for one in turn()])
    assert all(one["median_ns"] == round(1e9 / 64) for one in device)
    own = {**device[0], "op": "all_reduce", "peer": "rdmatensor", "median_ns": 4e9 / 64}
    assert verbs.shares([*device, own]) == [
        "all_reduce 1 MiB: 0.50 of ib_write_bw -b, 0.25 of one direction"
    ]
    assert [collectives.with_bandwidth(one)["op"] for one in device] == ["device"] * 2


def test_the_share_of_a_link_and_the_cpu_time_of_a_gb() -> None:
    one = links._record("gRPC stream", lambda _: (4.0, 2.0), "16mbit")
    line = links.show(samples.merge(one)).splitlines()[-1]
    assert line.split()[-2:] == ["52.4%", "476.84"]
    assert links.bits_per_s("2gbit") == 2e9
