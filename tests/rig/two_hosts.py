"""One of two hosts of the rig: moves tensors over verbs in every way and compares their CRCs.

Usage, on both hosts: two_hosts.py [--expect-repairs]. With the option the run fails unless the
device repaired something, a cable that loses nothing would prove nothing, and describe() told so.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from rdmatensor import FileStore, RemoteRegion, World, config, join

if TYPE_CHECKING:
    from collections.abc import Callable

    from rdmatensor import Group

    Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

WAIT_S = 150.0
SIZES_BYTES = (1, 8, 4095, 4096, 65537, 1 << 20, 4 << 20)
ROUNDS = 3
BLOCKS = 64
BLOCK_BYTES = 4096
NOTIFICATION = 7
# More than a thread that moves data may register itself: another one does, and others' transfers go
# on (csrc/transport/verbs/memory/registrar.c).
LARGE_BYTES = 80 << 20
REPAIRS = ("retr", "seq", "rnr", "duplicate")


def payload(seed: int, size_bytes: int) -> Bytes:
    """Return bytes that every seed makes differently."""
    return np.random.default_rng(seed).integers(0, 256, size_bytes, dtype=np.uint8)


def send_crc(group: Group, data: Bytes) -> None:
    """Tell rank 1 what it must have got."""
    group.send(np.array([zlib.crc32(data)], np.uint32), 1).wait(timeout_s=WAIT_S)


def check_crc(group: Group, data: Bytes, what: str) -> None:
    """Compare what came with what rank 0 sent."""
    wanted = np.zeros(1, np.uint32)
    group.recv(wanted, 0).wait(timeout_s=WAIT_S)
    got = zlib.crc32(np.ascontiguousarray(data))
    if got != int(wanted[0]):
        raise AssertionError(f"{what}: CRC {got:08x}, sent was {int(wanted[0]):08x}")


def static_slots(world: World, group: Group) -> None:
    """Move tensors of one shape each, in a row."""
    for size_bytes in SIZES_BYTES:
        name = f"static-{size_bytes}"
        if world.rank == 0:
            with world[1].send_slot(name, (size_bytes,), "uint8") as out:
                for seed in range(ROUNDS):
                    data = payload(seed, size_bytes)
                    out.put(data).wait(timeout_s=WAIT_S)
                    send_crc(group, data)
            continue
        with world.recv_slot(name, (size_bytes,), "uint8", src=0) as slot:
            for seed in range(ROUNDS):
                with slot.get(timeout_s=WAIT_S) as got:
                    check_crc(group, got, f"{name}, tensor {seed}")


def dynamic_slot(world: World, group: Group) -> None:
    """Let the receiver read tensors of sizes that it did not know."""
    sizes = (0, 1, 300, 70000, 1 << 20)
    if world.rank == 0:
        with world[1].send_slot("dynamic", (1,), "uint8", kind="dynamic") as out:
            for size_bytes in sizes:
                data = payload(size_bytes, size_bytes)
                sent = out.put(data)
                send_crc(group, data)
                sent.wait(timeout_s=WAIT_S)
        return
    with world.recv_slot("dynamic", (1,), "uint8", src=0, kind="dynamic") as slot:
        for size_bytes in sizes:
            with slot.get(timeout_s=WAIT_S) as got:
                if got.shape != (size_bytes,):
                    raise AssertionError(f"a tensor of {got.shape}, sent was {size_bytes}")
                check_crc(group, got, f"dynamic, {size_bytes} bytes")


def lists_of_blocks(world: World, group: Group) -> None:
    """Write many blocks with one notification, then read them back."""
    context = world.context
    if world.rank == 1:
        landing = context.zeros((BLOCKS * BLOCK_BYTES,), np.uint8)
        group.send(np.frombuffer(context.export(landing).encode(), np.uint8), 0).wait()
        world[0].wait_notify(timeout_s=WAIT_S)
        check_crc(group, landing, "a list of blocks")
        group.barrier().wait(timeout_s=WAIT_S)
        return
    described = bytearray(64)
    group.recv(described, 1).wait(timeout_s=WAIT_S)
    region = RemoteRegion.decode(described)
    source = context.empty((BLOCKS * BLOCK_BYTES,), np.uint8)
    source[:] = payload(BLOCKS, source.size)
    blocks = [
        (source[at : at + BLOCK_BYTES], at) for at in range(0, BLOCKS * BLOCK_BYTES, BLOCK_BYTES)
    ]
    world[1].write_many(blocks[::-1], region, notify=NOTIFICATION).wait(timeout_s=WAIT_S)
    send_crc(group, source)
    back = context.zeros((BLOCKS * BLOCK_BYTES,), np.uint8)
    world[1].read(back, region).wait(timeout_s=WAIT_S)
    if zlib.crc32(back) != zlib.crc32(source):
        raise AssertionError("what was read back is not what was written")
    group.barrier().wait(timeout_s=WAIT_S)


def large_private(world: World, group: Group) -> None:
    """Write memory of the program's own, which has to be registered for it."""
    if world.rank == 1:
        landing = world.context.zeros((LARGE_BYTES,), np.uint8)
        group.send(np.frombuffer(world.context.export(landing).encode(), np.uint8), 0).wait()
        world[0].wait_notify(timeout_s=WAIT_S)
        check_crc(group, landing, "a large write")
        return
    described = bytearray(64)
    group.recv(described, 1).wait(timeout_s=WAIT_S)
    source = np.arange(LARGE_BYTES // 4, dtype=np.uint32).view(np.uint8)
    written = world[1].write(source, RemoteRegion.decode(described), notify=NOTIFICATION)
    written.wait(timeout_s=WAIT_S)
    send_crc(group, source)


def all_reduce(world: World, group: Group) -> None:
    """Add tensors of both hosts."""
    for count in (1, 1001, 1 << 18):
        tensor = np.arange(count, dtype=np.float32) * (world.rank + 1)
        group.all_reduce(tensor).wait(timeout_s=WAIT_S)
        if not np.array_equal(tensor, np.arange(count, dtype=np.float32) * 3):
            raise AssertionError(f"all_reduce of {count} floats gave something else")


def read_counters() -> dict[str, int]:
    """Return what the devices have repaired, by counter."""
    found: dict[str, int] = {}
    for file in Path("/sys/class/infiniband").glob("*/ports/*/hw_counters/*"):
        if any(word in file.name for word in REPAIRS):
            found[file.name] = found.get(file.name, 0) + int(file.read_text())
    return found


# What describe() calls the counters of rxe that count what a loss costs.
TOLD = {"retries": "completer_retry_err", "out of sequence": "out_of_seq_request"}


def check_told(lane: str, before: dict[str, int]) -> None:
    """Raise unless describe() has the figures of the device's own counters, and one of them."""
    now = read_counters()
    figures = {}
    for words, name in TOLD.items():
        found = re.search(rf"device since open: .*\b{words} (\d+)", lane)
        if found is None:
            raise AssertionError(f"no {words}: {lane}")
        figures[words] = int(found[1])
        if figures[words] > now[name] - before[name]:  # it looked earlier, and opened later
            raise AssertionError(f"{words}: the device has {now[name] - before[name]}: {lane}")
    if not any(figures.values()):
        raise AssertionError(f"nothing repaired is told: {lane}")


CASES: tuple[Callable[[World, Group], None], ...] = (
    static_slots,
    dynamic_slot,
    lists_of_blocks,
    all_reduce,
)


def main() -> int:
    """Run every case with the other host; 0 if all bytes are as sent and verbs moved them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expect-repairs", action="store_true")
    arguments = parser.parse_args()
    rank = int(os.environ["RIG_HOST"])
    if config.from_environment().transport != "verbs":
        raise SystemExit("set RDMATENSOR_TRANSPORT=verbs: another path would prove nothing")
    before = read_counters()
    store = FileStore(Path(os.environ["RIG_SHARED"]) / "store")
    with join(store, rank, size=2, timeout_s=WAIT_S) as world:
        group = world.group("two hosts")
        # A bad cable would only take longer over a large one.
        for case in CASES if arguments.expect_repairs else (*CASES, large_private):
            case(world, group)
            print(f"{case.__name__}: ok", flush=True)
        endpoints = cast("list[dict[str, object]]", world.describe()["endpoints"])
        if {str(endpoint["path"]) for endpoint in endpoints} != {"verbs"}:
            raise AssertionError(f"the peer was not reached by verbs: {endpoints}")
        print(endpoints[0]["lane"], flush=True)
        if arguments.expect_repairs:
            check_told(str(endpoints[0]["lane"]), before)
        group.barrier().wait(timeout_s=WAIT_S)
    repairs = {name: count - before.get(name, 0) for name, count in read_counters().items()}
    print("repaired:", ", ".join(f"{n} {c}" for n, c in sorted(repairs.items()) if c) or "nothing")
    return 1 if arguments.expect_repairs and not any(repairs.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
