"""One of two hosts of the rig, joined by two links: tensors go both ways while one link is cut.

Usage, on both hosts of a rig with `--links 2`: two_links.py [--how cut|down|lose]. Host 0 breaks
the second link in mid-run: its packets are refused, its carrier goes, or what it sends is lost
unseen, so that the device gives up only after all its retries. Every tensor of every size is
compared bit by bit; the run fails if the peer is not reached by verbs at the end, if it has been
by anything else in between, or if the link is not named as down, with the port's report where it is
the carrier that went. RDMATENSOR_TRANSPORT is verbs, or auto, which would allow tcp.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from rdmatensor import FileStore, World, config, join

if TYPE_CHECKING:
    from rdmatensor import Group

    Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

WAIT_S = 150.0
SIZES_BYTES = (1, 4096, 65537, 1 << 20, (2 << 20) + 3)
ROUNDS = 60  # at most: breaking a link takes an emulated machine several of them
CUT_ROUND = 6
LATER_ROUNDS = 4  # over one link, once both ends know that the other is down
CUT_LINK = 1
PORT_ERROR = "port error"  # in describe(), from the device's report on
DOWN = f"{os.environ['RIG_DEVICES'].split()[CUT_LINK]}:1 is down"  # in describe()
HOW = {
    "cut": ["rig-cable", "cut", str(CUT_LINK)],
    "down": ["rig-cable", "down", str(CUT_LINK)],
    "lose": ["rig-shape", "--link", str(CUT_LINK), "loss", "100%"],
}


def payload(base: Bytes, rank: int, number: int) -> Bytes:
    """Return what this rank sends as its tensor of this number: no two are the same."""
    shifted: Bytes = np.roll(base, 17 * number + rank)
    shifted ^= np.uint8((number * 7 + rank * 101) & 0xFF)
    return shifted


def await_report(world: World) -> None:
    """Wait until describe() tells of the device's report, while the link may still come back."""
    end_s = time.monotonic() + WAIT_S
    while PORT_ERROR not in lane_of(world):
        if time.monotonic() > end_s:
            raise AssertionError(f"the port's report is not told: {lane_of(world)}")
        time.sleep(0.02)
    print(lane_of(world), flush=True)


def lane_of(world: World) -> str:
    """Return what describe() says of the links to the peer."""
    return str(cast("list[dict[str, object]]", world.describe()["endpoints"])[0]["lane"])


def do_both_know(world: World, group: Group) -> bool:
    """Tell whether both ends name the link as down by now; the answer is the same on both."""
    know = np.array([DOWN in lane_of(world)], np.float32)
    group.all_reduce(know).wait(timeout_s=WAIT_S)
    return bool(know[0] == 2)


def exchange(world: World, group: Group, how: str) -> None:
    """Send to the other host and receive from it, in every size, round by round, to the end."""
    rank, peer = world.rank, 1 - world.rank
    base = np.random.default_rng(3).integers(0, 256, max(SIZES_BYTES), dtype=np.uint8)
    # A sender's slot() waits for the peer's: those first.
    slots = [world.recv_slot(f"links-{peer}-{n}", (n,), "uint8", src=peer) for n in SIZES_BYTES]
    out = [world[peer].send_slot(f"links-{rank}-{n}", (n,), "uint8") for n in SIZES_BYTES]
    cutting: subprocess.Popen[bytes] | None = None
    later = 0
    for number in range(ROUNDS):
        begun_s = time.monotonic()
        tensors = [payload(base[:size_bytes], rank, number) for size_bytes in SIZES_BYTES]
        sent = [sender.put(data) for sender, data in zip(out, tensors, strict=True)]
        if rank == 0 and number == CUT_ROUND:
            print(*HOW[how], flush=True)
            cutting = subprocess.Popen(HOW[how])
            if how == "down":
                await_report(world)
        for slot, size_bytes in zip(slots, SIZES_BYTES, strict=True):
            with slot.get(timeout_s=WAIT_S) as got:
                if not np.array_equal(got, payload(base[:size_bytes], peer, number)):
                    raise AssertionError(f"round {number}: {size_bytes} bytes differ")
        for transfer in sent:
            transfer.wait(timeout_s=WAIT_S)
        print(f"round {number}: ok, {time.monotonic() - begun_s:.1f} s", flush=True)
        later += number > CUT_ROUND and do_both_know(world, group)
        if later > LATER_ROUNDS:
            break
    else:
        raise AssertionError(f"not down after {ROUNDS} rounds: {lane_of(world)}")
    if cutting is not None and cutting.wait(timeout=WAIT_S) != 0:
        raise AssertionError(f"{HOW[how]} failed")
    for end in (*out, *slots):
        end.close()


def main() -> int:
    """Exchange with the other host; 0 if all is as sent, over verbs, with one link down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--how", choices=HOW, default="cut")
    arguments = parser.parse_args()
    os.environ.setdefault("RDMATENSOR_ADDR", os.environ["RIG_ADDR"])  # words go by the first link
    if config.from_environment().transport not in ("verbs", "auto"):
        raise SystemExit("set RDMATENSOR_TRANSPORT=verbs or auto: others would prove nothing")
    store = FileStore(Path(os.environ["RIG_SHARED"]) / "store")
    with join(store, int(os.environ["RIG_HOST"]), size=2, timeout_s=WAIT_S) as world:
        group = world.group("two links")
        exchange(world, group, arguments.how)
        endpoint = cast("list[dict[str, object]]", world.describe()["endpoints"])[0]
        print(endpoint["path"], endpoint["lane"], flush=True)
        if endpoint["path"] != "verbs" or DOWN not in str(endpoint["lane"]):
            raise AssertionError(f"not verbs with one link: {endpoint}")
        if world.context.counters().failovers != 0:
            raise AssertionError(f"moved, with a link that was good: {endpoint}")
        group.barrier().wait(timeout_s=WAIT_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
