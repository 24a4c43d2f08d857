"""Ranks that run case after case. One that hangs, or dies, is that case's; then all begin again.

The process that imports this imports torch, and forks the ranks: it must have no other threads.
"""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import time
import traceback
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
import torch._dynamo

import rdmatensor.plan  # noqa: F401 - imported once, for all ranks
from tests.fuzz_training.case import Case
from tests.fuzz_training.worker import Outcome, serve

DEADLINE_S = 120.0  # of a case in one way; the group's own timeout comes first
DUMP_S = 1.0
SHOWN = 3000  # characters of a log


@dataclass
class Rank:
    pid: int
    pipe: Connection
    log: Path


class Pool:
    """So many ranks. ask() starts them where there are none."""

    def __init__(self, world: int, transport: str, folder: Path) -> None:
        self.world, self.transport, self.folder = world, transport, folder
        self.ranks: list[Rank] = []

    def ask(self, case: Case, way: str) -> list[Outcome]:
        """Run a case in one way; an Outcome for each rank."""
        if not self.ranks:
            self._start()
            started = self._answers()
            if any(outcome.error for outcome in started):
                raise RuntimeError(f"the ranks did not start: {started}")
        for rank in self.ranks:
            rank.pipe.send_bytes(pickle.dumps((case, way)))
        found = self._answers()
        if any(outcome.error for outcome in found):
            self.stop()  # a group that has failed is of no use any more
        return found

    def stop(self) -> None:
        """End all ranks."""
        for rank in self.ranks:
            rank.pipe.close()
            os.kill(rank.pid, signal.SIGKILL)
            os.waitpid(rank.pid, 0)
        self.ranks = []

    def _start(self) -> None:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        for number in range(self.world):
            mine, theirs = Pipe()
            log = folder / f"{number}.log"
            pid = os.fork()
            if pid == 0:
                self._become(number, folder, theirs, mine, log)
            theirs.close()
            self.ranks.append(Rank(pid, mine, log))

    def _become(
        self, number: int, folder: Path, theirs: Connection, mine: Connection, log: Path
    ) -> None:
        try:
            mine.close()
            for other in self.ranks:
                other.pipe.close()
            fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(fd, 1)
            os.dup2(fd, 2)
            os.environ["RDMATENSOR_TRANSPORT"] = self.transport
            if self.world > 2:
                os.environ["RDMATENSOR_DETERMINISTIC"] = "1"  # as the oracle adds
            serve(number, self.world, folder, theirs)
        except BaseException:  # noqa: BLE001 - a rank's last words
            traceback.print_exc()
        finally:
            os._exit(1)

    def _answers(self) -> list[Outcome]:
        found: dict[int, Outcome] = {}
        deadline_s = time.monotonic() + DEADLINE_S
        while len(found) < self.world and time.monotonic() < deadline_s:
            missing = [n for n in range(self.world) if n not in found]
            ready = wait([self.ranks[n].pipe for n in missing], deadline_s - time.monotonic())
            for number in missing:
                if self.ranks[number].pipe in ready:
                    try:
                        found[number] = pickle.loads(self.ranks[number].pipe.recv_bytes())
                    except (EOFError, ConnectionResetError):
                        found[number] = Outcome(error="Died", words=self._log(number))
        for number in range(self.world):
            if number not in found:
                os.kill(self.ranks[number].pid, signal.SIGUSR1)  # to say where it is
        if len(found) < self.world:
            time.sleep(DUMP_S)
        return [
            found.get(number) or Outcome(error="Hangs", words=self._log(number))
            for number in range(self.world)
        ]

    def _log(self, number: int) -> str:
        return self.ranks[number].log.read_text(errors="replace")[-SHOWN:]


torch.set_num_threads(1)
