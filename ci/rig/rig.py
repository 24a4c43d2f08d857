"""Run a command with a working RDMA device. Usage: bash ci/rig/run.sh [OPTIONS] -- COMMAND.

The means, in this order: an RDMA device that the host has; rdma_rxe loaded on the host; a virtual
machine with KVM, where a short boot has shown that KVM works; one that QEMU emulates (TCG).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import host_device
import options
import tsc
from guests import (
    HOME,
    BootError,
    Guest,
    Machine,
    PanicError,
    RigError,
    end_process,
    fill_control,
    qemu_command,
    watch,
)

CACHE = HOME.parent.parent / "build" / "rig"
KVM_PROOF_S = 15.0  # a boot to the first process takes about 1 s under KVM
SETUP_LIMIT_S = 1800.0  # a slow line and another set-up at work
TIMEOUT_STATUS = 124  # as timeout(1)
RIG_STATUS = 125  # the rig failed, not the command
PANIC_STATUS = 123  # a machine's kernel died under the command
# What the command's environment gets; links.sh and host_device.py fill in what they find.
EXPORTS = (
    *("RIG_MEANS", "RIG_HOST", "RIG_HOSTS", "RIG_OUT", "RIG_SHARED"),
    *("RIG_ADDR", "RIG_PEER_ADDR", "RIG_DEVICE", "RIG_GID_INDEX"),
    *("RIG_ADDRS", "RIG_PEER_ADDRS", "RIG_DEVICES", "RIG_IFNAMES"),
    *("RIG_NONCE", "RIG_CABLE_PORT"),  # for rig-cable
)


def say(text: str) -> None:
    """Tell the user something; standard output is the command's."""
    print(f"rig: {text}", file=sys.stderr, flush=True)


def choose_means(given: options.Options) -> str:
    """Return the first means that this machine has and that the options allow."""
    if given.means != "auto":
        return given.means
    if given.hosts == 1:
        devices = host_device.active_devices()
        if len(devices) >= given.links:
            say(f"means: this host's RDMA device {devices[0]}")
            return "device"
        reason = "not root" if os.geteuid() != 0 else host_device.load_rxe()
        if not reason:
            say("means: rdma_rxe on this host")
            return "rxe"
        say(f"no active RDMA device, and no rdma_rxe on this host: {reason}")
    reason = kvm_problem(given.kernel)
    if not reason:
        say("means: virtual machine with KVM")
        return "kvm"
    say(f"means: virtual machine, emulated (TCG), because KVM is not there: {reason}")
    return "tcg"


def kvm_problem(series: str) -> str:
    """Return why KVM cannot be used, or nothing. A boot tells, once until the host boots."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "no access to /dev/kvm"
    prepare_kernel(series)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    known = CACHE / f"kvm-{boot_id}"
    with contextlib.suppress(FileNotFoundError):
        return known.read_text()
    problem = _prove_kvm(CACHE / f"kernel-{series}")
    for old in CACHE.glob("kvm-*"):
        old.unlink(missing_ok=True)
    known.write_text(problem)
    return problem


def _prove_kvm(kernel: Path) -> str:
    """Boot a guest to its first process and no further."""
    machine = Machine("kvm", kernel, cpus=1, memory_mb=512, kernel_words=("rig.proof",))
    with work_folder() as folder:
        console = folder / "console.log"
        with (folder / "qemu.log").open("wb") as log:
            process = subprocess.Popen(
                qemu_command(machine, console=console),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            process.wait(KVM_PROOF_S)
        except subprocess.TimeoutExpired:
            return f"a kernel that only has to boot hangs for {KVM_PROOF_S:.0f} s"
        finally:
            end_process(process)
        if console.exists() and b"rig: init: proven" in console.read_bytes():
            return ""
        words = (folder / "qemu.log").read_text(errors="replace").strip()
        return words.partition("\n")[0] or "the machine ended without a word"


def prepare_kernel(series: str) -> None:
    """Fetch and unpack what the machines need, if it is not there yet."""
    setup = ["bash", str(HOME / "setup.sh"), series]
    done = subprocess.run(
        setup, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False, timeout=SETUP_LIMIT_S
    )
    if done.returncode != 0:
        raise RigError(f"ci/rig/setup.sh failed with status {done.returncode}")


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """Yield a folder for one run, gone afterwards; sweep those of runs that were killed."""
    CACHE.mkdir(parents=True, exist_ok=True)
    for old in CACHE.glob("run-*"):
        owner = re.match(r"run-(\d+)-", old.name)
        if owner and not Path("/proc", owner[1]).exists():
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"run-{os.getpid()}-", dir=CACHE))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def run_in_guests(given: options.Options, means: str) -> int:
    """Run the command in one or two virtual machines, which get a second boot if the first fails.

    An emulated machine may die before its first command; nothing has run yet that could not again.
    """
    prepare_kernel(given.kernel)
    try:
        return _boot_and_run(given, means)
    except BootError as problem:
        say(f"no machine came up, trying once more: {problem}")
    return _boot_and_run(given, means)


def _boot_and_run(given: options.Options, means: str) -> int:
    kernel = CACHE / f"kernel-{given.kernel}"
    cpu = given.cpu if means == "tcg" else options.CPU
    machine = Machine(means, kernel, given.cpus, given.memory_mb, clock_words(means), cpu)
    given.out.mkdir(parents=True, exist_ok=True)
    nonce = secrets.token_hex(8)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(work_folder())
        guests = [Guest(host, folder / str(host), nonce, say) for host in range(given.hosts)]
        cables = [socket.socketpair() for _ in range(given.links * (given.hosts - 1))]
        for guest in guests:
            config = guest_settings(given, means, guest.host, nonce)
            fill_control(guest.folder / "control", config, EXPORTS, given.command)
            stack.callback(guest.stop)
            prefix = f"[{guest.host}] " if given.hosts == 2 else ""
            guest.start(machine, given.out, prefix, [pair[guest.host] for pair in cables])
        for end in (end for pair in cables for end in pair):
            end.close()
        watch(guests, given.timeout_s)
        if given.is_verbose:
            say("verbose" + "".join(guest.console_tail() for guest in guests))
        return max(guest.status or 0 for guest in guests)


def clock_words(means: str) -> tuple[str, ...]:
    """Return what tells an emulated machine's kernel how fast time passes."""
    khz = tsc.rate_khz() if means == "tcg" else None
    return () if khz is None else (f"tsc_early_khz={khz}",)


