"""One of two hosts of the rig that train a model, whose last RDMA link is cut and stays cut.

Usage, on both hosts of a rig with `--links 2`: failover.py. RDMA goes over the second link alone,
everything else over the first. The training goes on over tcp with the bits of a run that nothing
was cut from, and the move is counted and said once; where verbs is required, both ranks get an
error that names the other. torch is imported once, and each of the two runs forked.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import cable
import torch
import torch.distributed as dist
from train import digits, train

import rdmatensor

RANK, PEER = cable.RANK, cable.PEER
LIMIT = timedelta(seconds=cable.WAIT_S)
PORT = 29700
CUT_STEP = 2  # of train.STEPS
SAID = "is reached over tcp from now on"
Samples = tuple[torch.Tensor, ...]


def set_up(port: int, **settings: str) -> None:
    """Form a group over verbs."""
    os.environ.update(settings, RDMATENSOR_PEER_TIMEOUT_S=str(cable.PEER_TIMEOUT_S))
    torch.set_num_threads(1)
    host = os.environ["RIG_PEER_ADDR" if RANK else "RIG_ADDR"]
    dist.init_process_group(
        "rdmatensor", init_method=f"tcp://{host}:{port}", rank=RANK, world_size=2, timeout=LIMIT
    )


def check_path(wanted: str, why: str = "") -> None:
    """Raise unless the other rank is reached as expected."""
    peer = rdmatensor.distributed.describe()["peers"][0]
    print(f"{peer['path']}: {peer['reason']}", flush=True)
    if peer["path"] != wanted or why not in peer["reason"]:
        raise AssertionError(f"not by {wanted}, {why!r}: {peer}")


def cut_in(step: int) -> None:
    """Before one of the steps: what it sends meets no link any more."""
    if RANK == 0 and step == CUT_STEP:
        cable.rig_cable(*cable.CUT.split())


def moves(samples: Samples) -> None:
    """Train, and once more while the link is cut: the same bits, one failover, one warning."""
    set_up(PORT)
    losses, weights = train(*samples)
    check_path("verbs")
    with tempfile.TemporaryFile("w+") as file:  # what the library says meanwhile
        error_fd = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            again, weights_again = train(*samples, cut_in)
        finally:
            os.dup2(error_fd, 2)
            os.close(error_fd)
            file.seek(0)
            said = file.read()
            print(said, flush=True)
    check_path("tcp", "verbs failed")
    if losses != again or not torch.equal(weights, weights_again):
        raise AssertionError(f"not the bits of the uncut run: {again}, {losses}")
    failovers = rdmatensor.default_context().counters().failovers
    if failovers != 1 or said.count(SAID) != 1:
        raise AssertionError(f"{failovers} failovers are counted, {said.count(SAID)} are said")
    dist.barrier()
    gc.collect()
    dist.destroy_process_group()


def ends(samples: Samples) -> None:
    """Where verbs is required, the training ends with an error on both ranks."""
    set_up(PORT + 1, RDMATENSOR_REQUIRE="verbs")
    well_s = 0.0

    def before_step(step: int) -> None:
        nonlocal well_s
        if step <= CUT_STEP:
            well_s = time.monotonic()
        cut_in(step)

    try:
        train(*samples, before_step)
    except RuntimeError as error:
        took_s = time.monotonic() - well_s
        print(f"after {took_s:.1f} s: {error}", flush=True)
        if f"rank {PEER}" not in str(error):
            raise AssertionError(f"the error does not name rank {PEER}") from error
        limit_s = cable.PEER_TIMEOUT_S + cable.SWITCH_S + cable.ROOM_S
        if took_s > limit_s:
            raise AssertionError(f"{took_s:.1f} s, promised are {limit_s:.1f}") from error
    else:
        raise AssertionError("verbs was required, and the training went on without it")
    dist.destroy_process_group()


def in_a_child(run: Callable[[Samples], None], samples: Samples) -> None:
    """Run it in a process of its own; the link is whole again when both hosts have done so."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        run(samples)
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    shared = Path(os.environ["RIG_SHARED"])
    (shared / f"{run.__name__}-{RANK}").touch()
    cable.wait_until("the other host is through", (shared / f"{run.__name__}-{PEER}").exists)
    if RANK == 0:
        cable.rig_cable("mend", "1")
        (shared / f"{run.__name__}-mended").touch()
    cable.wait_until("the cable is mended", (shared / f"{run.__name__}-mended").exists)
    if status != 0:
        raise AssertionError(f"{run.__name__}: the process ended with status {status}")
    print(f"{run.__name__}: ok", flush=True)


def main() -> int:
    """Run both; 0 if they went as they must."""
    os.environ["RDMATENSOR_ADDR"] = os.environ["RIG_ADDR"]
    os.environ["RDMATENSOR_VERBS_DEVICES"] = os.environ["RIG_DEVICES"].split()[1]
    torch.set_num_threads(1)  # before anything is computed: the runs are forked
    samples = digits()
    for run in (moves, ends):
        in_a_child(run, samples)
    return 0


if __name__ == "__main__":
    sys.exit(main())
