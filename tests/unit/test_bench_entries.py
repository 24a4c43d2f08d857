"""`pytest bench --benchmark-only`: rows by size, and a JSON that has all that a figure needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib import entries, machine, record
from bench.benchlib.machine import ROOT

_TEST = """
def _records():
    both = [{"contestant": "rdmatensor", "raw_ns": [3000, 1000, 2000], "median_ns": 2000}]
    both += [{"contestant": "numpy", "raw_ns": [4000, 5000], "median_ns": 4000}]
    both += [{"contestant": "rdmatensor.Context", "raw_ns": [9000], "median_ns": 9000}]
    sized = [{"size": size, **one} for one in both for size in (8, 65536)]
    return both + sized


def test_one(judge):
    judge("import", "made up", _records)
"""


@pytest.mark.timeout(120)
def test_pytest_benchmark_has_groups_by_size_and_raw_samples(tmp_path: Path) -> None:
    (tmp_path / "test_made_up.py").write_text(_TEST, encoding="utf-8")
    words = ["-p", "bench.conftest", "-p", "no:cacheprovider", "--rootdir", ".", "--benchmark-only"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *words,
            "--benchmark-json",
            "kept.json",
            "test_made_up.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for group in ("8 B", "64 KiB", "no bytes", entries.WHOLE_RUNS):
        assert f"benchmark '{group}'" in done.stdout
    kept = json.loads((tmp_path / "kept.json").read_text(encoding="utf-8"))
    of_8 = [one for one in kept["benchmarks"] if one["group"] == "8 B"]
    assert [one["name"].split(": ")[1] for one in of_8] == [
        *("rdmatensor", "numpy", "rdmatensor.Context")
    ]
    assert of_8[0]["stats"]["data"] == [3e-06, 1e-06, 2e-06]
    assert of_8[0]["stats"]["median"] == 2e-06
    assert of_8[0]["extra_info"]["size"] == 8
    about = kept["machine_info"]["rdmatensor"]
    stamp = json.loads(json.dumps(machine.stamp()))
    same = ("processor", "kernel", "rdma_devices", "versions", "commit")
    assert {key: about[key] for key in same} == {key: stamp[key] for key in same}
    assert about["mtu"]["lo"] == stamp["loopback_mtu"]
    assert isinstance(about["provider"], dict)


def test_a_row_tells_its_contestant_from_others_of_its_size() -> None:
    folder = ROOT / "bench" / "results"
    for name in ("tcp_throughput", "shm_write", "write_many_tcp", "tcp_latency_spin", "coalesced"):
        kept = record.load(folder / f"{name}.json").quietest.records
        rows = list(entries.of(kept, name, "test"))
        assert len(rows) == sum("raw_ns" in one for one in kept)
        assert len({row.fullname for row in rows}) == len(rows), name
    assert {row.group for row in rows} == {"256 B"}


def test_many_blocks_are_as_large_as_all_of_them() -> None:
    kept = record.load(ROOT / "bench" / "results" / "write_many_shm.json").quietest.records
    assert {row.group for row in entries.of(kept, "write_many", "test")} == {"64 MiB"}
