"""Whoever ends `rdmatensor bench` ends its workers, and what they forked, too."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_START_S = 60.0
_END_S = 15.0
# topic and options -> processes that stand while it measures, but for the command itself
_RUNNING = {
    ("collectives", "--quick", "--ranks", "2", "--rounds", "50"): 2,  # a worker for each rank
    ("busy", "--quick", "--burners", "2", "--rounds", "50"): 2 + 2,  # and burners of rank 0
    ("setup", "--ranks", "4", "--rounds", "50"): 1 + 2,  # a worker, and the ranks that it forks
}


def _naming(folder: Path) -> list[int]:
    """Return the processes whose command line has the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and os.fsencode(folder) in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended
    return found


def _await_count(folder: Path, least: int, most: int, limit_s: float) -> list[int]:
    """Return those processes once they are so many, or when the time is over."""
    end_s = time.monotonic() + limit_s
    while True:
        found = _naming(folder)
        if least <= len(found) <= most or time.monotonic() > end_s:
            return found
        time.sleep(0.02)


@pytest.fixture
def heard() -> Iterator[None]:
    """Whoever started the tests may ignore signals, and a child would, too."""
    ignored = [one for one in _ENDING if signal.getsignal(one) is signal.SIG_IGN]
    for one in ignored:
        signal.signal(one, signal.SIG_DFL)
    yield
    for one in ignored:
        signal.signal(one, signal.SIG_IGN)


@pytest.mark.timeout(150)
@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("words", _RUNNING, ids=lambda words: words[0])
@pytest.mark.parametrize("number", [*_ENDING, signal.SIGKILL])
def test_no_worker_outlives_it(
    tmp_path: Path, words: tuple[str, ...], number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "rdmatensor", "bench", *words, "--peers", "none"]
    running = subprocess.Popen(
        [*command, "--transport", "shm"],
        cwd=ROOT / "tests",
        env={**os.environ, "TMPDIR": str(tmp_path)},  # workers are told a folder in it
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        began = _await_count(tmp_path, _RUNNING[words], 100, _START_S)
        assert len(began) >= _RUNNING[words], running.poll()
        running.send_signal(number)
        _, said = running.communicate(timeout=_END_S)
        left = _await_count(tmp_path, 0, 0, _END_S)
    finally:
        running.kill()
        running.wait()
        for pid in _naming(tmp_path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not left, f"{len(left)} of its processes live on"
    if number == signal.SIGKILL:
        assert running.returncode == -number
        return
    assert running.returncode == 128 + number
    assert said.splitlines()[-1] == f"rdmatensor bench: ended by {number.name}"
    assert not list(tmp_path.iterdir()), "its folders are left"


@pytest.mark.timeout(150)
@pytest.mark.usefixtures("heard")
def test_a_run_under_nohup_goes_on() -> None:
    """SIGHUP was ignored when it began, and is still."""
    program = (
        "import os, signal\n"
        "from bench.benchlib import children\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with children.ended_by_signals('it'):\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    print('on', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('not here')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "on\n"
    assert done.stderr == "\nit: ended by SIGTERM\n"
    assert done.returncode == 128 + signal.SIGTERM
