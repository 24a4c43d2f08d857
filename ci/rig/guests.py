"""Virtual machines of the rig: QEMU's command line, and the processes from start to end.

A guest's output arrives over two pipes that QEMU writes, with control words of guest/boot.sh in
between: a NUL byte, "rig:", the run's nonce, a word, a line break. Whatever else is the command's.
A third one brings what rig-cable asks for, which QEMU's monitor does: only it can take the carrier.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import MSG_DONTWAIT, socket, socketpair
from typing import BinaryIO

HOME = Path(__file__).resolve().parent
BOOT_LIMIT_S = 180.0  # 4 s on an idle machine without KVM; other work may hold the CPUs
QUIT_LIMIT_S = 5.0
CONSOLE_TAIL_LINES = 30
DEATH_LINES = 100  # from the first words of a dying kernel on: they say of what
DEATH = re.compile(r"Kernel panic|Oops|kernel BUG|general protection fault|BUG: ")
PANIC = "Kernel panic"  # the last of them, in any case
READ_BYTES = 1 << 16
LONGEST_CONTROL_BYTES = 4096  # a longer text after the mark is not one


class RigError(Exception):
    """The rig itself failed: not the command."""


class BootError(RigError):
    """No machine came up: the command has not run anywhere."""


class PanicError(RigError):
    """A machine's kernel died under the command, which is not to blame: no program can do that."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What all guests of a run have in common."""

    accel: str  # "kvm" or "tcg"
    kernel: Path  # folder with vmlinuz and initramfs
    cpus: int
    memory_mb: int
    kernel_words: tuple[str, ...] = ()
    cpu: str = "max"


def qemu_command(machine: Machine, *, console: Path, extra: Sequence[str] = ()) -> list[str]:
    """Return the command that boots one guest; `extra` adds its shares, ports and links."""
    accel = "tcg,thread=multi,tb-size=512" if machine.accel == "tcg" else machine.accel
    # An emulated TSC is the host's. When this machine is busy the watchdog takes the clock for bad
    # and changes to the HPET: then every look at the time costs more than a short message.
    clock = "tsc=reliable"
    # While a kernel boots it patches its own code. An emulated second CPU may run the breakpoint
    # that stood there meanwhile after it is gone, and the kernel panics: one boot in twenty did.
    # boot.sh wakes the others.
    cpus = "maxcpus=1"
    words = ("console=ttyS0", "quiet", "panic=-1", "mitigations=off", clock, cpus)
    append = " ".join((*words, *machine.kernel_words))
    return [
        # The guest ends with this process, even if that is killed.
        *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"),
        *("-accel", accel, "-cpu", machine.cpu),
        *("-smp", str(machine.cpus), "-m", str(machine.memory_mb)),
        *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-kernel", str(machine.kernel / "vmlinuz"), "-append", append),
        *("-initrd", str(machine.kernel / "initramfs")),
        *("-chardev", f"file,id=console,path={_escaped(console)}", "-serial", "chardev:console"),
        *extra,
    ]


def share(name: str, path: Path, *, is_writable: bool) -> list[str]:
    """Return the options that share a folder of the host by 9p."""
    fsdev = f"local,id={name},path={_escaped(path)},security_model=none,multidevs=remap"
    if not is_writable:
        fsdev += ",readonly=on"
    return ["-fsdev", fsdev, "-device", f"virtio-9p-pci,fsdev={name},mount_tag={name}"]


def output_port(name: str, fd: int, number: int) -> list[str]:
    """Return the options of a virtio serial port whose bytes go to a descriptor of QEMU's."""
    return [
        *("-add-fd", f"fd={fd},set={number}"),
        *("-chardev", f"file,id=port{number},path=/dev/fdset/{number},append=on"),
        *("-device", f"virtserialport,chardev=port{number},name=rig.{name}"),
    ]


def cable(fd: int, host: int, link: int) -> list[str]:
    """Return the options of a network card whose cable is a socket: nothing is lost on it."""
    mac = f"52:54:00:77:{link:02x}:{host + 1:02x}"
    return [
        *("-netdev", f"socket,id=link{link},fd={fd}"),
        *("-device", f"virtio-net-pci,netdev=link{link},mac={mac},host_mtu=9000"),
    ]


def _escaped(path: Path) -> str:
    return str(path).replace(",", ",,")


