"""The file of a run in the rig: its rows, and what they need to be understood.

That is the machine and the commit, the device and what it counted (retries, packets out of
sequence, receivers that were not ready), on both hosts where there are two, and what emulates it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.benchlib import machine
from bench.benchlib.record import Record

Counters = dict[str, int]
_SYS = Path("/sys/class/infiniband")
_DMI = Path("/sys/class/dmi/id")
_LIMIT_S = 240.0  # of one host for the other, which may still import torch


class Kept:
    """A run from its start, when it is made, to its end; common: a folder that both hosts see."""

    def __init__(self, common: Path | None = None) -> None:
        self._began_s = time.monotonic()
        self._told = None if common is None else common / "counters-of-host-1"
        self._before = counters()
        self._about: Record = {}  # what stays the same; emulated, it takes seconds to find out

    def so_far(self, out: Path, rows: Sequence[Record], **options: object) -> None:
        """Write the file on host 0 as finish() does, and say in it that the run goes on.

        What is measured is kept then, whatever ends the run. Counters are host 0's alone.
        """
        if os.environ["RIG_HOST"] == "0":
            self._write(out, rows, options, [self._seen()], is_whole=False)

    def finish(self, out: Path, rows: Sequence[Record], **options: object) -> None:
        """Write the file on host 0, in the results folder unless `out` is absolute.

        Host 1, if there is one, tells what its device counted, and that is all.
        """
        seen = self._seen()
        if self._told is not None and os.environ["RIG_HOST"] != "0":
            _tell(self._told, seen)
            return
        both = [seen, *([] if self._told is None else [_hear(self._told)])]
        print(f"kept in {self._write(out, rows, options, both, is_whole=True)}", flush=True)

    def _seen(self) -> dict[str, dict[str, Counters]]:
        return {"before": self._before, "after": counters()}

    def _write(
        self,
        out: Path,
        rows: Sequence[Record],
        options: dict[str, object],
        seen: list[dict[str, dict[str, Counters]]],
        *,
        is_whole: bool,
    ) -> Path:
        path = Path(os.environ["RIG_OUT"]) / out  # elsewhere a guest's files are gone afterwards
        self._about = self._about or {"machine": machine.stamp(), "device": device()}
        head = {
            "command": " ".join(sys.argv),
            **self._about,
            "options": options,
            "is_whole": is_whole,  # else it was ended before its last row
            "seconds": round(time.monotonic() - self._began_s, 1),
            "hw_counters": seen,  # of each host
        }
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
        text = json.dumps(head, indent=1)
        draft = path.with_name(f"{path.name}.draft")
        draft.write_text(f'{text[:-2]},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")
        draft.rename(path)
        return path


def busy_s() -> float:
    """Return the CPU seconds of this machine since it booted, without what was idle.

    With the kernel's threads, which do a soft device's work and count for no process.
    """
    user, nice, system, _idle, _iowait, irq, softirq = (
        int(word) for word in Path("/proc/stat").read_text(encoding="utf-8").split()[1:8]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def counters() -> dict[str, Counters]:
    """Return what each port of the rig's devices has counted since they are there."""
    found = {}
    for name in os.environ.get("RIG_DEVICES", os.environ["RIG_DEVICE"]).split():
        for folder in sorted((_SYS / name / "ports").glob("*/hw_counters")):
            found[f"{name}/{folder.parent.name}"] = {
                one.name: int(one.read_text(encoding="utf-8"))
                for one in sorted(folder.iterdir())
                if one.name != "lifespan"  # a setting
            }
    return found


def device() -> Record:
    """Return what the device is and what runs it."""
    name = os.environ["RIG_DEVICE"]
    driver = _SYS / name / "device" / "driver"
    # rxe has no bus, but tells the interface that it stands on.
    is_soft = (_SYS / name / "parent").exists()
    words = ("sys_vendor", "product_name", "product_version")
    return {
        "means": os.environ["RIG_MEANS"],
        "hosts": int(os.environ.get("RIG_HOSTS", "1")),
        "name": name,
        "provider": driver.resolve().name if driver.exists() else "rxe" if is_soft else "unknown",
        "gid_index": os.environ["RIG_GID_INDEX"],
        "mtu": _mtu(name),
        "emulator": " ".join(_first_line(_DMI / word) for word in words),
    }


def _mtu(name: str) -> str:
    try:
        said = subprocess.run(
            ["ibv_devinfo", "-d", name],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
        ).stdout
    except FileNotFoundError:
        return "unknown"
    found = [line.split(":")[1].strip() for line in said.splitlines() if "active_mtu" in line]
    return ", ".join(found) or "unknown"


def _first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.exists() else "unknown"


def common_folder(port: int) -> Path:
    """Return a new folder that both hosts see; an earlier run's files may lie beside it."""
    if os.environ["RIG_HOST"] == "0":
        folder = tempfile.mkdtemp(prefix="run-", dir=os.environ["RIG_SHARED"])
        with socket.create_server((os.environ["RIG_ADDR"], port)) as server:
            server.settimeout(_LIMIT_S)
            with server.accept()[0] as peer:
                peer.sendall(folder.encode())
        return Path(folder)
    end_s = time.monotonic() + _LIMIT_S
    while True:
        try:
            with socket.create_connection((os.environ["RIG_PEER_ADDR"], port), _LIMIT_S) as peer:
                return Path(peer.makefile(encoding="utf-8").read())
        except OSError:  # it does not listen yet, or has no address yet
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)


def _tell(path: Path, seen: dict[str, dict[str, Counters]]) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(seen), encoding="utf-8")
    draft.rename(path)


def _hear(path: Path) -> dict[str, dict[str, Counters]]:
    end_s = time.monotonic() + _LIMIT_S
    while not path.exists():
        if time.monotonic() > end_s:
            raise TimeoutError("the other host does not tell its device's counters")
        time.sleep(0.05)
    seen: dict[str, dict[str, Counters]] = json.loads(path.read_text(encoding="utf-8"))
    return seen
