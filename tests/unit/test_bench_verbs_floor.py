"""bench/floor/verbs_floor.c without a device: its arguments.

What it does over a device is a part of the rig (ci/rig/parts.sh).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, of its sources alone: it needs nothing of the library."""
    built = tmp_path_factory.mktemp("floor") / "verbs_floor"
    parts = ("floor/verbs_floor.c", "core/bench.c")
    flags = ["-std=c17", "-O1", "-D_GNU_SOURCE", f"-I{BENCH / 'core'}"]
    sources = [str(BENCH / part) for part in parts]
    subprocess.run(["gcc", *flags, *sources, "-o", str(built), "-libverbs"], check=True, timeout=50)
    return built


def run(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *words], capture_output=True, text=True, check=False, timeout=50
    )


def test_the_device_that_was_asked_for_has_to_be_there(program: Path) -> None:
    done = run(program, "--device", "none0", "--gid", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no RDMA device none0" in done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--op", "fetch"], 'not "fetch"'),
        (["--op", ""], 'not ""'),
        (["--size", "67108865", "--device", "a", "--gid", "1"], "--size is from 1 to 67108864"),
        (["--size", "0"], "--size wants a number above 0"),
        (["--count", "0.5", "--device", "a", "--gid", "1"], "--count is at least 1"),
        (["--pause", "2e6", "--device", "a", "--gid", "1"], "--pause at most 1000000 ns"),
        (["--gid", "-1"], '--gid is an index from 0 to 999, not "-1"'),
        (["--gid", "x"], '--gid is an index from 0 to 999, not "x"'),
        (["--port", "1"], 'unknown argument "--port"'),
        (["--device"], "--device wants a value"),
        (["--device", "none0"], "--device and --gid say which"),
        (["--gid", "1"], "--device and --gid say which"),
    ],
)
def test_wrong_arguments_are_refused(program: Path, words: list[str], reason: str) -> None:
    done = run(program, *words)
    assert done.returncode == 1
    assert reason in done.stderr
    assert done.stdout == ""
