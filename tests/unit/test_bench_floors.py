"""bench/floor/copy_floor.c and tcp_floor.c: what they print of a small size, what they refuse."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
SIZE = 65536
_PARTS = {"copy_floor": "copy_kinds", "tcp_floor": "raw_tcp"}
needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs 2 cores")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both programs, of their own sources alone: they need nothing of the library."""
    folder = tmp_path_factory.mktemp("floor")
    flags = ["-std=c17", "-O1", "-D_GNU_SOURCE", f"-I{BENCH / 'support'}"]
    for name, part in _PARTS.items():
        files = (f"floor/{name}.c", f"support/{part}.c", "support/bench.c")
        sources = [str(BENCH / file) for file in files]
        subprocess.run(["gcc", *flags, *sources, "-o", str(folder / name)], check=True, timeout=50)
    return folder


def _run(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *words], capture_output=True, text=True, check=False, timeout=50
    )


def _records(program: Path, *words: str) -> list[dict[str, object]]:
    done = _run(program, *words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@needs_two_cores
def test_each_kind_of_copy_has_both_patterns(programs: Path) -> None:
    found = _records(programs / "copy_floor", "--sizes", f"{SIZE}", "--seconds", "0.01")
    kinds = {one["kind"] for one in found}
    assert "memcpy" in kinds
    assert len(found) == 2 * len(kinds)
    assert {(one["kind"], one["pattern"]) for one in found} == {
        (kind, pattern) for kind in kinds for pattern in ("peer", "own")
    }
    for one in found:
        assert (one["size"], one["source"]) == (SIZE, "warm")
        assert 0 < one["p10"] <= one["median_ns"] <= one["p90"]
        assert one["gbps"] == pytest.approx(SIZE / one["median_ns"], abs=0.006)


@needs_two_cores
def test_sockets_have_latency_and_the_best_throughput_again(programs: Path) -> None:
    found = _records(programs / "tcp_floor", "--sizes", f"{SIZE}", "--passes", "1", "--quick")
    latencies = [one for one in found if one["what"] == "latency"]
    assert sorted((one["wait"], one["size"]) for one in latencies) == [("block", 8), ("spin", 8)]
    *rest, best = [one for one in found if one["what"] == "throughput"]
    assert best.pop("best") is True
    assert best in rest
    assert best["median_ns"] == min(one["median_ns"] for one in rest)
    assert all(one["size"] == SIZE and one["samples"] > 0 for one in rest)


@pytest.mark.parametrize("name", _PARTS)
@pytest.mark.parametrize("words", [("--sizes", "0"), ("--sizes", "99999999999"), ("--wrong", "1")])
def test_what_makes_no_sense_is_refused(programs: Path, name: str, words: tuple[str, ...]) -> None:
    done = _run(programs / name, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{name}: ")
