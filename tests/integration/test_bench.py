"""`rdmatensor bench` as a user calls it: the smallest measurement there is, and its comparison."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import load, number
from bench.suite import busy, collectives, crossover, samples, scale

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


def _rdmatensor(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rdmatensor", *words]
    return subprocess.run(
        command, cwd=ROOT / "tests", capture_output=True, text=True, check=False, timeout=100
    )


@pytest.mark.timeout(120)
def test_the_smallest_measurement(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept.json")
    options = ["--quick", "--transport", "shm", "--ranks", "2", "--sizes", "1024", "--rounds", "1"]
    done = _rdmatensor("bench", "collectives", *options, "--peers", "gloo", "--out", kept)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if "shm, 2 ranks" in line]
    rows = [line for line in rows if "geometric mean" not in line]
    assert len(rows) == 2 * 10, done.stdout  # all operations, of two backends
    compared = _rdmatensor("bench", "compare", kept, kept)
    assert compared.returncode == 3, compared.stderr  # it judged nothing
    assert compared.stdout.splitlines()[-1] == "10 too few turns"


@pytest.mark.timeout(120)
def test_a_link_bounds_what_is_measured(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    options = ["--quick", "--ranks", "2", "--sizes", str(1 << 20), "--rounds", "1"]
    done = _rdmatensor(
        *("bench", "collectives", *options, "--peers", "gloo"),
        *("--link", "200mbit", "--out", str(kept)),
    )
    if done.returncode == 125 and not os.environ.get("CI"):
        pytest.skip("unshare is refused")
    assert done.returncode == 0, done.stderr
    result = load(kept)
    assert result.machine["link_rate"] == "200mbit"
    found = [one for one in result.quietest.records if one["op"] == "all_reduce"]
    assert {(one["name"], one["transport"]) for one in found} == {
        ("rdmatensor", "tcp"),
        ("gloo", "tcp"),
    }
    least_ns = 2 * (1 << 20) * 8 / 200e6 * 1e9  # both directions share the interface
    assert all(number(one, "median_ns") > 0.9 * least_ns for one in found)


@pytest.mark.timeout(120)
def test_the_smallest_measurement_of_a_parameter_server(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    options = ["--quick", "--transport", "shm", "--sizes", "65536", "--rounds", "1"]
    done = _rdmatensor("bench", "ps", *options, "--peers", "floor,rpc", "--out", str(kept))
    assert done.returncode == 0, done.stderr
    found = {(one["peer"], one["op"]) for one in load(kept).quietest.records}
    rows = {(peer, op) for peer in ("rdmatensor", "floor", "rpc") for op in ("pull", "push")}
    others = ("dense step", "pull of keys", "push of keys", "driven batch")
    assert found == {*rows, *(("rdmatensor", op) for op in others)}


@pytest.mark.timeout(120)
def test_the_smallest_crossover(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    options = ["--quick", "--transport", "tcp", "--ranks", "2", "--rounds", "1"]
    done = _rdmatensor("bench", "ps", "--calls", "crossover", *options, "--out", str(kept))
    if "unshare is refused" in done.stdout + done.stderr and not os.environ.get("CI"):
        pytest.skip("unshare is refused")
    assert done.returncode == 0, done.stdout + done.stderr
    records = [one for one in load(kept).quietest.records if "missing" not in one]
    cells = {(one["transport"], one["name"]) for one in records}
    assert {path for path, _ in cells} == {"tcp", "hosts 500mbit"}
    assert len(cells) == 2 * 6
    for one in records:
        if one["op"] == "all_reduce" and one["transport"] != "tcp":  # its bytes, by the kernel
            wanted = crossover.exchange_of(one).link_bytes
            assert wanted <= number(one, "rank_bytes") <= 1.05 * wanted + 4096


@pytest.mark.timeout(120)
def test_the_smallest_measurement_of_a_busy_machine(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    options = ["--quick", "--transport", "shm", "--calls", "all_reduce,wait", "--sizes", "1024"]
    more = ["--burners", "0,1", "--kinds", "nap", "--rounds", "1", "--out", str(kept)]
    done = _rdmatensor("bench", "busy", *options, *more)
    assert done.returncode == 0, done.stderr
    assert "busy: about 0 min: 1 rounds" in done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("all_reduce 1 KiB, 2")]
    assert len(rows) == 2, done.stdout
    assert done.stdout.count("waits 100 ms in a barrier, 2 ranks, shm") == 2
    assert len(load(kept).quietest.records) == 2 * 2 * 2  # loads, calls, backends


@pytest.mark.turns("transport", first=1)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.timeout(150)
def test_every_call_has_a_loop_on_a_busy_machine(ranks: int, transport: str) -> None:
    calls = [name for name in busy.CALLS if name != "send" or ranks == 2]
    printed = run_ranks(
        "busy",
        ranks,
        {
            "ranks": ranks,
            "backends": ["rdmatensor", "gloo"],
            "calls": calls,
            "sizes": [65536],
            "between_ms": [0, 0.5],
            "loads": ["spin:1"],
            "seconds": 0.01,
            "most_calls": 100,
        },
        environment={"RDMATENSOR_TRANSPORT": transport},
        timeout_s=140.0,
    )
    found = [busy.record_of(one, transport) for one in collectives.by_key(printed).values()]
    moving = len(calls) - 3  # but for barrier, ddp and wait
    assert len(found) == 2 * (2 * (moving + 1) + 2)
    for one in found:
        assert number(one, "median_ns") >= number(one, "between_ms") * 1e6
        assert number(one, "p99_ns") >= number(one, "p50_ns") > 0
    waits = [one for one in found if one["op"] == "wait"]
    assert len(waits) == 2
    assert all(number(one, "median_ns") >= 100e6 for one in waits)


@pytest.mark.timeout(120)
def test_writes_from_python_have_calls_and_handles() -> None:
    options = {"peer": "rdmatensor", "rounds": 1, "trips": 5, "larges": 1}
    found = run_ranks("p2p", 2, options, timeout_s=100.0)
    rows = [(record["way"], record["size"]) for record in found]
    assert rows == [(way, size) for way in ("write", "prepared") for size in (8, 64 << 20)]
    assert all([ns > 0 for ns in samples.raw_of(record)] == [True] for record in found)


@pytest.mark.timeout(120)
def test_sums_in_one_call_end_with_their_time_and_have_each_way_once() -> None:
    ways = ("one by one", "one by one, async", "manager", "coalesced")
    options = {"rounds": 1_000_000, "tensors": 10, "seconds": 0}
    found = run_ranks("coalesced", 2, options, timeout_s=100.0)
    rows = [(record["name"], record["way"], len(samples.raw_of(record))) for record in found]
    assert rows == [(name, way, 1) for name in ("rdmatensor", "gloo") for way in ways]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.timeout(120)
def test_each_algorithm_is_the_one_that_is_measured(transport: str) -> None:
    backends = [f"rdmatensor:{name}" for name in scale.ALGORITHMS]
    printed = run_ranks(
        "collectives",
        1,
        {
            "forked": True,
            "ranks": 3,
            "backends": backends,
            "sizes": [1024],
            "operations": ["all_reduce"],
            "rounds": 3,
        },
        environment={"RDMATENSOR_TRANSPORT": transport},
        timeout_s=100.0,
    )
    found = [scale.record_of(said, transport) for said in collectives.by_key(printed).values()]
    assert [(record["op"], record["ranks"]) for record in found] == [
        (name, 3) for name in scale.ALGORITHMS
    ]


@pytest.mark.timeout(120)
def test_hosts_with_several_ranks_are_compared_with_all_ranks_alone() -> None:
    options = ["--sizes", "1024", "--layout", "001", "--rounds", "1", "--peers", "gloo"]
    done = _rdmatensor("bench", "hosts", *options)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "hierarchical" in lines[1]
    assert sum(line.startswith("all_reduce") for line in lines) == 2
    assert any(line.startswith("gloo's time over auto's") for line in lines)


@pytest.mark.timeout(120)
def test_set_up_is_timed_and_its_memory_counted() -> None:
    """With four ranks nobody who only hears from a neighbour reaches all others."""
    options = {"ranks": [2, 4], "backends": ["gloo", "rdmatensor"], "turns": 1}
    found = run_ranks("setup", 1, options, timeout_s=100.0)
    rows = [(record["name"], record["ranks"], record["op"]) for record in found]
    assert rows == [
        (backend, ranks, op)
        for ranks in (2, 4)
        for backend in ("gloo", "rdmatensor")
        for op in ("neighbours", "barrier", "all_to_all")
    ]
    assert all(number(record, "took_ns") > 0 for record in found)
    assert all(number(record, "rank_bytes") > 0 for record in found)
