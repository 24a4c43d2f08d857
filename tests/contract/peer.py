"""The other process of the contract suite: peer.py ROLE RANK SIZE STORE.

A role is a function of this file; it talks to the test by lines on standard input and output.
"""

from __future__ import annotations

import gc
import os
import sys
import time

import numpy as np

import rdmatensor
from rdmatensor import FileStore, World, join


def say(text: object) -> None:
    print(text, flush=True)


def hear() -> str:
    return sys.stdin.readline().strip()


def _others(world: World) -> list[int]:
    return [rank for rank in range(world.size) if rank != world.rank]


def wait_for_death(world: World) -> None:
    """Wait for a peer that will never say anything; tell what became of it and when."""
    for rank in _others(world):
        world[rank].wait_ready()
    say("ready")
    try:
        world[_others(world)[-1]].wait_notify()
    except rdmatensor.PeerError as error:
        say(f"{time.monotonic():.6f} {error.rank} {error}")


def idle(world: World) -> None:
    for rank in _others(world):
        world[rank].wait_ready()
    say("ready")
    hear()


def in_group(world: World) -> None:
    """A collective that the last rank never joins."""
    with world.group("g") as group:
        group.barrier().wait()
        say("ready")
        if world.rank == world.size - 1:
            hear()
            return
        try:
            group.all_reduce(np.ones(1000, np.float32)).wait()
        except rdmatensor.PeerError as error:
            say(f"{time.monotonic():.6f} {error.rank} {error}")


def forks(world: World) -> None:
    """A child that writes, frees, collects garbage and exits; the parent must not notice."""
    other = world[_others(world)[0]]
    array = world.context.zeros((1000,))
    kept = world.context.zeros((10,))
    region = world.context.export(array)
    other.wait_ready()
    child = os.fork()
    if child == 0:
        kept[:] = 3  # shared memory: the parent sees it, as documented
        try:
            world.context.empty(10)
        except rdmatensor.ForkedProcessError:
            pass
        else:
            os._exit(1)
        try:
            other.write(np.zeros(2), region)
        except rdmatensor.ForkedProcessError:
            pass
        else:
            os._exit(2)
        del array, kept, region
        gc.collect()
        world.close()
        sys.exit(0)  # through the interpreter's exit, atexit included
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    assert (kept == 3).all()
    say(region.encode().hex())
    assert other.wait_notify() == 5
    assert (array == np.arange(1000)).all()
    say("ok")
    hear()


def writes_to_hex(world: World) -> None:
    """Write to the region that the test hands over."""
    other = world[_others(world)[0]]
    region = rdmatensor.RemoteRegion.decode(bytes.fromhex(hear()))
    other.write(np.arange(1000, dtype=np.float32), region, notify=5).wait()
    say("written")
    hear()


def ping(world: World) -> None:
    """Exchange a slot each way, so that two jobs at once would show a mix-up."""
    mark, other = float(hear()), _others(world)[0]
    with (
        world.recv_slot("x", (64,), src=other) as slot,
        world[other].send_slot("x", (64,), "float32") as out,
    ):
        for step in range(200):
            out.put(np.full(64, mark + step, np.float32)).wait()
            with slot.get(timeout_s=10) as got:
                assert (got == mark + step).all(), (got, mark, step)
        say("ok")
        hear()


def expects_refusal(world: World) -> None:
    try:
        world[_others(world)[0]].wait_ready(timeout_s=10)
    except rdmatensor.RdmaTensorError as error:
        say(f"{type(error).__name__} {error}")
    else:
        say("let in")
    hear()


def main() -> None:
    role, rank, size, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    try:
        with join(FileStore(store), rank, size, timeout_s=15) as world:
            globals()[role](world)
    except rdmatensor.RdmaTensorError as error:
        say(f"raised {type(error).__name__} {error}")
        raise


if __name__ == "__main__":
    main()
