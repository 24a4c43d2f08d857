"""Processes of ranks, here or by ssh: variables on standard input, prefixed output, one end.

Each is `sh` with the script below, on this host as on others. A line of standard input sets the
environment, so that no secret is among the words of a command. Where that input ends (the launcher
died, the connection broke), the script ends the rank with all processes of its group.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

_SCRIPT = """\
IFS= read -r variables || exit 97
eval "$variables" || exit 98
exec 3<&0 </dev/null
setsid "$@" 3<&- &
rank=$!
(trap "" TERM
 cat <&3
 kill -TERM -$rank
 i=0
 while kill -0 -$rank && [ $i -lt 50 ]; do sleep 0.1; i=$((i + 1)); done
 kill -KILL -$rank) >/dev/null 2>&1 &
guard=$!
exec 3<&-
wait $rank
status=$?
kill -KILL $guard 2>/dev/null
exit $status
"""
_END_S = 7.0  # for the script's TERM and KILL, then for the connection
# Of this host, its shells and its sessions: another host has its own.
_NOT_SENT = re.compile(r"BASH_FUNC.*|OLDPWD|SHLVL|_|SSH_.*|DBUS_.*|XDG_.*|HOSTNAME|TMPDIR")


def is_local(host: str) -> bool:
    """Return whether a name is this host's."""
    return host in ("localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn())


@dataclass(frozen=True)
class Ssh:
    """How other hosts are reached."""

    port: int | None = None
    identity_file: str | None = None
    connect_s: int = 30

    def command(self, host: str) -> list[str]:
        """Return the words that run a remote command, which follows."""
        words = ["ssh", "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes"]
        words += ["-o", f"ConnectTimeout={self.connect_s}"]
        words += ["-p", str(self.port)] if self.port is not None else []
        words += ["-i", self.identity_file] if self.identity_file is not None else []
        return [*words, host]


@dataclass
class Output:
    """Where lines go, with which prefix. folder: a file for each stream of each rank, too."""

    has_prefix: bool = True
    has_timestamp: bool = False
    folder: Path | None = None
    width: int = 1  # digits of the largest rank, for names that sort
    _files: dict[tuple[str, str], TextIO] = field(default_factory=dict)

    def write(self, label: str, stream: str, text: str) -> None:
        """Write whole lines."""
        if self.folder is not None:
            self._file(label, stream).write(text)
        out = sys.stdout if stream == "stdout" else sys.stderr
        for line in text.splitlines(keepends=True):
            out.write(f"{self._prefix(label, stream)}{line}")
        out.flush()

    def _prefix(self, label: str, stream: str) -> str:
        if not self.has_prefix:
            return ""
        stamp = f"{time.ctime()}" if self.has_timestamp else ""
        return f"{stamp}[{label}]<{stream}>:"

    def _file(self, label: str, stream: str) -> TextIO:
        if (label, stream) not in self._files:
            assert self.folder is not None
            folder = self.folder / f"rank.{label.zfill(self.width)}"
            folder.mkdir(parents=True, exist_ok=True)
            self._files[label, stream] = (folder / stream).open("a", buffering=1, encoding="utf-8")
        return self._files[label, stream]

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


class _Stream:
    """One pipe of a process; it keeps a line that is not whole yet."""

    def __init__(self, name: str) -> None:
        self.name, self._rest = name, ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def lines(self, data: bytes) -> str:
        """Return the whole lines; b"" is the end."""
        text = self._rest + self._decoder.decode(data, final=not data)
        if not data:
            self._rest = ""
            return text if not text or text.endswith("\n") else f"{text}\n"
        whole, newline, self._rest = text.rpartition("\n")
        return whole + newline


@dataclass
class Worker:
    """A running process. label: in front of its lines."""

    label: str
    host: str
    process: subprocess.Popen[bytes]
    is_ended: bool = False

    def end(self) -> None:
        """Ask its script to end it: SIGTERM, and SIGKILL after five seconds."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()


class Workers:
    """All processes of a job, watched by one thread: a context manager that ends what runs."""

    def __init__(self, output: Output, ssh: Ssh) -> None:
        self._output, self._ssh = output, ssh
        self._selector = selectors.DefaultSelector()
        self.running: list[Worker] = []

    def start(
        self, label: str, host: str, command: Sequence[str], variables: Mapping[str, str]
    ) -> Worker:
        """Start a rank. variables: in addition to, or in place of, this process's."""
        script = ["sh", "-c", _SCRIPT, "rank", *command]
        words = script if is_local(host) else [*self._ssh.command(host), shlex.join(script)]
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the launcher alone
        )
        assert process.stdin is not None
        worker = Worker(label, host, process)
        self.running.append(worker)
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, (worker, _Stream(name)))
        with contextlib.suppress(BrokenPipeError):  # it has ended; its status and words say why
            process.stdin.write(_settings({**os.environ, **variables}).encode())
            process.stdin.flush()
        return worker

    def events(self, timeout_s: float | None = None) -> Iterator[tuple[Worker, int]]:
        """Write what ranks said, and yield those that have ended, until the time is over."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self.running:
            left_s = 0.1 if deadline_s is None else min(0.1, deadline_s - time.monotonic())
            if left_s < 0:
                return
            self._pump(left_s)
            for worker in [one for one in self.running if one.process.poll() is not None]:
                self._drain(worker)
                self.running.remove(worker)
                worker.end()
                yield worker, worker.process.returncode

    def _pump(self, left_s: float) -> None:
        for key, _ in self._selector.select(left_s):
            self._read(key)

    def _read(self, key: selectors.SelectorKey) -> bool:
        """Copy what is there; False: nothing, or the end."""
        worker, stream = key.data
        try:
            data = os.read(key.fd, 1 << 16)
        except BlockingIOError:
            return False
        if text := stream.lines(data):
            self._output.write(worker.label, stream.name, text)
        if not data:
            self._selector.unregister(key.fileobj)
        return bool(data)

    def _drain(self, worker: Worker) -> None:
        """Take the last words; a child of the rank's may hold the pipe, and is not waited for."""
        for key in list(self._selector.get_map().values()):
            if key.data[0] is worker:
                while self._read(key):
                    pass
                if key.fd in self._selector.get_map():
                    self._output.write(worker.label, key.data[1].name, key.data[1].lines(b""))
                    self._selector.unregister(key.fileobj)
        for pipe in (worker.process.stdout, worker.process.stderr):
            assert pipe is not None
            pipe.close()

    def end(self) -> None:
        """End all that run, and wait for that."""
        for worker in self.running:
            worker.end()
        for _ in self.events(_END_S):
            pass
        for worker in self.running:
            os.killpg(worker.process.pid, signal.SIGKILL)
        for _ in self.events(_END_S):
            pass

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._selector.close()
        self._output.close()


def _settings(variables: Mapping[str, str]) -> str:
    """Return one line for the script: it goes to the rank's folder and sets its environment."""
    sent = {
        name: value
        for name, value in variables.items()
        if re.fullmatch(r"[A-Za-z_]\w*", name) and not _NOT_SENT.fullmatch(name)
        if "\n" not in value
    }
    words = [f"export {name}={shlex.quote(value)}" for name, value in sent.items()]
    return "; ".join([f"cd {shlex.quote(str(Path.cwd()))}", *words]) + "\n"
