"""Children of every kind, born while bytes move: the parent is unharmed, they inherit nothing."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from pairs import Pair

CHILDREN = 4  # of each kind
_LISTED = """
import os
for name in os.listdir("/proc/self/fd"):
    try:
        print(os.readlink("/proc/self/fd/" + name))
    except OSError:
        pass
"""


def _open() -> set[str]:
    """What this process has open that a child could have from us only."""
    found = set()
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208  a file among them is gone by then
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{entry}"))  # noqa: PTH115  no file, but a name
    return {name for name in found if name.startswith(("/memfd:", "socket:"))}


_BEFORE = _open()  # of who started the tests


def _square(number: int) -> int:
    return number * number


def _by_subprocess() -> None:
    for _ in range(CHILDREN):
        listed = subprocess.run(
            [sys.executable, "-c", _LISTED],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            close_fds=False,  # what is not marked as ours to keep would come along
            check=True,
            timeout=60,
        )
        names = listed.stdout.splitlines()
        assert set(names).isdisjoint(_open() - _BEFORE)


def _by_fork() -> None:
    for _ in range(CHILDREN):
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 7


def _by_multiprocessing(method: str) -> Callable[[], None]:
    def run() -> None:
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map_async(_square, range(CHILDREN)).get(60) == [
                n * n for n in range(CHILDREN)
            ]

    return run


KINDS: dict[str, Callable[[], None]] = {
    "subprocess": _by_subprocess,
    "fork": _by_fork,
    "multiprocessing fork": _by_multiprocessing("fork"),
    "multiprocessing spawn": _by_multiprocessing("spawn"),
}


@pytest.mark.timeout(90)
@pytest.mark.parametrize("kind", KINDS)
def test_children_during_transfers(pair: Pair, kind: str) -> None:
    place = pair.right.zeros((1 << 18,))
    region = pair.right.export(place)
    is_over = threading.Event()
    rounds: list[int] = []
    errors: list[BaseException] = []

    def move() -> None:
        source = np.empty(1 << 18, np.float32)
        try:
            while not is_over.is_set() or len(rounds) < 3:
                source[:] = len(rounds)
                pair.to_right.write(source, region, notify=len(rounds)).wait()
                assert pair.to_left.wait_notify() == len(rounds)
                assert (place == len(rounds)).all()
                rounds.append(len(rounds))
        except BaseException as error:  # noqa: BLE001  the test raises it
            errors.append(error)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        KINDS[kind]()
    finally:
        is_over.set()
        mover.join(60)
    assert not mover.is_alive()
    assert errors == []
    assert len(rounds) >= 3