class ControlFilter:
    """Takes the control words out of a stream of bytes, wherever it was cut."""

    def __init__(self, nonce: str) -> None:
        self._mark = f"\0rig:{nonce}:".encode()
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, list[str]]:
        """Return what is the command's and the complete control words."""
        data = self._held + data
        passed = bytearray()
        words: list[str] = []
        while (start := data.find(self._mark)) >= 0:
            end = data.find(b"\n", start)
            if end < 0 and len(data) - start < LONGEST_CONTROL_BYTES:
                self._held = data[start:]
                return bytes(passed + data[:start]), words
            passed += data[:start]
            words.append(data[start + len(self._mark) : end].decode(errors="replace"))
            data = data[end + 1 :]
        kept = self._mark_prefix_at_end(data)
        self._held = data[len(data) - kept :]
        return bytes(passed + data[: len(data) - kept]), words

    def rest(self) -> bytes:
        """Return what was held back, at the end of the stream."""
        held, self._held = self._held, b""
        return held

    def _mark_prefix_at_end(self, data: bytes) -> int:
        for length in range(min(len(self._mark) - 1, len(data)), 0, -1):
            if data.endswith(self._mark[:length]):
                return length
        return 0


class Printer:
    """Writes a guest's output to a stream; with a prefix, whole lines only."""

    def __init__(self, stream: BinaryIO, prefix: bytes) -> None:
        self._stream = stream
        self._prefix = prefix
        self._line = b""

    def write(self, data: bytes) -> None:
        """Pass bytes on."""
        if self._prefix:
            *lines, self._line = (self._line + data).split(b"\n")
            data = b"".join(self._prefix + line + b"\n" for line in lines)
        if data:
            self._stream.write(data)
            self._stream.flush()

    def close(self) -> None:
        """Write what is left of an unfinished line."""
        if self._line:
            self.write(b"\n")


@dataclass(slots=True)
class _Port:
    fd: int
    words: ControlFilter
    printer: Printer | None  # None: control words only
    is_finished: bool = False


