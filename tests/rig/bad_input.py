"""Settings and machines that verbs cannot work with: each must be named, and kill nothing.

Runs on one host of the rig, as root. Where verbs is forced the reason must reach the user as an
error; in automatic mode the context must open all the same and describe() must tell the reason.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hidden import without_library

from rdmatensor import Context, RdmaTensorError, config

if TYPE_CHECKING:
    from collections.abc import Iterator

LOW_MEMLOCK_BYTES = 64 << 10
LIMIT_S = 120.0


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set variables for a while."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def forced_error() -> str:
    """Return what a context says that may use verbs only; nothing if it opens and allocates."""
    with environment(RDMATENSOR_TRANSPORT="verbs"):
        try:
            with Context(config.from_environment()) as context:
                context.zeros((1 << 20,), "uint8")
        except RdmaTensorError as error:
            return str(error)
    return ""


def automatic_reason() -> str:
    """Return why verbs is not viable in a context that may use anything; nothing if it is."""
    with environment(RDMATENSOR_TRANSPORT="auto"), Context(config.from_environment()) as context:
        context.zeros((1 << 20,), "uint8")
        transports = cast("dict[str, dict[str, object]]", context.describe()["transports"])
    verbs = transports["verbs"]
    return "" if verbs["is_viable"] else str(verbs["reason"])


def check(what: str, *words: str) -> None:
    """Raise unless both ways of asking name every one of the words."""
    for way, said in (("forced", forced_error()), ("automatic", automatic_reason())):
        missing = [word for word in words if word not in said]
        if not said or missing:
            raise AssertionError(f"{what}, {way}: {said!r} does not name {missing}")
        print(f"{what}, {way}: {said}", flush=True)


def check_child(case: str, *words: str) -> None:
    """Run a case of this file by a program that takes it as its last word."""
    done = subprocess.run([*words, sys.executable, __file__, case], check=False, timeout=LIMIT_S)
    if done.returncode != 0:
        raise AssertionError(f"{case} failed with status {done.returncode}")


def low_memlock() -> None:
    """Where little memory may be locked, the message has the lines that change that."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (LOW_MEMLOCK_BYTES, LOW_MEMLOCK_BYTES))
    check("little locked memory", "memlock", "LimitMEMLOCK=infinity", "--ulimit")


def no_permission() -> None:
    """Where the device's node may not be opened, that is the reason."""
    words = (os.environ["RIG_DEVICE"], "may this user open /dev/infiniband/uverbs*?")
    check("no permission", *words)  # rdma-core tries other names too: its errno is of the last


def no_library() -> None:
    """Where libibverbs is not there, that is the reason, and the packages that have it."""
    check("no library", "libibverbs.so.1 cannot be loaded", "No such file", "install libibverbs1")


def wait_for_port(wanted: str) -> None:
    """Wait until the first port's state is, or is not any more, ACTIVE."""
    state = Path(f"/sys/class/infiniband/{os.environ['RIG_DEVICE']}/ports/1/state")
    until_s = time.monotonic() + LIMIT_S
    while state.read_text().strip().endswith("ACTIVE") != (wanted == "ACTIVE"):
        if time.monotonic() > until_s:
            raise AssertionError(f"the port is {state.read_text().strip()}, not {wanted}")
        time.sleep(0.02)


def port_down() -> None:
    """A port without a carrier is no candidate."""
    if not os.environ["RIG_IFNAMES"]:
        print("port down: skipped: the host's own cables are not for pulling", flush=True)
        return
    subprocess.run(["rig-cable", "down"], check=True, timeout=LIMIT_S)
    try:
        wait_for_port("DOWN")
        check("port down", os.environ["RIG_DEVICE"], "not active: is its link up?")
    finally:
        subprocess.run(["rig-cable", "up"], check=True, timeout=LIMIT_S)
        wait_for_port("ACTIVE")


def wrong_lists(device: str) -> None:
    """What is no index, no port, or names a device that is not there is not passed over."""
    for name, value in (
        ("RDMATENSOR_VERBS_GID_INDEX", "abc"),
        ("RDMATENSOR_VERBS_GID_INDEX", "-1"),
        ("RDMATENSOR_VERBS_GID_INDEX", "mlx5_99=1"),
        ("RDMATENSOR_VERBS_DEVICES", f"{device}:one"),
        ("RDMATENSOR_VERBS_DEVICES", f"{device},mlx5_99"),
        ("RDMATENSOR_VERBS_DEVICES", f"{device}:99"),
    ):
        with environment(**{name: value}):
            check(f"wrong {name}", f"{name}={value}")


CHILDREN = {"low_memlock": low_memlock, "no_permission": no_permission, "no_library": no_library}


def main() -> int:
    """Run every case; 0 if each is refused with its reason, and verbs works without them."""
    if forced_error() or automatic_reason():
        raise SystemExit(f"verbs is not viable to begin with: {forced_error()}")
    with environment(RDMATENSOR_VERBS_DEVICES="mlx5_99"):
        check("wrong device name", "RDMATENSOR_VERBS_DEVICES=mlx5_99", os.environ["RIG_DEVICE"])
    with environment(RDMATENSOR_VERBS_GID_INDEX="77"):
        check("wrong GID index", "RDMATENSOR_VERBS_GID_INDEX asks for 77")
    wrong_lists(os.environ["RIG_DEVICE"])
    check_child("low_memlock", "setpriv", "--bounding-set=-ipc_lock")
    check_child("no_library", *without_library())
    nodes = sorted(Path("/dev/infiniband").glob("uverbs*"))
    modes = [node.stat().st_mode & 0o777 for node in nodes]
    for node in nodes:
        node.chmod(0)
    try:
        check_child("no_permission", "setpriv", "--bounding-set=-dac_override,-dac_read_search")
    finally:
        for node, mode in zip(nodes, modes, strict=True):
            node.chmod(mode)
    port_down()
    if forced_error():
        raise AssertionError(f"verbs did not come back: {forced_error()}")
    print("bad input: every case named its reason")
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 2:
        CHILDREN[sys.argv[1]]()
    else:
        sys.exit(main())
