"""What holds for every Python test: skips must be on a list, hangs end, no process is left."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from collections.abc import Generator
from pathlib import Path

import pytest

_REASONS_FILE = Path(__file__).with_name("skip_reasons.txt")
# pytest-timeout raises in the main thread, which needs the interpreter. A test that is stuck in C
# with signals held back is ended, with the whole run, this much later.
_GRACE_S = 30.0
_EXIT_WAIT_S = 5.0  # for children that are on their way out when their test ends
_STANDING_HELPERS = ("resource_tracker", "forkserver")  # multiprocessing's own, one per session
_stderr_fd = pytest.StashKey[int]()


def _allowed_reasons() -> list[re.Pattern[str]]:
    lines = _REASONS_FILE.read_text(encoding="utf-8").splitlines()
    return [re.compile(line) for line in lines if line and not line.startswith("#")]


def _skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    expected_failure = getattr(report, "wasxfail", None)
    if expected_failure is not None:
        return str(expected_failure).removeprefix("reason: ")
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _fail_if_unlisted(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.outcome != "skipped":
        return
    reason = _skip_reason(report)
    if not any(pattern.fullmatch(reason) for pattern in _allowed_reasons()):
        report.outcome = "failed"
        report.longrepr = f"skipped for a reason that is not in {_REASONS_FILE.name}: {reason}"
        if hasattr(report, "wasxfail"):
            del report.wasxfail


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip or expected failure without a listed reason into a failure."""
    report = yield
    _fail_if_unlisted(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Do the same for modules that skip themselves while they are imported."""
    report = yield
    _fail_if_unlisted(report)
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real stderr, which pytest replaces while a test runs, for the watchdog."""
    config.stash[_stderr_fd] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give the descriptor back."""
    os.close(config.stash[_stderr_fd])


def _timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    return float(item.config.getoption("timeout") or item.config.getini("timeout"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Watch the test from a thread that needs no interpreter: print all stacks and exit."""
    faulthandler.dump_traceback_later(
        _timeout_s(item) + _GRACE_S, exit=True, file=item.config.stash[_stderr_fd]
    )
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _children() -> set[int]:
    """Return the living children of this process, of whichever thread started them."""
    pids: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            pids.update(int(pid) for pid in (task / "children").read_text().split())
        except FileNotFoundError:  # the thread ended meanwhile
            continue
    return {pid for pid in pids if _is_running(pid)}


def _is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    is_zombie = stat.rpartition(")")[2].split()[0] == "Z"
    return not is_zombie and not any(name in command for name in _STANDING_HELPERS)


@pytest.fixture(autouse=True)
def _no_process_left() -> Generator[None, None, None]:
    """Fail a test that leaves a process running, and end that process."""
    before = _children()
    yield
    deadline = time.monotonic() + _EXIT_WAIT_S
    while (left := _children() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"the test left {len(left)} processes running: {sorted(left)}"
