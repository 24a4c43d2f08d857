"""What holds for every Python test: skips must be on a list, hangs end, no process is left.

--turn K/N, as ci/test.sh has it: of variants that the marker "turns" names, one in N runs.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

_REASONS_FILE = Path(__file__).with_name("skip_reasons.txt")
# pytest-timeout raises in the main thread, which needs the interpreter. A test that is stuck in C
# with signals held back is ended, with the whole run, this much later.
_GRACE_S = 30.0
_EXIT_WAIT_S = 5.0  # for children that are on their way out when their test ends
_STANDING_HELPERS = ("resource_tracker", "forkserver")  # multiprocessing's own, one per session
_LAUNCHER = "integration/launcher.py"  # one per session too; its children are jobs
_stderr_fd = pytest.StashKey[int]()
_seconds: defaultdict[str, float] = defaultdict(float)  # by the file of the tests
_FILES_SHOWN = 15


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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the turn."""
    parser.addoption(
        "--turn",
        metavar="K/N",
        help="of variants that take turns those of turn K, from 0, of N; all without it",
    )


def _variant_of(item: pytest.Item) -> tuple[Path, str, str] | None:
    """Return a variant's file, argument and value; None: it takes no turns.

    A marker without arguments is of the tests of a file: each is a variant.
    """
    marker = item.get_closest_marker("turns")
    values: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    if marker is None:
        return None
    if not marker.args:
        return item.path, "", item.name
    return next(
        ((item.path, name, str(values[name])) for name in marker.args if name in values), None
    )


def _turns(items: Sequence[pytest.Item]) -> Generator[int | None]:
    """Tell each item's turn, still without a remainder: its value's number among all of a file."""
    values: defaultdict[tuple[Path, str], set[str]] = defaultdict(set)
    variants = [_variant_of(item) for item in items]
    for variant in variants:
        if variant is not None:
            values[variant[:2]].add(variant[2])
    for item, variant in zip(items, variants, strict=True):
        marker = item.get_closest_marker("turns")
        if variant is None or marker is None:
            yield None
        else:
            number = sorted(values[variant[:2]]).index(variant[2])
            yield number + int(marker.kwargs.get("first", 0))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has another turn; the closing line counts it as deselected."""
    if config.getoption("turn") is None:
        return
    number, count = (int(part) for part in config.getoption("turn").split("/"))
    if not 0 <= number < count:
        raise pytest.UsageError(f"--turn {number}/{count}: the first must be below the second")
    kept: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item, turn in zip(items, _turns(items), strict=True):
        (kept if turn is None or turn % count == number else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = kept


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give the descriptor back."""
    os.close(config.stash[_stderr_fd])


def _timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    return float(item.config.getoption("timeout") or item.config.getini("timeout"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Watch each test from a thread that needs no interpreter: print all stacks and exit."""
    faulthandler.dump_traceback_later(
        _timeout_s(item) + _GRACE_S, exit=True, file=item.config.stash[_stderr_fd]
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """End the watch with the test."""
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up where the time goes."""
    _seconds[report.nodeid.partition("::")[0]] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the files that take longest, with --durations."""
    if terminalreporter.config.getoption("durations"):
        terminalreporter.section("slowest files")
        longest = sorted(_seconds.items(), key=lambda item: item[1], reverse=True)
        for name, seconds in longest[:_FILES_SHOWN]:
            terminalreporter.write_line(f"{seconds:.0f}s {name}")


def _running_children(of: int | str) -> dict[int, str]:
    """Return the living children of a process and their commands, whichever thread began them."""
    found: dict[int, str] = {}
    for task in Path(f"/proc/{of}/task").iterdir():
        try:
            pids = [int(pid) for pid in (task / "children").read_text().split()]
        except FileNotFoundError:  # the thread ended meanwhile
            continue
        for pid in pids:
            try:
                stat = Path(f"/proc/{pid}/stat").read_text()
                command = Path(f"/proc/{pid}/cmdline").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if stat.rpartition(")")[2].split()[0] != "Z":
                found[pid] = command
    return found


def _children() -> set[int]:
    """Return the processes that a test may have begun: no helper, but a launcher's jobs."""
    pids: set[int] = set()
    for pid, command in _running_children("self").items():
        if _LAUNCHER in command:
            pids.update(_running_children(pid))
        elif not any(name in command for name in _STANDING_HELPERS):
            pids.add(pid)
    return pids


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
