"""One of two hosts of the rig, whose cable or peer goes away while tensors go both ways.

Usage, on both hosts: cable.py pulled|gone|killed|bare|moved. Host 0 pulls the cable for a second,
after which all must go on, or for good, after which both must be told who is not reached any more.
Host 1 kills itself in mid-transfer, or takes its own device away: then tcp does the work and says
why, or, where verbs is required, every rank gets an error. With two links (`moved`) RDMA goes over
the second alone, which is cut for good in mid-transfer: the pair moves to tcp over the first, says
so, and no byte differs; where verbs is required, both get the error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from rdmatensor import FileStore, RdmaTensorError, World, join

if TYPE_CHECKING:
    from collections.abc import Iterator

    Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

WAIT_S = 120.0
PEER_TIMEOUT_S = 8.0  # silence after which a peer counts as dead
ROUNDS = 12
EVENT_ROUND = 4
SIZE_BYTES = 1 << 20
CUT = "cut 1"  # the second link
RANK = int(os.environ["RIG_HOST"])
PEER = 1 - RANK


def payload(rank: int, number: int) -> Bytes:
    """Return what a rank sends in a round: no two are the same."""
    return np.random.default_rng([rank, number]).integers(0, 256, SIZE_BYTES, dtype=np.uint8)


@contextlib.contextmanager
def meet(name: str, **settings: str) -> Iterator[World]:
    """Join the other host; the settings are environment."""
    os.environ.update(settings)
    store = FileStore(Path(os.environ["RIG_SHARED"]) / name)
    with join(store, RANK, size=2, timeout_s=WAIT_S) as world:
        yield world


def path_of(world: World) -> tuple[str, str]:
    """Return how the peer is reached, and why."""
    endpoints = cast("list[dict[str, object]]", world.describe()["endpoints"])
    reason = endpoints[0]["why_not_better"] or endpoints[0]["lane"]
    return str(endpoints[0]["path"]), str(reason)


def check_path(world: World, wanted: str) -> None:
    """Raise unless the peer is reached as expected."""
    path, reason = path_of(world)
    print(f"the peer is reached by {path}: {reason}", flush=True)
    if path != wanted:
        raise AssertionError(f"the peer is reached by {path}, not by {wanted}")


def exchange(world: World, event: str = "", slots: str = "to") -> None:
    """Send to the other host and receive from it; in one round the event happens meanwhile.

    The slots' name is to be new each time: the peer may not have closed its last one yet.
    """
    slot = world.slot(f"{slots}-{RANK}", (SIZE_BYTES,), "uint8", src=PEER)
    out = world[PEER].slot(f"{slots}-{PEER}", (SIZE_BYTES,), "uint8")
    happening: subprocess.Popen[bytes] | None = None
    for number in range(ROUNDS):
        sent = out.put(payload(RANK, number))
        if number == EVENT_ROUND and event == "killed" and RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # its tensor is on its way, and so is the peer's
        if number == EVENT_ROUND and event in ("pull 1s", "down", CUT) and RANK == 0:
            print("rig-cable", event, flush=True)
            happening = subprocess.Popen(["rig-cable", *event.split()])
        with slot.get(timeout_s=WAIT_S) as got:
            if not np.array_equal(got, payload(PEER, number)):
                raise AssertionError(f"round {number}: the bytes differ")
        sent.wait(timeout_s=WAIT_S)
        if number == EVENT_ROUND and happening is not None and happening.wait(WAIT_S) != 0:
            raise AssertionError(f"rig-cable {event} failed")
    out.close()
    slot.close()


def expect_loss(event: str) -> None:
    """Exchange until the peer is lost; the error must name it, and come soon."""
    begun_s = time.monotonic()
    try:
        with meet("lost", RDMATENSOR_PEER_TIMEOUT_S=str(PEER_TIMEOUT_S)) as world:
            world[PEER].wait_ready(timeout_s=WAIT_S)
            check_path(world, "verbs")
            begun_s = time.monotonic()
            exchange(world, event)
    except RdmaTensorError as error:
        took_s = time.monotonic() - begun_s
        print(f"after {took_s:.1f} s: {error}", flush=True)
        if error.rank != PEER or f"rank {PEER}" not in str(error):
            raise AssertionError(f"the error names rank {error.rank}: {error}") from error
        if took_s > WAIT_S:  # the transfer's own deadline, which must not be the first to tell
            raise AssertionError(f"it took {took_s:.1f} s") from error
        return
    raise AssertionError(f"all {ROUNDS} rounds went through")


def pulled() -> None:
    """A second without a carrier costs nothing but time."""
    with meet("pulled") as world:
        exchange(world, "pull 1s")
        check_path(world, "verbs")
        world.group("pulled").barrier().wait(timeout_s=WAIT_S)


def gone() -> None:
    """Both ends learn that the other is not reached any more."""
    try:
        expect_loss("down")
    finally:
        if RANK == 0:
            subprocess.run(["rig-cable", "up"], check=True, timeout=WAIT_S)


def killed() -> None:
    """Host 0 learns that rank 1 died; host 1 does so in a process of its own, to tell the rest."""
    if RANK == 0:
        expect_loss("killed")
        return
    done = subprocess.run([sys.executable, __file__, "dies"], check=False, timeout=WAIT_S)
    if done.returncode != -signal.SIGKILL:
        raise AssertionError(f"the process ended with status {done.returncode}, was not killed")


def dies() -> None:
    """Exchange, and end in the middle of it."""
    with meet("lost", RDMATENSOR_PEER_TIMEOUT_S=str(PEER_TIMEOUT_S)) as world:
        exchange(world, "killed")


def bare() -> None:
    """Host 1 has no RDMA: tcp, saying so; an error for both where verbs is required."""
    if RANK == 1:
        device = os.environ["RIG_DEVICE"]
        subprocess.run(["rdma", "link", "delete", device], check=True, timeout=WAIT_S)
    with meet("bare") as world:
        exchange(world)
        check_path(world, "tcp")
        if "verbs" not in path_of(world)[1]:
            raise AssertionError("nothing says why it is not verbs")
        world.group("bare").barrier().wait(timeout_s=WAIT_S)
    begun_s = time.monotonic()
    try:
        with meet("required", RDMATENSOR_REQUIRE="verbs", RDMATENSOR_TIMEOUT="60") as world:
            world[PEER].wait_ready()
    except RdmaTensorError as error:
        took_s = time.monotonic() - begun_s
        print(f"required, after {took_s:.1f} s: {error}", flush=True)
        if "verbs" not in str(error):
            raise AssertionError(f"the error does not name verbs: {error}") from error
        return
    raise AssertionError("verbs was required, and the peer has none")


def moved() -> None:
    """RDMA is lost for good and tcp is not: all goes on; where verbs is required, nothing does."""
    os.environ["RDMATENSOR_VERBS_DEVICES"] = os.environ["RIG_DEVICES"].split()[1]
    mended = Path(os.environ["RIG_SHARED"]) / "mended"
    with meet("moved", RDMATENSOR_PEER_TIMEOUT_S=str(PEER_TIMEOUT_S)) as world:
        world[PEER].wait_ready(timeout_s=WAIT_S)
        check_path(world, "verbs")
        exchange(world, CUT)
        check_path(world, "tcp")
        if "verbs failed" not in path_of(world)[1]:
            raise AssertionError("nothing says that verbs failed")
        if world.context.counters().failovers != 1:
            raise AssertionError(f"{world.context.counters().failovers} failovers are counted")
        exchange(world, slots="later")
        world.group("moved").barrier().wait(timeout_s=WAIT_S)
    if RANK == 0:
        subprocess.run(["rig-cable", "mend", "1"], check=True, timeout=WAIT_S)
        mended.touch()
    until_s = time.monotonic() + WAIT_S
    while not mended.exists():
        if time.monotonic() > until_s:
            raise AssertionError("the cable was not mended")
        time.sleep(0.1)
    os.environ["RDMATENSOR_REQUIRE"] = "verbs"
    try:
        expect_loss(CUT)
    finally:
        if RANK == 0:
            subprocess.run(["rig-cable", "mend", "1"], check=True, timeout=WAIT_S)


CASES = {
    "pulled": pulled,
    "gone": gone,
    "killed": killed,
    "bare": bare,
    "dies": dies,
    "moved": moved,
}


def main() -> int:
    """Run the case that is asked for; 0 if it went as it must."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    arguments = parser.parse_args()
    os.environ.setdefault("RDMATENSOR_ADDR", os.environ["RIG_ADDR"])
    CASES[arguments.case]()
    print(f"{arguments.case}: ok", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