@dataclass(slots=True)
class Guest:
    """One machine of a run, from its start to its end."""

    host: int
    folder: Path  # console.log, qemu.log, and control/, which the guest sees
    nonce: str
    say: Callable[[str], None]
    status: int | None = None  # of the command
    is_up: bool = False
    monitor: socket | None = None
    process: subprocess.Popen[bytes] | None = None
    ports: list[_Port] = field(default_factory=list)

    def start(self, machine: Machine, results: Path, prefix: str, cables: Sequence[socket]) -> None:
        """Start QEMU. The control folder has been filled."""
        extra = [
            *share("root", Path("/"), is_writable=False),
            *share("control", self.folder / "control", is_writable=False),
            *share("results", results, is_writable=True),
            *("-device", "virtio-serial-pci"),
        ]
        write_fds = []
        streams = {"out": sys.stdout.buffer, "err": sys.stderr.buffer, "cable": None}
        for number, (name, stream) in enumerate(streams.items(), 1):
            read_fd, write_fd = os.pipe()
            write_fds.append(write_fd)
            printer = Printer(stream, prefix.encode()) if stream else None
            port = _Port(read_fd, ControlFilter(self.nonce), printer, is_finished=stream is None)
            self.ports.append(port)
            extra += output_port(name, write_fd, number)
        self.monitor, monitor_end = socketpair()
        extra += ["-chardev", f"socket,id=monitor,fd={monitor_end.fileno()}"]
        extra += ["-mon", "chardev=monitor,mode=readline"]
        for link, end in enumerate(cables):
            extra += cable(end.fileno(), self.host, link)
        command = qemu_command(machine, console=self.folder / "console.log", extra=extra)
        try:
            with (self.folder / "qemu.log").open("wb") as log:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[
                        *(*write_fds, monitor_end.fileno()),
                        *(end.fileno() for end in cables),
                    ],
                    start_new_session=True,  # Ctrl-C is for the rig, which ends the guests
                )
        finally:
            monitor_end.close()
            for fd in write_fds:
                os.close(fd)

    def read(self, port: _Port) -> bool:
        """Pass on what a port has and obey its control words. False at the end of the stream."""
        data = os.read(port.fd, READ_BYTES)
        passed, words = port.words.feed(data)
        if port.printer is not None:
            port.printer.write(passed if data else port.words.rest())
        port.is_finished |= not data
        for word in words:
            self._obey(port, word)
        return bool(data)

    def _obey(self, port: _Port, word: str) -> None:
        name, _, argument = word.partition(" ")
        if name == "up":
            self.is_up = True
            uptime_s, _, report = argument.partition(" ")
            self.say(f"host {self.host} is up after {uptime_s} s: {report}")
        elif name == "exit":
            self.status = int(argument)
            port.is_finished = True
        elif name == "end":
            port.is_finished = True
        elif name == "cable":
            self._switch_cable(argument)
        elif name == "fail":
            raise RigError(f"host {self.host}: {argument}{self.console_tail()}")
        else:
            raise RigError(f"host {self.host} sent an unknown control word {name!r}")

    def _switch_cable(self, argument: str) -> None:
        """Have QEMU take the carrier of a link, or give it back."""
        if self.monitor is None or not re.fullmatch(r"link\d (on|off)", argument):
            raise RigError(f"host {self.host} asks for a wrong cable: {argument!r}")
        with contextlib.suppress(BlockingIOError):  # what the monitor answers goes unread otherwise
            while self.monitor.recv(READ_BYTES, MSG_DONTWAIT):
                pass
        self.monitor.sendall(f"set_link {argument}\n".encode())

    @property
    def is_finished(self) -> bool:
        """Whether the command's status and all of its output are here."""
        return self.status is not None and all(port.is_finished for port in self.ports)

    def check_alive(self) -> None:
        """Raise if QEMU has ended before the command did."""
        if self.process is not None and self.process.poll() is not None and not self.is_finished:
            log = (self.folder / "qemu.log").read_text(errors="replace").strip()
            words = (
                f"the machine of host {self.host} ended by itself, with status "
                f"{self.process.returncode}{log and ': ' + log}{self.console_tail()}"
            )
            raise PanicError(words) if PANIC in words else RigError(words)

    def console_tail(self) -> str:
        """Return the last lines of the console, or a dying kernel's words, for an error message."""
        try:
            text = (self.folder / "console.log").read_text(errors="replace")
        except FileNotFoundError:
            return "; it has no console yet"
        lines = text.replace("\r", "").strip().splitlines()
        if PANIC in text:
            death = next(i for i, line in enumerate(lines) if DEATH.search(line))
            lines = lines[death : death + DEATH_LINES]
        else:
            lines = lines[-CONSOLE_TAIL_LINES:]
        shown = "".join(f"\n  | {line}" for line in lines)
        return f"; last lines of the console of host {self.host}:{shown or ' none'}"

    def stop(self) -> None:
        """End QEMU, whatever it does."""
        if self.process is not None:
            end_process(self.process)
        for port in self.ports:
            if port.printer is not None:
                port.printer.close()
            os.close(port.fd)
        self.ports.clear()
        if self.monitor is not None:
            self.monitor.close()


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End a process by its id: kindly, then not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(QUIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def fill_control(
    folder: Path, config: dict[str, str], exports: Sequence[str], command: Sequence[str]
) -> None:
    """Write what a guest reads: its settings, the environment and the command."""
    folder.mkdir(parents=True)
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in config.items()]
    lines.append(f"RIG_EXPORTS=({' '.join(exports)})\n")
    (folder / "config.sh").write_text("".join(lines))
    (folder / "environment").write_bytes(
        b"".join(name + b"=" + value + b"\0" for name, value in os.environb.items())
    )
    (folder / "command").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in command))
    (folder / "boot.sh").write_bytes((HOME / "guest" / "boot.sh").read_bytes())


def watch(guests: Sequence[Guest], timeout_s: float) -> None:
    """Relay the guests' output until all commands have ended.

    Raises RigError, of which BootError before any guest is up and PanicError afterwards, and
    TimeoutError.
    """
    try:
        _relay(guests, timeout_s)
    except RigError as problem:
        if any(guest.is_up for guest in guests):
            raise
        raise BootError(str(problem)) from problem


def _relay(guests: Sequence[Guest], timeout_s: float) -> None:
    start = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for guest in guests:
            for port in guest.ports:
                selector.register(port.fd, selectors.EVENT_READ, (guest, port))
        while not all(guest.is_finished for guest in guests):
            for key, _ in selector.select(0.2):
                guest, port = key.data
                if not guest.read(port):
                    selector.unregister(port.fd)
            passed_s = time.monotonic() - start
            for guest in guests:
                guest.check_alive()
                if not guest.is_up and passed_s > BOOT_LIMIT_S:
                    raise RigError(
                        f"host {guest.host} is not up after {BOOT_LIMIT_S:.0f} s"
                        + guest.console_tail()
                    )
            if passed_s > timeout_s:
                late = [guest for guest in guests if not guest.is_finished]
                raise TimeoutError(
                    f"deadline of {timeout_s:g} s passed"
                    + "".join(guest.console_tail() for guest in late)
                )
