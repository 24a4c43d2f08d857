"""A store of two processes over one socket, for a pair of doctors without torch."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time

PORT = 29600
_LINE_BYTES_MAX = 1 << 20
_KEYS_MAX = 256  # a pair of doctors sets a dozen
_SEND_S = 10  # for the peer to read; its thread does nothing else
_PAUSE_S = 0.2


class PairStore:
    """Each side keeps all keys and sends the other what it sets; a rdmatensor.store.Store.

    Ownership: of the connection, which close() closes.
    Raises: OSError from set() and delete_key(), also if the other does not read for _SEND_S;
        RuntimeError from check() once the other is gone, or sent what no doctor sends, and from
        get() and multi_get() if the other has deleted the key since.
    Threads: any.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)  # for reads; sends have a limit of their own
        self._connection = connection
        self._values: dict[str, bytes] = {}
        self._is_ended = False
        self._lock = threading.Lock()  # guards sending
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                while line := lines.readline(_LINE_BYTES_MAX):
                    if len(self._values) >= _KEYS_MAX:
                        raise ValueError("more keys than a doctor sets")
                    key, is_set, value = line.decode().strip().partition("=")
                    text = bytes.fromhex(value).decode()
                    self._keep(bytes.fromhex(key).decode(), text if is_set else None)
        except (OSError, ValueError):
            pass  # gone, or not a doctor: check() reports it
        finally:
            self._is_ended = True

    def _keep(self, key: str, value: str | None) -> bool:
        if value is None:
            return self._values.pop(key, None) is not None
        self._values[key] = value.encode()
        return True

    def _tell(self, key: str, value: str | None) -> None:
        # Hexadecimal, so that no character ends a word or a line.
        words = key.encode().hex() + ("" if value is None else f"={value.encode().hex()}")
        with self._lock:
            self._send(f"{words}\n".encode())

    def _send(self, line: bytes) -> None:
        """Send all of it within _SEND_S, however slowly the other reads."""
        deadline_s = time.monotonic() + _SEND_S
        left = memoryview(line)
        while left:
            wait_s = deadline_s - time.monotonic()
            if wait_s <= 0 or not select.select([], [self._connection], [], wait_s)[1]:
                with contextlib.suppress(OSError):  # half a line was sent: nothing may follow it
                    self._connection.shutdown(socket.SHUT_RDWR)
                raise TimeoutError("the other doctor does not read what it is sent")
            with contextlib.suppress(BlockingIOError):  # try again
                left = left[self._connection.send(left, socket.MSG_DONTWAIT) :]

    def set(self, key: str, value: str) -> None:
        """Set a key on both sides."""
        self._keep(key, value)
        self._tell(key, value)

    def get(self, key: str) -> bytes:
        """Return the value of a key that exists."""
        try:
            return self._values[key]
        except KeyError:
            raise RuntimeError(f"the other doctor took back {key!r}") from None

    def check(self, keys: list[str]) -> bool:
        """Whether all the keys exist."""
        is_ended = self._is_ended  # read before the check: all that came is there then
        if all(key in self._values for key in keys):
            return True
        if is_ended:
            raise RuntimeError("the other doctor has ended, or is none")
        return False

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return the values of keys that exist."""
        return [self.get(key) for key in keys]

    def delete_key(self, key: str) -> bool:
        """Delete a key on both sides; returns whether it existed."""
        was_there = self._keep(key, None)
        self._tell(key, None)
        return was_there

    def close(self) -> None:
        """End the connection and the thread that reads it."""
        with contextlib.suppress(OSError):  # the other side closed first
            self._connection.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._connection.close()


def listen(port: int, timeout_s: float) -> PairStore:
    """Wait for the other doctor on all addresses; raises OSError, including TimeoutError."""
    with socket.create_server(("", port)) as server:
        server.settimeout(timeout_s)
        connection, _ = server.accept()
    return PairStore(connection)


def connect(peer: str, timeout_s: float) -> PairStore:
    """Connect to the doctor at HOST, HOST:PORT or [ADDRESS]:PORT; retries until it listens."""
    host, port = address_of(peer)
    return PairStore(reach(host, port, timeout_s, (ConnectionRefusedError,)))


def reach(
    host: str, port: int, timeout_s: float, may_pass: tuple[type[OSError], ...]
) -> socket.socket:
    """Connect to a port on which a process may soon listen; retries after errors in may_pass.

    Raises: OSError. Ctrl-C ends it.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            return socket.create_connection((host, port), timeout=max(left_s, _PAUSE_S))
        except may_pass as error:
            if left_s <= 0:
                raise TimeoutError(
                    f"no process listens at {host}:{port} within {timeout_s:.0f} s: {error}"
                ) from error
            time.sleep(min(_PAUSE_S, left_s))


def address_of(peer: str) -> tuple[str, int]:
    """Split HOST, HOST:PORT or [ADDRESS]:PORT; raises ValueError."""
    host, port = peer, str(PORT)
    if peer.startswith("["):
        host, _, rest = peer[1:].partition("]")
        port = rest.removeprefix(":") or port
    elif peer.count(":") == 1:
        host, _, port = peer.partition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{peer!r}: expected HOST, HOST:PORT or [ADDRESS]:PORT")
    if not 1 <= int(port) <= 65535:
        raise ValueError(f"port {port} is not in 1..65535")
    return host, int(port)
