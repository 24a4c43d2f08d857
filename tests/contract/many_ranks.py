"""All ranks of a job on two cores: many_ranks.py SIZE STORE ROUNDS; the last rank dies by SIGKILL.

Forks the ranks before the library is in use, and prints a line of JSON: of each survivor the rank
that its error names, and how many seconds after the kill it came.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np

import rdmatensor
from rdmatensor import FileStore, join

_PR_SET_PDEATHSIG = 1


def run_rank(rank: int, size: int, store: Path, rounds: int) -> dict[str, float]:
    """Take part in sums of several sizes; wait for a rank that never comes; tell who is named."""
    with join(FileStore(store / "job"), rank, size) as world, world.group("all") as group:
        for turn in range(rounds):
            for count in (1, 1000, 100_000):
                tensor = np.full(count, rank + turn, np.float32)
                group.all_reduce(tensor).wait()
                if (tensor != size * (size - 1) / 2 + size * turn).any():
                    raise AssertionError(f"round {turn}: {tensor}")
        group.barrier().wait()
        if rank == size - 1:
            (store / "dies").write_text(repr(time.monotonic()), encoding="ascii")
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            group.all_reduce(np.ones(1000, np.float32)).wait()
        except rdmatensor.PeerError as error:
            died_s = float((store / "dies").read_text(encoding="ascii"))
            return {"named": error.rank, "seconds": time.monotonic() - died_s}
    raise AssertionError("nobody was missed")


def main() -> None:
    size, store, rounds = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    pids = {}
    libc = ctypes.CDLL(None)
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                found = run_rank(rank, size, store, rounds)
                (store / f"rank{rank}").write_text(json.dumps(found), encoding="ascii")
                status = 0
            except BaseException:  # noqa: BLE001  it must not run on in main()
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        pids[pid] = rank
    codes = {}
    while len(codes) < size:
        pid, status = os.wait()
        codes[pids[pid]] = os.waitstatus_to_exitcode(status)
    wanted = dict.fromkeys(range(size - 1), 0) | {size - 1: -signal.SIGKILL}
    if codes != wanted:
        raise SystemExit(f"exit codes by rank: {codes}")
    texts = [(store / f"rank{rank}").read_text(encoding="ascii") for rank in range(size - 1)]
    print(json.dumps([json.loads(text) for text in texts]))


if __name__ == "__main__":
    main()
