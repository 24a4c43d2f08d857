"""One of two containers that exchange checked tensors; rank 1 prints a table. See compose.yaml.

Over RDMA where the library finds it viable, else over tcp, and the table says which and why. Where
there is a device, rdma-core's own ping-pong with compared bytes runs between the two first: it
tells a container that lacks something from a library that does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from rdmatensor import Context, FileStore, World, config, join

WAIT_S = 120.0
MEETING = Path("/meeting/store")  # a volume of both, new in each run
SIZES_BYTES = (8, 4096, 1 << 20, 16 << 20)
PINGPONG_PORT = 18500
DEVICES = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    case: str
    result: str
    text: str


def device_with_nodes() -> str | None:
    """Return the first active device, if this container can see any."""
    for state in sorted(DEVICES.glob("*/ports/1/state")):
        if state.read_text().strip().endswith("ACTIVE") and list(
            Path("/dev").glob("infiniband/u*")
        ):
            return state.parents[2].name
    return None


def gid_index(device: str) -> str:
    """Return the first GID that stands for an IPv4 address in RoCE v2, else 0."""
    port = DEVICES / device / "ports/1"
    for gid in sorted((port / "gids").glob("*"), key=lambda path: int(path.name)):
        try:
            kind = (port / "gid_attrs/types" / gid.name).read_text().strip()
        except OSError:  # an unused row
            continue
        if kind == "RoCE v2" and gid.read_text().startswith("0000:0000:0000:0000:0000:ffff:"):
            return gid.name
    return "0"


def pingpong(device: str, rank: int) -> Row:
    """Run ibv_rc_pingpong, which compares the bytes that arrive, with the other container."""
    command = ["ibv_rc_pingpong", "-c", "-d", device, "-g", gid_index(device)]
    command += ["-p", str(PINGPONG_PORT), "-s", "65536", "-n", "50"]
    end = time.monotonic() + WAIT_S
    while True:
        done = subprocess.run(
            command + ["127.0.0.1"] * rank,
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
        )
        said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["nothing"]
        if done.returncode == 0:
            return Row("ibv_rc_pingpong", "ok", f"64 KiB 50 times over {device}, bytes compared")
        if "Couldn't connect" not in done.stderr or time.monotonic() > end:
            return Row("ibv_rc_pingpong", "FAILED", said[-1])
        time.sleep(0.2)  # the other one does not listen yet


def choose_transport() -> tuple[config.Settings, str]:
    """Return the settings for the run and the reason for its transport."""
    settings = config.from_environment()
    with Context(replace(settings, transport="auto")) as context:
        state = context.describe()
    transports = cast("dict[str, dict[str, object]]", state["transports"])
    verbs = transports.get("verbs", {"is_viable": False, "reason": "unknown to this library"})
    if verbs["is_viable"]:
        return replace(settings, transport="verbs"), "verbs, found viable"
    return replace(settings, transport="tcp"), f"tcp, because of verbs: {verbs['reason']}"


def payload(size_bytes: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return the bytes that both ranks expect for a size."""
    return np.random.default_rng(size_bytes).integers(0, 256, size_bytes, dtype=np.uint8)


def exchange(world: World, size_bytes: int) -> str:
    """Send a tensor of a size from rank 0 to rank 1, which compares it."""
    name, wanted = f"bytes-{size_bytes}", payload(size_bytes)
    if world.rank == 0:
        with world[1].send_slot(name, (size_bytes,), "uint8") as out:
            out.put(wanted).wait(timeout_s=WAIT_S)
        return "sent"
    with (
        world.recv_slot(name, (size_bytes,), "uint8", src=0) as slot,
        slot.get(timeout_s=WAIT_S) as got,
    ):
        if not np.array_equal(got, wanted):
            raise AssertionError(f"{int((got != wanted).sum())} of {size_bytes} bytes differ")
    return "every byte as sent"


def reached_by(world: World, transport: str) -> str:
    """Check that the other rank was reached as was chosen."""
    endpoints = cast("list[dict[str, object]]", world.describe()["endpoints"])
    paths = {str(endpoint["path"]) for endpoint in endpoints}
    if paths != {transport}:
        raise AssertionError(f"the peer is reached by {paths}, not by {transport}")
    return f"the peer is reached by {transport}"


def leave_together(world: World) -> str:
    """Wait until both ranks have made their rows: a rank that has left cannot be reached."""
    world.group("end").barrier().wait(timeout_s=WAIT_S)
    return "both ranks are through"


def attempt(case: str, check: Callable[[], str]) -> Row:
    """Run a case and make a row of what came of it."""
    try:
        return Row(case, "ok", check())
    except Exception as error:  # noqa: BLE001 - any failure is a row
        return Row(case, "FAILED", f"{type(error).__name__}: {error}")


def main() -> int:
    """Meet the other rank, run the cases; 0 if all have passed."""
    rank = int(os.environ["PAIR_RANK"])
    rows = []
    device = device_with_nodes()
    if device is None:
        rows.append(Row("ibv_rc_pingpong", "none", "no active RDMA device is visible here"))
    else:
        rows.append(pingpong(device, rank))
    settings, reason = choose_transport()
    rows.append(Row("transport", "info", reason))
    with Context(settings) as context:
        store = FileStore(MEETING)
        with join(store, rank, size=2, context=context, timeout_s=WAIT_S) as world:
            for size_bytes in SIZES_BYTES:
                case = f"tensor of {size_bytes} bytes"
                rows.append(attempt(case, partial(exchange, world, size_bytes)))
            rows.append(attempt("path", partial(reached_by, world, settings.transport)))
            rows.append(attempt("end", partial(leave_together, world)))
    is_good = all(row.result != "FAILED" for row in rows)
    if rank == 1:
        for row in rows:
            print(f"{row.case:<26} {row.result:<7} {row.text}")
        print(f"pair: {'passed' if is_good else 'FAILED'}, over {settings.transport}", flush=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
