"""The rig (ci/rig): its device, its counters, and the folder that both hosts see."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from bench.benchlib.record import Record

PATIENCE_S = 240.0  # of one host for the other, which may still import torch
# rxe has up to 64 packets of a QP on their way: over a slow link they need longer than usual.
ACK_TIMEOUT = "20"
_SYS = Path("/sys/class/infiniband")


def is_here() -> bool:
    """Whether this runs in the rig."""
    return "RIG_DEVICE" in os.environ


def rank() -> int:
    """Return the number of this host."""
    return int(os.environ["RIG_HOST"])


def hosts() -> int:
    """Return how many hosts run the same command; 0 outside the rig."""
    return int(os.environ.get("RIG_HOSTS", "1")) if is_here() else 0


def busy_s() -> float:
    """Return the CPU seconds of this machine since it booted, neither idle nor waiting for a disk.

    Stolen time counts, and the kernel's threads, which do a soft device's work for no process.
    """
    ticks = list(map(int, Path("/proc/stat").read_text(encoding="utf-8").split()[1:9]))
    return (sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK")


def counters() -> Record:
    """Return the counts of each port of the rig's devices since they were made."""
    return {
        f"{name}/{folder.parent.name}": {
            one.name: int(one.read_text(encoding="utf-8"))
            for one in sorted(folder.iterdir())
            if one.name != "lifespan"  # a setting
        }
        for name in os.environ.get("RIG_DEVICES", os.environ["RIG_DEVICE"]).split()
        for folder in sorted((_SYS / name / "ports").glob("*/hw_counters"))
    }


def device() -> Record:
    """Return the device and its emulator."""
    name = os.environ["RIG_DEVICE"]
    driver = _SYS / name / "device" / "driver"
    # rxe has no bus, but the interface that it stands on.
    is_soft = (_SYS / name / "parent").exists()
    dmi = (Path("/sys/class/dmi/id") / word for word in ("sys_vendor", "product_name"))
    return {
        "means": os.environ["RIG_MEANS"],
        "hosts": hosts(),
        "name": name,
        "provider": driver.resolve().name if driver.exists() else "rxe" if is_soft else "unknown",
        "gid_index": os.environ["RIG_GID_INDEX"],
        "mtu": _mtu(name),
        "emulator": " ".join(one.read_text().strip() for one in dmi if one.exists()),
    }


def _mtu(name: str) -> str:
    words = ["ibv_devinfo", "-d", name]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60.0)
    except FileNotFoundError:
        return "unknown"
    lines = [line for line in done.stdout.splitlines() if "active_mtu" in line]
    return ", ".join(line.split(":")[1].strip() for line in lines) or "unknown"


def shape(rate: str) -> None:
    """Limit what this host sends by `tc tbf`."""
    subprocess.run(["rig-shape", "--rate", rate], check=True, timeout=PATIENCE_S)


def common_folder(port: int) -> Path:
    """Return a new folder that both hosts see; an earlier run's files may lie next to it."""
    if rank() == 0:
        folder = tempfile.mkdtemp(prefix="run-", dir=os.environ["RIG_SHARED"])
        with socket.create_server((os.environ["RIG_ADDR"], port)) as server:
            server.settimeout(PATIENCE_S)
            with server.accept()[0] as peer:
                peer.sendall(folder.encode())
        return Path(folder)
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            with socket.create_connection((os.environ["RIG_PEER_ADDR"], port), PATIENCE_S) as peer:
                return Path(peer.makefile(encoding="utf-8").read())
        except OSError:  # it does not listen yet, or has no address yet
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)


def leave(path: Path, what: object) -> None:
    """Write a file that the other host finds whole or not at all."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(json.dumps(what), encoding="utf-8")
    draft.rename(path)


def await_file(path: Path, limit_s: float = PATIENCE_S) -> str:
    """Return a file's text once it is there. Raises TimeoutError."""
    end_s = time.monotonic() + limit_s
    while not path.exists():
        if time.monotonic() > end_s:
            raise TimeoutError(f"the other host leaves no {path.name}")
        time.sleep(0.05)
    return path.read_text(encoding="utf-8")
