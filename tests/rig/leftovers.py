"""What a process leaves on the device and in itself, however it ends: nothing.

Usage, within ci/rig/run.sh, on one host: leftovers.py. Children open contexts over verbs and let
bytes fly; then they close, leave by an exception, or are killed. The kernel's own count of the
device's resources must have grown meanwhile, and be what it was before afterwards.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from rdmatensor import Context, Settings

LIMIT_S = 120.0
RELEASE_S = 10.0  # for what the kernel frees behind a process; QPs may have to be drained
USED = ("pd", "cq", "qp", "mr", "ctx")  # by each child; the rest must not change either
WRITES = 16
WRITE_BYTES = 1 << 20  # together two hundred milliseconds and more in an emulated machine
HELD = ExitStack()  # what nobody closes
EXPECTED = {"closes": 0, "raises": 1, "killed": -signal.SIGKILL}


class PlannedError(Exception):
    """What ends a child, or a part of it."""


def resources() -> dict[str, int]:
    """Return how many of each kind the first device has, kernel's own included."""
    shown = subprocess.run(
        ["rdma", "resource", "show", os.environ["RIG_DEVICE"]],
        check=True,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    ).stdout
    found = {kind: int(count) for kind, count in re.findall(r"\b([a-z_]+) (\d+)", shown)}
    if not set(USED) <= set(found):
        raise AssertionError(f"rdma resource show has not {USED}: {shown}")
    return found


def open_files() -> Counter[str]:
    """Return what this process has open."""
    names: Counter[str] = Counter()
    for link in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # the folder that is read here
            names[str(link.readlink())] += 1
    return names


def fly(stack: ExitStack) -> None:
    """Open two contexts in the stack, have them meet over verbs, and leave writes in flight."""
    settings = replace(
        Settings(), transport="verbs", secret=b"leftovers", timeout_s=LIMIT_S, loopback=True
    )
    left = stack.enter_context(Context(settings))
    right = stack.enter_context(Context(settings))
    left.add_job(rank=0)
    right.add_job(rank=1)
    to_right = left.connect(right.address, rank=1)
    to_left = right.connect(left.address, rank=0)
    to_right.wait_ready()
    to_left.wait_ready()
    target = right.zeros(WRITE_BYTES, "uint8")
    source = left.empty(WRITE_BYTES, "uint8")
    source[:] = np.random.default_rng(1).integers(0, 256, WRITE_BYTES, dtype=np.uint8)
    region = right.export(target)
    to_right.write(source, region).wait()
    if not np.array_equal(target, source):
        raise AssertionError("the bytes differ")
    tell_parent()
    flying = [to_right.write(source, region) for _ in range(WRITES)]
    if all(transfer.done() for transfer in flying):
        raise AssertionError("nothing is in flight")


def tell_parent() -> None:
    """Say that all is open, and go on when it has looked."""
    print("open", flush=True)
    sys.stdin.readline()


def closes() -> None:
    """Close once in order and once because of an exception; either way no descriptor is left."""
    before = open_files()
    for is_raised in (False, True):
        with contextlib.suppress(PlannedError), ExitStack() as stack:
            fly(stack)
            opened = open_files() - before
            if is_raised:
                raise PlannedError
        gc.collect()
        left = open_files() - before
        print(f"descriptors: {sum(opened.values())}, then {sum(left.values())}", flush=True)
        if left or not any("uverbs" in name for name in opened):
            raise AssertionError(f"left open: {left}; of {opened}")


def raises() -> None:
    """End by an exception that nobody catches; nothing is closed before."""
    fly(HELD)
    raise PlannedError


def killed() -> None:
    """Be killed with writes in flight."""
    fly(HELD)
    os.kill(os.getpid(), signal.SIGKILL)


def check_end(how: str) -> None:
    """Let a child end and compare the device's resources."""
    before = resources()
    with subprocess.Popen(
        [sys.executable, __file__, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        try:
            if child.stdout.readline() != "open\n":
                raise AssertionError(f"{how}: the child did not come as far as it must")
            during = resources()
            said, _ = child.communicate("go on\n" * 2, timeout=LIMIT_S)
        finally:
            child.kill()
    print(f"{how}: status {child.returncode}; {said.strip()}", flush=True)
    if child.returncode != EXPECTED[how]:
        raise AssertionError(f"{how}: status {child.returncode}, not {EXPECTED[how]}")
    unused = [kind for kind in USED if during[kind] <= before[kind]]
    if unused:
        raise AssertionError(f"{how}: it had no {unused}: {during}")
    until_s = time.monotonic() + RELEASE_S
    while (after := resources()) != before:
        if time.monotonic() > until_s:
            raise AssertionError(f"{how}: before {before}, after {after}")
        time.sleep(0.05)
    print(f"{how}: {before}, meanwhile {during}, and back", flush=True)


def main() -> int:
    """Try each end; 0 if nothing was left."""
    if os.environ["RIG_MEANS"] == "device":
        print("leftovers: skipped: others may use the host's own device meanwhile")
        return 0
    for how in EXPECTED:
        check_end(how)
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 2:
        {"closes": closes, "raises": raises, "killed": killed}[sys.argv[1]]()
    else:
        sys.exit(main())
