"""One of two hosts of the rig, whose cable or peer goes away while tensors go both ways.

Usage, on both hosts: cable.py pulled|gone|killed|unequal|unloaded|bare|moved. Host 0 pulls the
cable for a second, after which all must go on, or permanently, after which both must be told who is
not reached any more. Host 1 kills itself in mid-transfer, takes smaller packets than host 0, has no
libibverbs, or takes its own device away: then tcp does the work and says why, or, where verbs is
required, every rank gets an error. With two links (`moved`) RDMA goes over the
second alone, which is cut in mid-transfer and stays cut: the pair moves to tcp over the first, says
so, and no byte differs; where verbs is required, both get the error. Each error has to come within
what the documents promise, and ROOM_S.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from hidden import without_library

from rdmatensor import FileStore, RdmaTensorError, World, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rdmatensor import SlotSender, Transfer

    Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

WAIT_S = 120.0
PEER_TIMEOUT_S = 8.0  # silence after which a peer counts as dead: longer than what follows
RETRY_WINDOW_S = 4.096e-6 * 2**17 * 7  # rdma.md, "A path that is lost"; the defaults
DEATH_S = 0.5  # python.md: a process that dies is named within half a second
# Both machines are emulated, on two CPUs that may serve others: to start a shell takes half a
# second, a thread that is woken waits for its turn, and the kernel itself tells of a lost carrier
# up to a second later. With it a death is still told before silence is, and all of it long before
# the transfers' own deadline.
ROOM_S = 5.0
SWITCH_S = 10.0  # what `rig-cable` may take
REQUIRED_S = 60.0
PULLED_S = 1.0
POLL_S = 0.02
ROUNDS = 12
EVENT_ROUND = 4
SIZE_BYTES = 1 << 20
REPORT = "the device reported: port error"  # in describe(), as long as the port is down
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


def wait_until(what: str, is_so: Callable[[], bool], limit_s: float = WAIT_S) -> None:
    """Wait for something that tells nobody when it happens."""
    until_s = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > until_s:
            raise AssertionError(f"not within {limit_s:.0f} s: {what}")
        time.sleep(POLL_S)


def rig_cable(*words: str) -> None:
    """Pull or plug; down and up return once the carrier is gone or back."""
    print("rig-cable", *words, flush=True)
    subprocess.run(["rig-cable", *words], check=True, timeout=WAIT_S)


def has_carrier() -> bool:
    """Tell whether this end of the first link hears the other."""
    interface = os.environ["RIG_IFNAMES"].split()[0]
    return Path(f"/sys/class/net/{interface}/carrier").read_text().strip() == "1"


def endpoint_of(world: World) -> dict[str, object]:
    """Return what describe() says of the peer."""
    return cast("list[dict[str, object]]", world.describe()["endpoints"])[0]


def lane_of(world: World) -> str:
    """Return what describe() says of the links to the peer."""
    return str(endpoint_of(world)["lane"])


def path_of(world: World) -> tuple[str, str]:
    """Return how the peer is reached, and why."""
    endpoint = endpoint_of(world)
    reason = endpoint["why_not_better"] or endpoint["lane"]
    return str(endpoint["path"]), str(reason)


def check_path(world: World, wanted: str) -> None:
    """Raise unless the peer is reached as expected."""
    path, reason = path_of(world)
    print(f"the peer is reached by {path}: {reason}", flush=True)
    if path != wanted:
        raise AssertionError(f"the peer is reached by {path}, not by {wanted}")


def put_unplugged(world: World, out: SlotSender, data: Bytes) -> Transfer:
    """Put a tensor while this end has no cable, which comes back a second after it went."""
    rig_cable("down")
    gone_s = time.monotonic()
    sent = out.put(data)
    wait_until("the port's report", lambda: REPORT in lane_of(world))
    wait_until("a second without cable", lambda: time.monotonic() > gone_s + PULLED_S)
    if sent.done() or has_carrier():
        raise AssertionError("there was no cable, and the tensor has arrived")
    print(f"without a cable for {time.monotonic() - gone_s:.1f} s: {lane_of(world)}", flush=True)
    rig_cable("up")
    return sent


@dataclass
class Progress:
    """How far an exchange has come, to judge what ends it."""

    rounds: int = 0
    well_s: float = 0.0  # when this host last knew that nothing was wrong
    has_happened: bool = False  # as far as this host knows


def exchange(
    world: World, event: str = "", slots: str = "to", progress: Progress | None = None
) -> None:
    """Send to the other host and receive from it; in one round the event happens meanwhile.

    The slots' name is to be new each time: the peer may not have closed its last one yet.
    """
    progress = progress or Progress()
    slot = world.recv_slot(f"{slots}-{RANK}", (SIZE_BYTES,), "uint8", src=PEER)
    out = world[PEER].send_slot(f"{slots}-{PEER}", (SIZE_BYTES,), "uint8")
    for number in range(ROUNDS):
        is_due = number == EVENT_ROUND
        progress.rounds = number
        if not progress.has_happened:
            progress.well_s = time.monotonic()
        if is_due and event == "pulled" and RANK == 0:
            sent = put_unplugged(world, out, payload(RANK, number))
        else:
            sent = out.put(payload(RANK, number))
        if is_due and event == "killed" and RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # its tensor is on its way, and so is the peer's
        if is_due and event in ("down", CUT) and RANK == 0:
            rig_cable(*event.split())
            progress.has_happened, progress.well_s = True, time.monotonic()
        with slot.get(timeout_s=WAIT_S) as got:
            if not np.array_equal(got, payload(PEER, number)):
                raise AssertionError(f"round {number}: the bytes differ")
        sent.wait(timeout_s=WAIT_S)
    out.close()
    slot.close()


def expect_loss(event: str, limit_s: float, *words: str) -> None:
    """Exchange until the peer is lost; the error must name it, and come within limit_s."""
    progress = Progress()
    lost: RdmaTensorError | None = None
    with meet("lost", RDMATENSOR_PEER_TIMEOUT_S=str(PEER_TIMEOUT_S)) as world:
        world[PEER].wait_ready(timeout_s=WAIT_S)
        check_path(world, "verbs")
        try:
            exchange(world, event, progress=progress)
        except RdmaTensorError as error:
            took_s = time.monotonic() - progress.well_s
            lost = error
    if lost is None:
        raise AssertionError(f"all {ROUNDS} rounds went through")
    print(f"round {progress.rounds}, after {took_s:.1f} s: {lost}", flush=True)
    if progress.rounds < EVENT_ROUND:
        raise AssertionError(f"lost before anything had happened: {lost}") from lost
    if lost.rank != PEER or f"rank {PEER}" not in str(lost):
        raise AssertionError(f"the error names rank {lost.rank}: {lost}") from lost
    missing = [word for word in words if word not in str(lost)]
    if missing:
        raise AssertionError(f"the error does not name {missing}: {lost}") from lost
    # The far end counts from its last round, before the event: it learns of it by its loss alone.
    room_s = ROOM_S + (SWITCH_S if RANK == 1 else 0.0)
    if took_s > limit_s + room_s:
        raise AssertionError(f"{took_s:.1f} s, promised are {limit_s:.1f}") from lost


def pulled() -> None:
    """A second without a carrier costs nothing but time; meanwhile the device's report is told."""
    # Longer than usual: what a second takes here with what goes around it.
    with meet("pulled", RDMATENSOR_VERBS_TIMEOUT="20") as world:
        exchange(world, "pulled")
        check_path(world, "verbs")
        wait_until("the report is over", lambda: REPORT not in lane_of(world))
        world.group("pulled").barrier().wait(timeout_s=WAIT_S)


