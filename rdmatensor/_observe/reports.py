"""Processes that answer anyone of their user with their state, whatever their program does.

A report has an abstract name in the network namespace, which the kernel removes with the process:
nothing has to be found, cleaned up or trusted. Each side checks the other's user.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

_NAMES = Path("/proc/net/unix")
_PREFIX = "@rdmatensor/"  # as the kernel writes "\0rdmatensor/"
_ANSWER_S = 2.0
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class Report:
    """Answers each connection of this user or root with describe()'s result, until close().

    describe is a method, whose object may be dropped.

    Threads:
        One of its own, which calls describe().
    """

    def __init__(self, kind: str, describe: Callable[[], Mapping[str, object]]) -> None:
        self._describe, self._pid = weakref.WeakMethod(describe), os.getpid()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0rdmatensor/{kind}/{self._pid}/{secrets.token_hex(4)}")
        self._socket.listen()
        self._thread = threading.Thread(target=self._answer, name="rdmatensor report", daemon=True)
        self._thread.start()
        _open.add(self)

    def _answer(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(_ANSWER_S)
                if _user_of(connection) in (os.getuid(), 0):
                    self._send(connection)

    def _send(self, connection: socket.socket) -> None:
        describe = self._describe()
        if describe is None:
            return
        try:
            state = dict(describe())
        except Exception as error:  # noqa: BLE001 - the reader gets it
            state = {"error": f"{type(error).__name__}: {error}"}
        try:
            connection.sendall(json.dumps(state).encode())
        except OSError:
            return  # the reader has gone

    def close(self) -> None:
        """Answer no more; idempotent, and does nothing after a fork."""
        if os.getpid() != self._pid:
            return
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # closed before
        self._socket.close()
        self._thread.join()


def ask_all(kind: str) -> list[Mapping[str, object]]:
    """Return the reports of a kind in this network namespace and of this user.

    Each has "pid"; that of a process that does not answer within 2 s also has "error".
    """
    found: list[Mapping[str, object]] = []
    for name in _names(f"{_PREFIX}{kind}/"):
        report = _ask(name)
        if report is not None:
            found.append({"pid": int(name.split("/")[2]), **report})
    return found


def _names(prefix: str) -> list[str]:
    lines = _NAMES.read_text(encoding="utf-8", errors="replace").splitlines()
    names = {line.rpartition(" ")[2] for line in lines if f" {prefix}" in line}
    return sorted(name for name in names if name.count("/") == prefix.count("/") + 1)


def _ask(name: str) -> Mapping[str, object] | None:
    """Return a report; None if it is another user's, or has gone meanwhile."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(_ANSWER_S)
        try:
            asked.connect("\0" + name.removeprefix("@"))
            if _user_of(asked) != os.getuid() and os.getuid() != 0:
                return None
            parts = []
            while part := asked.recv(1 << 16):
                parts.append(part)
        except TimeoutError:
            return {"error": f"the process does not answer within {_ANSWER_S:g} s"}
        except OSError:
            return None
    return dict(json.loads(b"".join(parts))) if parts else None


def _user_of(connection: socket.socket) -> int:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(raw)[1]
    return user


_open: weakref.WeakSet[Report] = weakref.WeakSet()


def _after_fork() -> None:
    for one in list(_open):
        one._socket.close()  # the child would take connections that it never answers


os.register_at_fork(after_in_child=_after_fork)
