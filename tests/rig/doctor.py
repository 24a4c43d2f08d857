"""The doctor where RDMA is: faults are planted for real, found by name, and gone when mended.

Usage, within ci/rig/run.sh, as root: doctor.py faults (one host) or doctor.py pair (two). On a
host's own device its network interface is left alone, and the faults of it are skipped by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hidden import without_library

from rdmatensor import config
from rdmatensor.doctor import Finding, Machine, examine_machine, meet, report

NOBODY = 65534
LOW_MEMLOCK_BYTES = 64 << 10
LIMIT_S = 120.0


def told(
    status: int, wrap: Callable[..., list[str]] | None = None, **options: Any
) -> dict[str, Finding]:
    """Run the command, which must end with this status; return its findings."""
    command = [str(Path(sys.executable).with_name("rdmatensor")), "doctor", "--json"]
    if wrap is not None:
        command = wrap(*command)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, **options
    )
    if done.returncode != status:
        sys.exit(f"{command} ended with {done.returncode}, not {status}: {done}")
    return {item["subject"]: Finding(**item) for item in json.loads(done.stdout)}


def machine(**options: object) -> Machine:
    return Machine(native=config.native_values(), **options)  # type: ignore[arg-type]


def findings(of: Machine) -> dict[str, Finding]:
    return {finding.subject: finding for finding in examine_machine(of)}


def as_nobody() -> dict[str, Finding]:
    """Return what the doctor finds for a user without rights, with little memory to lock.

    In this process: that user need not be able to read the interpreter.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (LOW_MEMLOCK_BYTES, LOW_MEMLOCK_BYTES))
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        os.write(writing, pickle.dumps(findings(machine())))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    found: dict[str, Finding] = pickle.loads(data)
    return found


def interface() -> str:
    """Return the first link's, which is the rig's own; none where the device is the host's."""
    return (os.environ["RIG_IFNAMES"].split() or [""])[0]


def link(*words: str) -> None:
    subprocess.run(["ip", "link", "set", interface(), *words], check=True, timeout=LIMIT_S)


def with_gid_index(index: str) -> dict[str, str]:
    return {**os.environ, "RDMATENSOR_VERBS_GID_INDEX": index}


def link_local_gid() -> str | None:
    """Return the index of one that is there, and worse than the one of an IPv4 address."""
    for gid in Path(f"/sys/class/infiniband/{os.environ['RIG_DEVICE']}/ports/1/gids").iterdir():
        with contextlib.suppress(OSError):  # an unused row of the table
            if gid.read_text().startswith("fe80:"):
                return gid.name
    return None


@contextlib.contextmanager
def mtu_1500() -> Iterator[None]:
    mtu = Path(f"/sys/class/net/{interface()}/mtu").read_text().strip()
    link("mtu", "1500")
    try:
        yield
    finally:
        link("mtu", mtu)


@contextlib.contextmanager
def closed_to_others() -> Iterator[None]:
    nodes = list(Path("/dev/infiniband").glob("uverbs*"))
    modes = [node.stat().st_mode & 0o777 for node in nodes]
    for node in nodes:
        node.chmod(0o600)
    try:
        yield
    finally:
        for node, mode in zip(nodes, modes, strict=True):
            node.chmod(mode)


@contextlib.contextmanager
def link_down() -> Iterator[None]:
    link("down")
    try:
        yield
    finally:
        link("up")


def check(what: str, found: Finding | None, level: str) -> None:
    if found is None or found.level != level or not found.fix:
        sys.exit(f"{what}: wanted {level}, found {found}")
    print(f"{what}: {found.level}: {found.text}\n    fix: {found.fix}", flush=True)


def is_healthy() -> bool:
    return all(finding.level != "broken" for finding in findings(machine()).values())


def wait_until_healthy() -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_healthy():
        if time.monotonic() > deadline_s:
            sys.exit("still broken when all is mended")
        time.sleep(0.5)


def faults() -> None:
    device = os.environ["RIG_DEVICE"]
    port = f"{device}:1"
    verbs = told(status=0)["verbs"]
    print(*report([verbs]), flush=True)
    for words in ("a write of", "messages of up to ", "order of bytes "):
        if verbs.level != "ok" or words not in verbs.text:
            sys.exit(f"{words!r} is not told of verbs: {verbs}")
    found = told(status=1, env=with_gid_index("77"))
    check("a GID index that is empty", found.get(f"gid {port}"), "broken")
    worse = link_local_gid()
    if worse is None:
        print("a worse GID: skipped: there is none of a link-local address", flush=True)
    else:
        found = told(status=0, env=with_gid_index(worse))
        check("a GID of a link-local address", found.get(f"gid {port}"), "slower")
    if not interface():
        print("MTU 1500, link down: skipped: the host's own links are not for cutting", flush=True)
    else:
        with mtu_1500():
            found = told(status=0)
        check("MTU 1500", found.get(f"mtu {port}"), "slower")
        wait_until_healthy()
        with link_down():
            found = findings(machine())
        check("link down", found.get(f"port {port}"), "broken")
    wait_until_healthy()
    with closed_to_others():
        found = as_nobody()
    check("no permission on uverbs", found.get(f"uverbs {device}"), "broken")
    check("memlock 64 KiB", found.get("memlock"), "broken")
    found = told(status=1, wrap=without_library)
    check("no library", found.get("libibverbs"), "broken")
    check("no library, so no verbs", found.get("verbs"), "broken")
    wait_until_healthy()
    told(status=0)


def pair() -> None:
    os.environ["RDMATENSOR_REQUIRE"] = "verbs"
    is_first = os.environ["RIG_HOST"] == "0"
    found, lines = meet.with_peer(
        29600 if is_first else None, None if is_first else os.environ["RIG_PEER_ADDR"], []
    )
    print(*report(found), *lines, sep="\n")
    by_subject = {finding.subject: finding for finding in found}
    for subject in ("0 to 1", "1 to 0"):
        finding = by_subject[subject]
        if finding.level != "ok" or not finding.text.startswith("verbs;"):
            sys.exit(f"{subject}: {finding}")


if __name__ == "__main__":
    {"faults": faults, "pair": pair}[sys.argv[1]]()
