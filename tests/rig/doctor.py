"""The doctor where RDMA is: faults are planted for real, found by name, and gone when mended.

The command is run as users run it where all is well, and where the library is hidden; else in a
forked child, as a start of the interpreter takes many seconds in an emulated machine.
Usage, within ci/rig/run.sh, as root: doctor.py faults (one host) or doctor.py pair (two). On a
host's own device its network interface is left alone, and the faults of it are skipped by name.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pickle
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hidden import without_library

from rdmatensor import cli, config
from rdmatensor.doctor import Finding, Machine, examine_machine, meet, report

NOBODY = 65534
LOW_MEMLOCK_BYTES = 64 << 10
LIMIT_S = 120.0
IMPORTED_ONCE = ("numpy", "rdmatensor.context")  # by the command, and not in each child


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
    return _by_subject(done.stdout)


def _by_subject(text: str) -> dict[str, Finding]:
    return {item["subject"]: Finding(**item) for item in json.loads(text)["findings"]}


def told_by_child(status: int, **environment: str) -> dict[str, Finding]:
    """Run the command in a child, with these variables; it must end with this status."""

    def command() -> tuple[int, str]:
        os.environ.update(environment)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            ended = cli.main(["doctor", "--json"])
        return ended, said.getvalue()

    ended, text = in_child(command)
    if ended != status:
        sys.exit(f"the doctor with {environment} ended with {ended}, not {status}: {text}")
    return _by_subject(text)


def in_child(call: Callable[[], Any]) -> Any:
    """Return what a function returns in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, pickle.dumps(call()))
        except BaseException:  # noqa: BLE001 - the child's last words
            traceback.print_exc()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    if not data:
        sys.exit("a child that was to examine this machine has failed")
    return pickle.loads(data)


def machine(**options: object) -> Machine:
    return Machine(native=config.native_values(), **options)  # type: ignore[arg-type]


def findings(of: Machine) -> dict[str, Finding]:
    return {finding.subject: finding for finding in examine_machine(of)}


def as_nobody() -> dict[str, Finding]:
    """Return what the doctor finds for a user without rights, with little memory to lock.

    In this process: that user need not be able to read the interpreter.
    """
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (LOW_MEMLOCK_BYTES, LOW_MEMLOCK_BYTES))
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    return findings(machine())


def interface() -> str:
    """Return the first link's, which is the rig's own; none where the device is the host's."""
    return (os.environ["RIG_IFNAMES"].split() or [""])[0]


def link(*words: str) -> None:
    subprocess.run(["ip", "link", "set", interface(), *words], check=True, timeout=LIMIT_S)


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
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    found = told_by_child(1, RDMATENSOR_VERBS_GID_INDEX="77")
    check("a GID index that is empty", found.get(f"gid {port}"), "broken")
    worse = link_local_gid()
    if worse is None:
        print("a worse GID: skipped: there is none of a link-local address", flush=True)
    else:
        found = told_by_child(0, RDMATENSOR_VERBS_GID_INDEX=worse)
        check("a GID of a link-local address", found.get(f"gid {port}"), "slower")
    if not interface():
        print("MTU 1500, link down: skipped: the host's own links are not for cutting", flush=True)
    else:
        with mtu_1500():
            found = told_by_child(0)
        check("MTU 1500", found.get(f"mtu {port}"), "slower")
        wait_until_healthy()
        with link_down():
            found = findings(machine())
        check("link down", found.get(f"port {port}"), "broken")
    wait_until_healthy()
    with closed_to_others():
        found = in_child(as_nobody)
    check("no permission on uverbs", found.get(f"uverbs {device}"), "broken")
    check("memlock 64 KiB", found.get("memlock"), "broken")
    found = told(status=1, wrap=without_library)
    check("no library", found.get("libibverbs"), "broken")
    check("no library, so no verbs", found.get("verbs"), "broken")
    wait_until_healthy()
    told_by_child(0)


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
