"""Run a function as the ranks of a job: import torch once, then fork.

python launcher.py MODULE:FUNCTION --world N --out DIR --timeout-s S --arguments JSON

Each rank calls FUNCTION(rank, world, **arguments), leaves its result as DIR/<rank>.json and its
words as DIR/<rank>.log, and ends as a Python process does. DIR/exits.json has how each ended: an
exit status, the negative number of a signal, or null for one that had to be ended.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from meeting import FOLDER_VARIABLE

GIVE_UP_EARLY_S = 3.0  # before the deadline: time to say where a rank hangs


def become_rank(rank: int, world: int, port: int, out: Path, dump_after_s: float) -> None:
    """Set up a forked child: the environment that a launcher gives, and files for its words."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    os.environ[FOLDER_VARIABLE] = str(out)
    log = os.open(out / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.dump_traceback_later(dump_after_s, exit=False)


def run_rank(args: argparse.Namespace, rank: int) -> int:
    """Call the function; a forked child's main program."""
    module, _, function = args.role.partition(":")
    try:
        result = getattr(importlib.import_module(module), function)(
            rank, args.world, **args.arguments
        )
        (args.out / f"{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    except BaseException:  # noqa: BLE001 - the rank's last words
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
    return 0


def wait_for(pids: dict[int, int], deadline_s: float) -> dict[int, int | None]:
    """Wait for the ranks, and end those that are late."""
    exits: dict[int, int | None] = {}
    while len(exits) < len(pids) and time.monotonic() < deadline_s:
        for rank, pid in pids.items():
            if rank not in exits:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    exits[rank] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    for rank in set(pids) - set(exits):
        os.kill(pids[rank], signal.SIGKILL)
        os.waitpid(pids[rank], 0)
        exits[rank] = None
    return exits


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role")
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--timeout-s", type=float, required=True)
    parser.add_argument("--arguments", type=json.loads, default={})
    args = parser.parse_args()

    torch.set_num_threads(1)
    port = free_port()
    start_s = time.monotonic()
    pids: dict[int, int] = {}
    for rank in range(args.world):
        pid = os.fork()
        if pid == 0:
            become_rank(rank, args.world, port, args.out, args.timeout_s - GIVE_UP_EARLY_S)
            return run_rank(args, rank)
        pids[rank] = pid
    exits: dict[int, Any] = wait_for(pids, start_s + args.timeout_s)
    (args.out / "exits.json").write_text(json.dumps(exits), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
