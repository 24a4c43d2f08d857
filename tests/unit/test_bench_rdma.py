"""The comparisons that run in the rig, without one: options, parsing, arithmetic, whole runs.

perftest, gRPC's client and our C program are stand-ins that print what the real ones do.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench import rdma, rdma_collectives, rdma_floor, rdma_grpc
from bench.benchlib import rig as rig_file

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
SCRIPTS = sorted(path.stem for path in (ROOT / "bench").glob("rdma*.py"))
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
    print(" " + size + " 1000 30.0 99.0 41.5 42.0")
    for trip in range(1, 101):
        print(f"{{trip}}, {{trip / 2}}")
else:
    print(f" {{size}} 48 70.0 64.0 0.0001")
"""


def rig(tmp_path: Path) -> dict[str, str]:
    """Return what the rig sets."""
    return {
        "RIG_HOST": "0",
        "RIG_HOSTS": "1",
        "RIG_MEANS": "test",
        "RIG_ADDR": "127.0.0.1",
        "RIG_PEER_ADDR": "127.0.0.1",
        "RIG_DEVICE": "rxe0",
        "RIG_GID_INDEX": "1",
        "RIG_SHARED": str(tmp_path),
        "RIG_OUT": str(tmp_path),
        "RIG_IFNAMES": "lo",
    }


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The rig's environment, with stand-ins for perftest's tools before all else."""
    for name, value in rig(tmp_path).items():
        monkeypatch.setenv(name, value)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("ib_write_bw", "ib_write_lat", "ib_send_lat", "ib_read_lat"):
        write_program(tools / name, PERFTEST.format(python=sys.executable))
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return tmp_path


def write_program(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def free_port() -> int:
    """The first of twelve ports, below those that the system gives out."""
    for first in range(20000 + os.getpid() % 800 * 12, 32000, 12):
        with contextlib.ExitStack() as probes:
            try:
                for port in range(first, first + 12):
                    probes.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise OSError("no twelve ports in a row are free")


def in_rig(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that reads the rig's environment when it is imported."""
    for key, value in rig(tmp_path).items():
        monkeypatch.setenv(key, value)
    return importlib.reload(importlib.import_module(f"bench.{name}"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_runs_as_a_file_and_tells_its_options(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, f"bench/{name}.py", "--help"],
        cwd=ROOT,
        env={**os.environ, **rig(tmp_path)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--out" in done.stdout
    assert "ci/rig/run.sh" in done.stdout


def test_who_listens_is_seen_without_connecting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert rdma.is_listening(port)
        server.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert not rdma.is_listening(port)


def test_perftest_is_read(guest: Path) -> None:
    width = rdma.Case("width", ("ib_write_bw",), MIB, 48, 16, 3, 0.97)
    assert rdma.theirs(width, "ib_write_bw", free_port()) == rdma.Turn(64.0)
    trips = rdma.Case("trips", ("ib_write_lat",), 8, 1000, 1, 4, 1.15)
    found = rdma.theirs(trips, "ib_write_lat", free_port())
    assert found.value == 41.5
    assert (found.p10, found.p90) == pytest.approx((5.05, 45.45))


def test_all_begin_in_turn_and_no_round_begins_too_late() -> None:
    order: list[str] = []
    acts = {name: functools.partial(order.append, name) for name in "abc"}
    turns = rdma.take_turns(acts, 4)
    assert "".join(order) == "abcbcacababc"
    assert {name: len(of) for name, of in turns.items()} == {"a": 4, "b": 4, "c": 4}
    turns = rdma.take_turns({"a": lambda: time.sleep(0.01)}, 50, time.monotonic())
    assert len(turns["a"]) == rdma.LEAST_ROUNDS


def test_cases_share_what_is_left_of_the_time() -> None:
    began_s = time.monotonic()
    budget = rdma.Budget(2.0, 4)
    assert budget.next_end_s() == pytest.approx(began_s + 30, abs=5)
    assert budget.next_end_s() == pytest.approx(began_s + 40, abs=5)  # the first took none of it


def test_two_hosts_keep_what_both_devices_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in rig(tmp_path).items():
        monkeypatch.setenv(name, value)
    ports = tmp_path / "sys" / "rxe0" / "ports" / "1" / "hw_counters"
    ports.mkdir(parents=True)
    monkeypatch.setattr(rig_file, "_SYS", tmp_path / "sys")
    port, folders = free_port(), []
    (ports / "out_of_seq_request").write_text("2\n")
    kept = {}
    with ThreadPoolExecutor() as pool:
        first = pool.submit(rig_file.common_folder, port)
        end_s = time.monotonic() + 20
        while not rdma.is_listening(port) and time.monotonic() < end_s:
            time.sleep(0.01)
        monkeypatch.setenv("RIG_HOST", "1")
        folders = [rig_file.common_folder(port), first.result(timeout=20)]
    assert folders[0] == folders[1]
    for host in (1, 0):
        kept[host] = rig_file.Kept(folders[0])
    (ports / "out_of_seq_request").write_text("5\n")
    for host in (1, 0):
        monkeypatch.setenv("RIG_HOST", str(host))
        kept[host].so_far(Path(f"of-{host}.json"), [{"raw": [1]}], rate="16mbit")
    assert not (tmp_path / "of-1.json").exists()
    partial = json.loads((tmp_path / "of-0.json").read_text())
    assert (partial["rows"], len(partial["hw_counters"])) == ([{"raw": [1]}], 1)
    for host in (1, 0):
        monkeypatch.setenv("RIG_HOST", str(host))
        kept[host].finish(Path("run.json"), [{"raw": [1, 2]}], rate="16mbit")
    found = json.loads((tmp_path / "run.json").read_text())
    before, after = ({"rxe0/1": {"out_of_seq_request": count}} for count in (2, 5))
    assert found["hw_counters"] == [{"before": before, "after": after}] * 2
    assert (found["rows"], found["options"]) == ([{"raw": [1, 2]}], {"rate": "16mbit"})


def test_shares_of_what_the_device_permits() -> None:
    turn = rdma_collectives.Turn
    turns = {
        rdma_collectives.OURS: [turn(1e6)] * 3,  # a second
        rdma_collectives.GLOO: [turn(3e6)] * 3,
        rdma_collectives.ONE_WAY: [turn(8.0)] * 3,
        rdma_collectives.BOTH_WAYS: [turn(20.0)] * 3,
    }
    row = rdma_collectives.ratios("all_reduce", 8 * MIB, turns)
    assert row["gloo_over_ours"] == (3.0, 3.0, 3.0)
    assert row["share"] == pytest.approx((0.8,) * 3)  # both ranks send 8 MiB
    assert row["share_of_one_direction"] == pytest.approx((1.0,) * 3)
    row = rdma_collectives.ratios("all_gather", 8 * MIB, turns)
    assert row["share"] == pytest.approx((0.4,) * 3)


def test_perftest_without_a_row_or_an_end_ends_the_run(
    guest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = rdma.Case("width", ("ib_write_bw",), MIB, 48, 16, 3, 0.97)
    quiet = PERFTEST.format(python=sys.executable).replace("{size}", "none")
    write_program(guest / "bin/ib_write_bw", quiet)
    with pytest.raises(SystemExit, match="ib_write_bw"):
        rdma.theirs(case, "ib_write_bw", free_port())
    write_program(guest / "bin/ib_write_bw", "#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(rdma, "LIMIT_S", 0.2)
    monkeypatch.setattr(rdma, "LISTEN_S", 0.1)
    with pytest.raises(SystemExit, match=r"no end after 0.2 s"):
        rdma.theirs(case, "ib_write_bw", free_port())


def test_what_ends_a_run_loses_no_earlier_case(
    guest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(guest / "bin/ib_send_lat", "#!/bin/sh\nexit 1\n")
    line = {"mib_per_s": 32, "one_way_ns": 83000, "one_way_p10_ns": 1, "one_way_p90_ns": 2}
    ours = write_program(guest / "ours", f"#!/bin/sh\necho '{json.dumps(line)}'\n")
    monkeypatch.setattr(rdma, "PROGRAM", ours)
    monkeypatch.setattr(rdma, "FIRST_PORT", free_port())
    monkeypatch.setattr(sys, "argv", ["rdma.py", "--pairs", "2"])
    with pytest.raises(SystemExit, match="ib_send_lat"):
        rdma.main()
    kept = json.loads((guest / "rdma-writes.json").read_text())
    assert [row["case"] for row in kept["rows"]] == [case.name for case in rdma.WRITES[:2]]
    assert kept["is_whole"] is False


@pytest.mark.parametrize(
    ("name", "size", "told"),
    [("rdma_grpc", 9, "invalid choice: 9"), ("rdma_tensors", 64 * MIB, "at most 8 MiB")],
)
def test_a_size_that_nobody_can_measure_is_refused(
    name: str, size: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--sizes", str(size)])
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module(f"bench.{name}").main()
    assert told in capsys.readouterr().err


def test_writes_beside_perftest(
    guest: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line: dict[str, object] = {"mib_per_s": 32, "one_way_ns": 83000}
    line |= {"one_way_p10_ns": 1, "one_way_p90_ns": 2, "raw_ns": [82000, 84000]}
    ours = write_program(guest / "ours", f"#!/bin/sh\necho '{json.dumps(line)}'\n")
    monkeypatch.setattr(rdma, "PROGRAM", ours)
    monkeypatch.setattr(rdma, "FIRST_PORT", free_port())
    monkeypatch.setattr(sys, "argv", ["rdma.py", "--pairs", "2"])
    assert rdma.main() == 0
    said = capsys.readouterr().out
    assert "ratio 0.500 (0.500 to 0.500), wanted >= 0.97: NO" in said
    assert "ratio 2.000 (2.000 to 2.000), wanted <= 1.15: NO" in said
    kept = json.loads((guest / "rdma-writes.json").read_text())
    assert {"machine", "device", "hw_counters", "command", "options", "seconds"} < {*kept}
    assert (kept["device"]["means"], kept["device"]["name"]) == ("test", "rxe0")
    assert kept["is_whole"] is True
    rows = kept["rows"]
    assert [row["case"] for row in rows] == [case.name for case in rdma.WRITES]
    assert rows[2]["ours"]["ours"][1]["raw"] == [82.0, 84.0]
    assert len(rows[2]["theirs"]["ib_send_lat"][1]["raw"]) == 100
    assert [turn["value"] for turn in rows[0]["theirs"]["ib_write_bw"]] == [64.0, 64.0]


# Prints what it was asked for, so that a test sees which turn was whose.
FLOOR = """#!{python}
import json, sys
words = sys.argv[1:]
at = lambda name: words[words.index(name) + 1]
assert (at("--device"), at("--gid"), at("--passes")) == ("rxe0", "1", "1"), words
assert ("--latency" in words) != ("--bandwidth" in words), words
us = {{"write": 40, "imm": 50, "send": 41.5, "read": 83}}[at("--ops")]
print(json.dumps({{"median_ns": us * 1000, "p10": 1000, "p90": 2000, "mib_per_s": 128.0}}))
"""


def test_the_raw_floor_beside_perftest_and_ours(
    guest: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"mib_per_s": 32, "one_way_ns": 100000, "one_way_p10_ns": 1, "one_way_p90_ns": 2}
    text = f"#!/bin/sh\necho \"$@\" >>{guest}/asked\necho '{json.dumps(line)}'\n"
    monkeypatch.setattr(rdma, "PROGRAM", write_program(guest / "ours", text))
    floor = write_program(guest / "floor", FLOOR.format(python=sys.executable))
    monkeypatch.setattr(rdma_floor, "FLOOR", floor)
    monkeypatch.setattr(rdma, "FIRST_PORT", free_port())
    out = guest / "out.json"
    words = ["rdma_floor.py", "--rounds", "3", "--sizes", "8", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    assert rdma_floor.main() == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "raw imm 50.0 us (50.0 to 50.0), in a turn p10 1.0, p90 2.0" in said
    rows = {row["case"]: row for row in json.loads(out.read_text())["rows"]}
    assert list(rows) == ["message 8 B", "read 8 B", "write 1 MiB"]
    middle = {
        f"{case}: {name}": ratio[1]
        for case, row in rows.items()
        for name, ratio in row["ratios"].items()
    }
    assert middle["message 8 B: ours / raw imm"] == pytest.approx(2.0)
    assert middle["message 8 B: raw send / ib_send_lat"] == pytest.approx(1.0)
    assert middle["read 8 B: raw read / ib_read_lat"] == pytest.approx(2.0)
    assert middle["write 1 MiB: ours / raw write"] == pytest.approx(0.25)
    assert middle["write 1 MiB: raw write / ib_write_bw"] == pytest.approx(2.0)
    asked = (guest / "asked").read_text().splitlines()
    assert sum("--read" in words for words in asked) == 3  # a turn in each round
    assert len(asked) == 9


def test_two_turns_have_no_quartiles(
    guest: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["rdma_floor.py", "--rounds", "2"])
    with pytest.raises(SystemExit, match="2"):
        rdma_floor.main()
    assert "three turns at least" in capsys.readouterr().err


def test_a_floor_that_fails_ends_the_run(guest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = write_program(guest / "floor", "#!/bin/sh\necho 'no RDMA device' >&2; exit 77\n")
    monkeypatch.setattr(rdma_floor, "FLOOR", broken)
    case = rdma.Case("trips", ("ib_write_lat",), 8, 1000, 1, 4)
    with pytest.raises(SystemExit, match="no RDMA device"):
        rdma_floor.floor(case, "imm")


def test_round_trips_beside_grpc(
    guest: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rival = '#!/bin/sh\n[ "$1" = serve ] && echo ready && exec sleep 30\n'
    rival += 'case "$1" in echo) us=830;; *) us=415;; esac\necho "{\\"round_trip_us\\": $us}"\n'
    monkeypatch.setattr(rdma_grpc, "GRPC", write_program(guest / "grpc", rival))
    ours = write_program(guest / "ours", "#!/bin/sh\necho '{\"one_way_ns\": 83000}'\n")
    monkeypatch.setattr(rdma_grpc, "OURS", ours)
    monkeypatch.setattr(rdma_grpc, "FIRST_PORT", free_port())
    out = guest / "out.json"
    words = ["rdma_grpc.py", "--rounds", "2", "--sizes", "8", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    assert rdma_grpc.main() == 0
    assert "unary/ours 5.00 (perftest 10.00)" in capsys.readouterr().out
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["share_of_perftest"], row["ours_to_stream"]) == (0.5, 2.5)


def test_shares_of_a_slow_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    links: Any = in_rig("rdma_links", tmp_path, monkeypatch)
    assert [links.bits_per_s(rate) for rate in ("16mbit", "5kbit", "1gbit")] == [16e6, 5e3, 1e9]
    second_s = 8 * MIB / 16e6  # of a MiB at the full rate
    found = {"who": [links.Turn(2 * second_s, 0.5), links.Turn(second_s, 1.5)], "later": []}
    (row,) = links.rows_of(found, "16mbit", 1)
    links.show([row], "16mbit", 1)
    assert row["share"] == pytest.approx(statistics.median((0.5, 1.0)))
    assert row["cpu_s_per_gb"] == pytest.approx(1.0 / MIB * 1e9)
    assert "75.0 % of the line" in capsys.readouterr().out
