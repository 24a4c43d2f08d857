"""A parameter server on two hosts of the rig: the same bits as on one host, over a bad cable too.

Usage, on both hosts: ps_hosts.py [--expect-repairs] PATH... (verbs, tcp). Worker 0 is on host 0;
worker 1 and the server are on host 1. Host 0 first has all three ranks itself, over shared memory.
A table and a dense model are trained in "sync". torch is imported once, and every rank forked.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from two_hosts import read_counters

import rdmatensor.ps as ps
from rdmatensor import FileStore

WAIT_S = 200.0
RANKS, SERVER = 3, 2
STEPS, ROWS, DIM, BATCH = 5, 3000, 16, 700
HOST = int(os.environ["RIG_HOST"])


def train(worker: ps.Worker) -> str:
    """Return a digest of all rows and parameters after some steps."""
    table = worker.table("rows", DIM, rows=ROWS, rule=ps.Adagrad(0.1), init=ps.uniform(-1, 1))
    torch.manual_seed(worker.rank)  # other values on each worker: worker 0's count
    model = torch.nn.Sequential(torch.nn.Linear(DIM, 400), torch.nn.Tanh(), torch.nn.Linear(400, 1))
    dense = worker.dense(model, ps.SGD(0.05, momentum=0.9), split_bytes=4096)
    rows = ps.Embedding(table)
    for step in range(STEPS):
        draws = torch.Generator().manual_seed(100 * step + worker.rank)
        ids = torch.randint(0, ROWS, (BATCH,), generator=draws)
        model(rows(ids)).square().mean().backward()
        dense.step()
    digest = hashlib.sha256(table.pull(range(ROWS)).numpy().tobytes())
    for one in model.parameters():
        digest.update(one.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def rank_of(rank: int, folder: Path, path: str) -> None:
    """Be one rank; a worker leaves its digest in the folder, if all its peers are on the path."""
    os.environ["RDMATENSOR_TRANSPORT"] = path
    torch.set_num_threads(1)
    store = FileStore(folder / "store")
    with ps.join(store, rank, RANKS, servers=1, timeout_s=WAIT_S) as cluster:
        if cluster.server is not None:
            cluster.server.serve()
            return
        assert cluster.worker is not None
        found = train(cluster.worker)
        context = cast("dict[str, list[dict[str, str]]]", cluster.describe()["context"])
        paths = {one["path"] for one in context["endpoints"]}
        if paths != {path}:
            raise AssertionError(f"worker {rank} has used {paths}, not {path}")
        (folder / f"draft{rank}").write_text(found, encoding="ascii")
        (folder / f"draft{rank}").rename(folder / f"digest{rank}")
        cluster.worker.leave()


def run(ranks: list[int], folder: Path, path: str) -> None:
    """Fork these ranks. Raises AssertionError if one fails or does not end."""
    pids = [_forked(lambda rank=rank: rank_of(rank, folder, path)) for rank in ranks]
    deadline_s = time.monotonic() + WAIT_S
    statuses: dict[int, int] = {}
    while len(statuses) < len(pids) and time.monotonic() < deadline_s:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            statuses[pid] = status
        else:
            time.sleep(0.05)
    for pid in set(pids) - statuses.keys():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if [statuses.get(pid) for pid in pids] != [0] * len(pids):
        raise AssertionError(f"ranks {ranks} over {path}: statuses {statuses} of {pids}")


def _forked(work: Callable[[], None]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    return pid


def digest_of(folder: Path, rank: int) -> str:
    """Return what a worker has left. Raises AssertionError if it leaves nothing in time."""
    deadline_s = time.monotonic() + WAIT_S
    while not (folder / f"digest{rank}").exists():
        assert time.monotonic() < deadline_s, f"worker {rank} has left no digest"
        time.sleep(0.1)
    return (folder / f"digest{rank}").read_text(encoding="ascii")


def main() -> int:
    """Compare the digests of all workers with those of one host; 0 if they are the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expect-repairs", action="store_true")
    parser.add_argument("paths", nargs="+", choices=("verbs", "tcp"))
    arguments = parser.parse_args()
    before, shared = read_counters(), Path(os.environ["RIG_SHARED"])
    found = {}
    if HOST == 0:
        alone = Path(tempfile.mkdtemp())
        run(list(range(RANKS)), alone, "shm")
        found = {f"one host, worker {rank}": digest_of(alone, rank) for rank in range(SERVER)}
    for path in arguments.paths:
        folder = shared / path
        folder.mkdir(exist_ok=True)
        run([0] if HOST == 0 else [1, SERVER], folder, path)
        found |= {f"{path}, worker {rank}": digest_of(folder, rank) for rank in range(SERVER)}
        print(f"{path}: done", flush=True)
    if len(set(found.values())) != 1:
        raise AssertionError(f"not the same bits: {found}")
    after = read_counters()
    repairs = {name: after[name] - before.get(name, 0) for name in after}
    if arguments.expect_repairs and not any(repairs.values()):
        raise AssertionError(f"the device repaired nothing: {repairs}")
    print(f"the same bits: {', '.join(found)}; repairs: {repairs}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
