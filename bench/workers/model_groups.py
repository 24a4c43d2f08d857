"""Groups of forked processes that train: each begins alone, then they take short blocks in turns.

What a step takes may change by half within minutes where nothing else runs, as it does on virtual
machines, whose neighbours are hidden. Peers that have their steps minutes apart are then
told apart by when they had them. So all groups for which there is memory stand at once, idle, and
each has a few steps after the other, again and again, forwards and back.
"""

from __future__ import annotations

import faulthandler
import functools
import math
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

import torch

from bench.benchlib import children
from bench.benchlib.machine import available_bytes

_READY, _BLOCK, _END = b"r", b"b", b"e"
# In addition to what the largest group so far holds: what the system and a step's own tensors need.
_SPARE_BYTES = 2 << 30
_LAST_WORDS_S = 5.0  # for a process to say what is wrong, and to end


class Line:
    """A process's end of the line to who leads the groups."""

    def __init__(self, end: socket.socket, patience_s: float) -> None:
        self._end, self._patience_s = end, patience_s

    def await_start(self) -> None:
        """Return once all processes of the group are there.

        What a process holds of its parent's memory depends on how many share it, so none may look
        before.
        """
        self._end.recv(1)

    def blocks(self) -> Iterator[None]:
        """Say that this rank is ready, and yield each time that it shall take its steps."""
        while True:
            faulthandler.cancel_dump_traceback_later()  # others have their turns: however long
            self._end.sendall(_READY)
            told = self._end.recv(1)
            _watch(self._patience_s)
            if told != _BLOCK:
                return
            yield


class OneBlock(Line):
    """The line of a rank without a group: it takes its steps once."""

    def __init__(self) -> None:
        pass

    def blocks(self) -> Iterator[None]:
        yield


def _help(helper: Callable[[], None], _line: Line) -> None:
    # It stands as long as its ranks, which are watched; then Group.join() waits for it so long.
    faulthandler.cancel_dump_traceback_later()
    helper()


def _watch(patience_s: float) -> None:
    faulthandler.dump_traceback_later(patience_s, exit=True)  # says where it hangs


def fork(work: Callable[[], None], environment: dict[str, str], patience_s: float) -> int:
    """Run work in a process of its own, which ends with this one or then; return its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        children.end_with(parent)
        os.environ.update(environment)
        torch.set_num_threads(1)
        _watch(patience_s)
        work()
        status = 0
    except BaseException:  # noqa: BLE001  a forked child must not run on in its parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def await_all(pids: Sequence[int], what: str, patience_s: float = math.inf) -> None:
    """Wait for all; raises RuntimeError once one fails, and then ends the others."""
    waiting = set(pids)
    deadline_s = time.monotonic() + patience_s
    try:
        while waiting:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{what}: {len(waiting)} processes do not end")
            for pid in sorted(waiting):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    waiting.discard(pid)
                    if status:
                        raise RuntimeError(f"{what}: a process ended with {_how(status)}")
            time.sleep(0.02)
    finally:
        kill(waiting)


def kill(pids: Collection[int]) -> None:
    """End processes that are not waited for yet: the pids are their own."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _how(status: int) -> str:
    ending = os.waitstatus_to_exitcode(status)
    return f"signal {-ending}; see above" if ending < 0 else f"status {ending}; see above"


class Group:
    """The processes of one peer. Its maker calls end() or kill()."""

    def __init__(
        self,
        name: str,
        helpers: Sequence[Callable[[], None]],
        ranks: Sequence[Callable[[Line], None]],
        environment: dict[str, str],
        patience_s: float,
    ) -> None:
        """Fork all. helpers: next to the ranks, until those end.

        patience_s: for what a rank does before it is ready, and for each of its blocks.
        """
        self._name, self._patience_s = name, patience_s
        self._pids: list[int] = []
        self._lines: list[socket.socket] = []
        works: list[Callable[[Line], None]] = [
            *(functools.partial(_help, helper) for helper in helpers),
            *ranks,
        ]
        try:
            for work in works:
                self._begin(work, environment)
            for line in self._lines:
                line.sendall(_READY)
        except BaseException:
            self.kill()
            raise
        for line in self._lines[: len(helpers)]:
            line.close()
        del self._lines[: len(helpers)]

    @property
    def pids(self) -> list[int]:
        """Its processes, until one of them is gone or it has ended."""
        return list(self._pids)

    def _begin(self, work: Callable[[Line], None], environment: dict[str, str]) -> None:
        mine, its = socket.socketpair()
        self._lines.append(mine)
        line = Line(its, self._patience_s)

        def run() -> None:
            line.await_start()
            work(line)

        with its:  # no other process has it, so that it ends with its process
            self._pids.append(fork(run, environment, self._patience_s))

    def await_ready(self) -> None:
        """Wait until all ranks are; raises RuntimeError where one ends or takes too long."""
        deadline_s = time.monotonic() + self._patience_s + _LAST_WORDS_S
        for line in self._lines:
            line.settimeout(max(0.01, deadline_s - time.monotonic()))
            try:
                told = line.recv(1)
            except TimeoutError:
                self.kill()
                raise RuntimeError(f"{self._name}: no rank may take so long") from None
            except ConnectionResetError:
                told = b""
            if told != _READY:
                self._fail()

    def take_block(self) -> None:
        """Let all ranks take their steps; raises as await_ready()."""
        self._tell(_BLOCK)
        self.await_ready()

    def end(self) -> None:
        """Let the ranks finish, and wait for all processes; raises as await_ready()."""
        self._tell(_END)
        self.join()

    def join(self) -> None:
        """Wait for all processes, of ranks that take no blocks; raises as await_ready()."""
        pids, self._pids = self._pids, []
        self._close()
        await_all(pids, self._name, self._patience_s + _LAST_WORDS_S)

    def kill(self) -> None:
        """End all processes at once."""
        pids, self._pids = self._pids, []
        self._close()
        kill(pids)

    def _tell(self, what: bytes) -> None:
        try:
            for line in self._lines:
                line.sendall(what)
        except (BrokenPipeError, ConnectionResetError):
            self._fail()

    def _fail(self) -> None:
        """A rank is gone: end the others, and say how it ended."""
        pids, self._pids = self._pids, []
        self._close()
        await_all(pids, f"{self._name}: a rank left before its time", _LAST_WORDS_S)
        raise RuntimeError(f"{self._name}: all ranks left before their time")

    def _close(self) -> None:
        for line in self._lines:
            line.close()
        self._lines = []


Member = TypeVar("Member")


def forwards_and_back(members: Sequence[Member], number: int) -> list[Member]:
    """Return the order of a block: what changes steadily meanwhile hits all of two blocks alike."""
    return list(members) if number % 2 == 0 else list(reversed(members))


def has_room(largest_bytes: int) -> bool:
    """Whether there is memory for another group as large as the largest so far, and a half."""
    return available_bytes() > largest_bytes * 3 // 2 + _SPARE_BYTES
