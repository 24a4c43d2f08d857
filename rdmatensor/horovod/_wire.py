"""Control messages: one connection of each rank to rank 0, on which records travel as JSON.

They are sockets and not messages of the data path, because a socket shows at once that its peer has
died, has no deadline while a job computes, and wakes one thread for all ranks.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
import time
from multiprocessing.connection import Connection, Pipe, answer_challenge, deliver_challenge
from typing import Any

from torch._C._distributed_c10d import Store

from rdmatensor.config import Settings
from rdmatensor.horovod.exceptions import HorovodInternalError

Record = dict[str, Any]

_HANDSHAKE_S = 10.0  # for a process that connects to say who it is
_PLACE = "control"


class Channel:
    """One end of a connection. Any thread sends; one receives."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._lock = threading.Lock()
        self.sent = 0

    def send(self, record: Record) -> None:
        """Send a record; OSError if the peer is gone."""
        data = json.dumps(record, separators=(",", ":")).encode()
        with self._lock:
            self.connection.send_bytes(data)
            self.sent += 1

    def has_record(self, wait_s: float = 0.0) -> bool:
        """Return whether receive() would not wait."""
        return self.connection.poll(wait_s)

    def receive(self) -> Record:
        """Return the next record; EOFError or OSError if the peer is gone."""
        record: Record = json.loads(self.connection.recv_bytes())
        return record

    def close(self) -> None:
        """Close this end."""
        self.connection.close()


def open_channels(
    store: Store, rank: int, size: int, settings: Settings, listens: list[str], limit_s: float
) -> tuple[Channel, list[Channel]]:
    """Return this rank's channel, and on rank 0 those of all ranks in their order.

    listens: addresses of rank 0 that the others can reach.
    """
    if rank != 0:
        return _connect(store, rank, settings, limit_s), []
    own, theirs = Pipe()
    channels = {0: Channel(theirs)}
    if size > 1:
        _serve(store, size, settings, listens, limit_s, channels)
    return Channel(own), [channels[one] for one in range(size)]


def _serve(
    store: Store,
    size: int,
    settings: Settings,
    listens: list[str],
    limit_s: float,
    channels: dict[int, Channel],
) -> None:
    key = settings.secret or secrets.token_bytes(32)
    with _listen(listens, settings) as server:
        place = {
            "hosts": listens,
            "port": server.getsockname()[1],
            "key": None if settings.secret else key.hex(),
        }
        store.set(_PLACE, json.dumps(place))
        deadline_s = time.monotonic() + limit_s
        while len(channels) < size:
            missing = sorted(set(range(size)) - set(channels))
            server.settimeout(max(0.01, deadline_s - time.monotonic()))
            try:
                accepted, _ = server.accept()
            except TimeoutError:
                raise HorovodInternalError(
                    f"hvd.init(): ranks {missing} did not connect to rank 0 within {limit_s:.0f} s"
                ) from None
            with contextlib.suppress(OSError, EOFError, ValueError, _Refused):
                connection = _as_connection(accepted)
                deliver_challenge(connection, key)
                answer_challenge(connection, key)
                channels[_rank_of(connection, missing)] = Channel(connection)


class _Refused(Exception):  # noqa: N818
    """A stranger connected."""


def _rank_of(connection: Connection, missing: list[int]) -> int:
    if not connection.poll(_HANDSHAKE_S):
        raise _Refused
    rank = json.loads(connection.recv_bytes())
    if rank not in missing:
        raise _Refused
    return int(rank)


def _listen(listens: list[str], settings: Settings) -> socket.socket:
    host = listens[0] if len(listens) == 1 else ""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    first, last = settings.ports or (0, 0)
    for port in range(first, last + 1):
        with contextlib.suppress(OSError):
            return socket.create_server((host, port), family=family, backlog=1024)
    raise HorovodInternalError(
        f"hvd.init(): no free port from {first} to {last} on {host or 'this host'}: widen "
        "RDMATENSOR_PORTS; rank 0 needs one more than other processes"
    )


def _connect(store: Store, rank: int, settings: Settings, limit_s: float) -> Channel:
    place = json.loads(store.get(_PLACE))
    key = settings.secret or (bytes.fromhex(place["key"]) if place["key"] else None)
    if key is None:
        raise HorovodInternalError(
            "hvd.init(): rank 0 has a secret (RDMATENSOR_SECRET) and this process has none"
        )
    failures = []
    for host in place["hosts"]:
        try:
            connected = socket.create_connection((host, place["port"]), timeout=limit_s)
        except OSError as error:
            failures.append(f"{host}: {error}")
            continue
        connection = _as_connection(connected)
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
        channel = Channel(connection)
        connection.send_bytes(json.dumps(rank).encode())
        return channel
    raise HorovodInternalError(
        f"hvd.init(): rank 0 cannot be reached at port {place['port']} ({'; '.join(failures)}): "
        "open the port in the firewall, or set RDMATENSOR_ADDR on rank 0's host"
    )


def _as_connection(connected: socket.socket) -> Connection:
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return Connection(connected.detach())