def gone() -> None:
    """Both ends learn that the other is not reached any more: by the port, and by silence."""
    told = Path(os.environ["RIG_SHARED"]) / "told"
    if RANK == 1:
        expect_loss("down", PEER_TIMEOUT_S)
        told.touch()
        return
    try:
        expect_loss("down", RETRY_WINDOW_S, os.environ["RIG_DEVICE"])
        wait_until("the other end is told, too", told.exists)
    finally:
        rig_cable("up")


def killed() -> None:
    """Host 0 learns that rank 1 died; host 1 does so in a process of its own, to tell the rest."""
    if RANK == 0:
        expect_loss("killed", DEATH_S)
        return
    done = subprocess.run([sys.executable, __file__, "dies"], check=False, timeout=WAIT_S)
    if done.returncode != -signal.SIGKILL:
        raise AssertionError(f"the process ended with status {done.returncode}, was not killed")


def dies() -> None:
    """Exchange, and end in the middle of it."""
    with meet("lost", RDMATENSOR_PEER_TIMEOUT_S=str(PEER_TIMEOUT_S)) as world:
        exchange(world, "killed")


def sent_packets() -> int:
    """Return how many packets the first device has sent."""
    counters = Path(f"/sys/class/infiniband/{os.environ['RIG_DEVICE']}/ports/1/hw_counters")
    return int((counters / "sent_pkts").read_text())