def guest_settings(given: options.Options, means: str, host: int, nonce: str) -> dict[str, str]:
    """Return what boot.sh of a host reads."""
    return {
        "RIG_NONCE": nonce,
        "RIG_HOME": str(HOME),
        "RIG_MEANS": means,
        "RIG_HOST": str(host),
        "RIG_HOSTS": str(given.hosts),
        "RIG_LINKS": str(given.links),
        "RIG_IFPREFIX": "eth",
        "RIG_DEVPREFIX": "rxe",
        "RIG_RATE": given.rate,
        "RIG_NETEM": given.netem,
        "RIG_DEADLINE": str(int(time.time() + given.timeout_s)),
        "RIG_CWD": str(Path.cwd()),
        "RIG_PATH": os.environ.get("PATH", os.defpath),
        "RIG_SHARED": str(given.out),
        "RIG_OUT": str(given.out / str(host) if given.hosts == 2 else given.out),
    }


def run_on_host(given: options.Options, means: str) -> int:
    """Run the command on this host, with its own devices or with rxe devices made for it."""
    given.out.mkdir(parents=True, exist_ok=True)
    settings = {"RIG_MEANS": means, "RIG_HOST": "0", "RIG_HOSTS": "1"}
    settings |= {"RIG_OUT": str(given.out), "RIG_SHARED": str(given.out)}
    with contextlib.ExitStack() as stack:
        if means == "rxe":
            reason = host_device.load_rxe()
            if reason:
                raise RigError(f"no rdma_rxe on this host: {reason}")
            stack.callback(_remove_rxe, given.links)
            settings |= host_device.make_rxe(given.links)
        else:
            devices = host_device.active_devices()[: given.links]
            if len(devices) < given.links:
                raise RigError(f"{given.links} active RDMA devices wanted, found {devices}")
            settings |= host_device.device_settings(devices)
        say(f"device {settings['RIG_DEVICES']}")
        path = f"{HOME / 'bin'}:{os.environ.get('PATH', os.defpath)}"
        environment = os.environ | settings | {"PATH": path}
        with subprocess.Popen(
            given.command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        ) as process:
            try:
                status = process.wait(given.timeout_s)
            except subprocess.TimeoutExpired as late:
                raise TimeoutError(f"deadline of {given.timeout_s:g} s passed") from late
            finally:
                _end_session(process)
    return status if status >= 0 else 128 - status


def _remove_rxe(links: int) -> None:
    problem = host_device.remove_rxe(links)
    if problem:
        say(f"cannot remove the rxe devices: {problem}")


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """End a command and what it started and left in its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
            if process.poll() is None:
                time.sleep(0.5)  # for the kind signal to do its work


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    """Leave through every `finally`, and let no further signal cut that short."""
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main() -> int:
    """Run the command; return the rig's exit status."""
    given = options.parse(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    start = time.monotonic()
    try:
        means = choose_means(given)
        run = run_on_host if means in ("device", "rxe") else run_in_guests
        status = run(given, means)
    except TimeoutError as late:
        say(str(late))
        status = TIMEOUT_STATUS
    except PanicError as problem:
        say(f"a kernel died: {problem}")
        status = PANIC_STATUS
    except (RigError, OSError, subprocess.SubprocessError) as problem:
        say(f"error: {problem}")
        status = RIG_STATUS
    say(f"exit status {status} after {time.monotonic() - start:.1f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
