"""What the witness and its job share: a pipe of JSON lines, bytes to send, checks that are printed.

Only the standard library: the witness runs in the system's Python. Nothing of the protocol is here.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import socket
import sys
import time
from typing import Any, NoReturn


def payload(seed: int, size_bytes: int) -> bytes:
    """Return bytes that every seed makes differently, on both sides alike."""
    return hashlib.shake_128(seed.to_bytes(8, "little")).digest(size_bytes)


def await_unread(sock: socket.socket, size_bytes: int, limit_s: float) -> None:
    """Wait until so many bytes lie at a socket that does not block, and leave them there."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if select.select([sock], [], [], limit_s)[0]:
            if len(sock.recv(size_bytes, socket.MSG_PEEK)) == size_bytes:
                return
            time.sleep(0.01)  # some do, so that it stays readable
    raise TimeoutError(f"the peer sent less than {size_bytes} bytes within {limit_s:.0f} s")


class Checks:
    """Prints a line for each check of one side, and ends the process at the first that fails."""

    def __init__(self, side: str) -> None:
        self.side = side
        self.count = 0

    def that(self, is_so: bool, what: str, otherwise: object = "") -> None:
        """Print what is so, or what is not and why, and leave."""
        if not is_so:
            self.fail(f"{what}: {otherwise}")
        self.count += 1
        print(f"{self.side}: ok: {what}", file=sys.stderr, flush=True)

    def same(self, got: object, wanted: object, what: str) -> None:
        """Compare two values."""
        self.that(got == wanted, what, f"got {got!r}, wanted {wanted!r}")

    def same_bytes(self, got: bytes, wanted: bytes, what: str) -> None:
        """Compare bytes; a failure names the first that differs."""
        at = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), -1)  # noqa: B905
        self.that(got == wanted, what, f"{len(got)} B, wanted {len(wanted)}; first at {at}")

    def fail(self, why: str) -> NoReturn:
        """Print why, and leave with status 1."""
        print(f"{self.side}: FAILED: {why}", file=sys.stderr, flush=True)
        sys.exit(1)


class Pipe:
    """Lines of JSON, read and written by file descriptor, each wait with a deadline."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self._write_fd = write_fd
        self._held = b""

    def send(self, **words: object) -> None:
        """Write one line."""
        os.write(self._write_fd, json.dumps(words).encode() + b"\n")

    def has_line(self) -> bool:
        """Whether recv() would not wait for the descriptor."""
        return b"\n" in self._held or bool(select.select([self.read_fd], [], [], 0)[0])

    def recv(self, limit_s: float) -> dict[str, Any]:
        """Return the next line; {} where the other side has closed the pipe."""
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._held:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self.read_fd], [], [], left_s)[0]:
                raise TimeoutError(f"the other side said nothing for {limit_s:.0f} s")
            got = os.read(self.read_fd, 1 << 16)
            if not got:
                return {}
            self._held += got
        line, _, self._held = self._held.partition(b"\n")
        words: dict[str, Any] = json.loads(line)
        return words