def unequal() -> None:
    """Host 1 may send 1024 bytes in a packet, host 0 could send 4096: neither sends more."""
    interface = os.environ["RIG_IFNAMES"].split()[0]
    mtu = Path(f"/sys/class/net/{interface}/mtu").read_text().strip()
    if RANK == 1:
        subprocess.run(["ip", "link", "set", interface, "mtu", "1500"], check=True, timeout=WAIT_S)
    try:
        with meet("unequal") as world:
            before = sent_packets()
            exchange(world)
            sent = sent_packets() - before
            check_path(world, "verbs")
            world.group("unequal").barrier().wait(timeout_s=WAIT_S)
    finally:
        if RANK == 1:
            subprocess.run(["ip", "link", "set", interface, "mtu", mtu], check=True, timeout=WAIT_S)
    print(f"{sent} packets for {ROUNDS} tensors of {SIZE_BYTES} bytes", flush=True)
    if sent < ROUNDS * SIZE_BYTES // 1024:
        raise AssertionError("larger packets were sent than the other end takes")


def unloaded() -> None:
    """Host 1 has no libibverbs; as if it had no device."""
    if RANK == 0:
        work_without_verbs()
        return
    words = without_library(sys.executable, __file__, "no_library")
    subprocess.run(words, check=True, timeout=2 * WAIT_S)


def no_library() -> None:
    """Meet the other host, and name what is missing."""
    work_without_verbs("libibverbs.so.1 cannot be loaded")


def bare() -> None:
    """Host 1 has no RDMA device any more."""
    if RANK == 0:
        work_without_verbs()
        return
    device = os.environ["RIG_DEVICE"]
    subprocess.run(["rdma", "link", "delete", device], check=True, timeout=WAIT_S)
    work_without_verbs("no RDMA port can be used: no device was found")


def work_without_verbs(why: str = "") -> None:
    """Go on over tcp, saying who has no verbs, and at that end why; required, it is an error."""
    absent = "verbs: rank 1 has none"
    with meet("bare") as world:
        exchange(world)
        check_path(world, "tcp")
        reason = path_of(world)[1]
        if absent not in reason or why not in reason:
            raise AssertionError(f"neither {absent!r} nor {why!r} is the reason: {reason}")
        world.group("bare").barrier().wait(timeout_s=WAIT_S)
    begun_s = time.monotonic()
    try:
        limit = {"RDMATENSOR_TIMEOUT_S": str(REQUIRED_S)}
        with meet("required", RDMATENSOR_REQUIRE="verbs", **limit) as world:
            world[PEER].wait_ready()
    except RdmaTensorError as error:
        took_s = time.monotonic() - begun_s
        print(f"required, after {took_s:.1f} s: {error}", flush=True)
        if "verbs is required" not in str(error) or absent not in str(error):
            raise AssertionError(f"the error does not say who has no verbs: {error}") from error
        if took_s > REQUIRED_S + ROOM_S:
            raise AssertionError(f"{took_s:.1f} s, the deadline is {REQUIRED_S:.0f}") from error
        return
    raise AssertionError("verbs was required, and the peer has none")


def moved() -> None:
    """RDMA is lost permanently, tcp is not: all goes on; where verbs is required, nothing does."""
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
        rig_cable("mend", "1")
        mended.touch()
    wait_until("the cable is mended", mended.exists)
    os.environ["RDMATENSOR_REQUIRE"] = "verbs"
    try:
        expect_loss(CUT, RETRY_WINDOW_S)
    finally:
        if RANK == 0:
            rig_cable("mend", "1")


CASES = {
    "pulled": pulled,
    "gone": gone,
    "killed": killed,
    "unequal": unequal,
    "unloaded": unloaded,
    "no_library": no_library,
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
