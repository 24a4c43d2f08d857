"""RDMA devices that the host itself has, or can have by loading rdma_rxe."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from guests import HOME, RigError

MODPROBE_LIMIT_S = 30
LINKS_LIMIT_S = 60

_DEVICES = Path("/sys/class/infiniband")


def active_devices() -> list[str]:
    """Return the names of the host's devices whose first port is active."""
    return [
        state.parents[2].name
        for state in sorted(_DEVICES.glob("*/ports/1/state"))
        if state.read_text().strip().endswith("ACTIVE")
    ]


def device_settings(devices: list[str]) -> dict[str, str]:
    """Return the RIG_ settings that describe devices as they are."""
    addresses = [_address(name) for name in devices]
    return {
        "RIG_DEVICES": " ".join(devices),
        "RIG_DEVICE": devices[0],
        "RIG_ADDRS": " ".join(addresses),
        "RIG_PEER_ADDRS": " ".join(addresses),
        "RIG_ADDR": addresses[0],
        "RIG_PEER_ADDR": addresses[0],
        "RIG_IFNAMES": "",  # the host's own cables are not for pulling
        "RIG_GID_INDEX": _gid_index(devices[0]),
    }


def _address(device: str) -> str:
    """Return the IPv4 address of the interface behind a device; any reaches the host itself."""
    for netdev in sorted((_DEVICES / device / "ports/1/gid_attrs/ndevs").glob("*")):
        try:
            interface = netdev.read_text().strip()
        except OSError:  # an unused row of the table
            continue
        shown = subprocess.run(
            ["ip", "-4", "-o", "address", "show", "dev", interface],
            capture_output=True,
            text=True,
            check=False,
            timeout=LINKS_LIMIT_S,
        )
        words = shown.stdout.split()
        if "inet" in words:
            return words[words.index("inet") + 1].partition("/")[0]
    return "127.0.0.1"


def _gid_index(device: str) -> str:
    """Return the first RoCE v2 GID that stands for an IPv4 address, else 0."""
    port = _DEVICES / device / "ports/1"
    for gid in sorted((port / "gids").glob("*"), key=lambda path: int(path.name)):
        try:
            kind = (port / "gid_attrs/types" / gid.name).read_text().strip()
            if kind == "RoCE v2" and gid.read_text().startswith("0000:0000:0000:0000:0000:ffff:"):
                return gid.name
        except OSError:  # an unused row of the table
            continue
    return "0"


def load_rxe() -> str:
    """Load rdma_rxe on the host. Return why that is impossible, or nothing."""
    if Path("/sys/module/rdma_rxe").exists():
        return ""
    modprobe = shutil.which("modprobe", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if modprobe is None:
        return "modprobe is missing"
    done = subprocess.run(
        [modprobe, "rdma_rxe"],
        capture_output=True,
        text=True,
        check=False,
        timeout=MODPROBE_LIMIT_S,
    )
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def make_rxe(links: int) -> dict[str, str]:
    """Make rxe devices over veth pairs on the host. Undo with remove_rxe()."""
    done = _host_links("up", str(links))
    if done.returncode != 0:
        remove_rxe(links)
        raise RigError(f"cannot make rxe devices on this host: {done.stderr.strip()}")
    pairs = (line.partition("=") for line in done.stdout.splitlines())
    return {name: value for name, _, value in pairs}


def remove_rxe(links: int) -> str:
    """Remove what make_rxe() made. Return what went wrong, or nothing."""
    done = _host_links("down", str(links))
    return "" if done.returncode == 0 else done.stderr.strip()


def _host_links(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(HOME / "host_links.sh"), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=LINKS_LIMIT_S,
    )
