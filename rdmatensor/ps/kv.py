"""Named tensors as a worker sees them: get, put, add and compare-and-swap."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar, cast

import torch

from rdmatensor._native.arguments import U64_MAX, invalid, timeout_s_of, whole_in
from rdmatensor.errors import CanceledError, PeerError, ProtocolError, TransferTimeoutError
from rdmatensor.ps.calls import Kind, flag
from rdmatensor.ps.replicas import Replicas
from rdmatensor.ps.values import (
    BYTES_MAX,
    DTYPES,
    HEAD_BYTES,
    NAME_BYTES,
    NDIM_MAX,
    bytes_of,
    is_addable,
    server_of,
    value_of,
)

Ask = Callable[..., dict[str, Any]]  # Worker._call: of a connection

T = TypeVar("T")

_POLL_FIRST_S, _POLL_MOST_S = 0.0005, 0.02


class KV:
    """Named tensors on the servers; `Worker.kv`.

    A name is on one server, by its hash. Each operation is atomic, is carried out when it is
    called, whatever clock() says, and is carried out once or, if its worker dies within it, not at
    all. Each change gives the name a new version, which no earlier value of it had.

    Threads:
        Any thread; operations of one worker run one after the other.
    """

    _replicas: Replicas  # the worker sets it

    def __init__(self, ask: Ask, servers: int, slot_bytes: int, timeout_s: float) -> None:
        self._ask, self._servers, self._timeout_s = ask, servers, timeout_s
        self._part = slot_bytes - HEAD_BYTES
        self._sequence = 0
        self._lock = threading.Lock()  # of an operation of several requests

    def put(self, name: str, value: torch.Tensor) -> int:
        """Store a tensor under a name, in place of the one that is there.

        Args:
            name: a printable text of 1 to 200 B.
            value: A dense tensor on the CPU of any dtype but quantised ones; it is copied. If the
                name exists: of its shape and dtype.

        Returns:
            The version, from 1 on.

        Raises:
            InvalidArgumentError: The name or the value.
            MismatchError: The name has another shape or dtype; delete() it first.
            OutOfMemoryError: The server has no room; nothing was changed.
            PeerError: A server died.

        Example:
            >>> w.kv.put("mean", torch.zeros(3))
            1
        """
        return cast("int", self._change("put", name, value))

    def add(self, name: str, value: torch.Tensor) -> int:
        """Add a tensor to the one under a name, in its dtype; integers wrap around.

        Args:
            name: One that exists.
            value: Of its shape and dtype; not bool and not a float of 8 bits.

        Returns:
            The new version.

        Raises:
            InvalidArgumentError: As of put(), or the name does not exist.
            MismatchError: As of put().
            OutOfMemoryError: As of put().
            PeerError: As of put().

        Example:
            >>> w.kv.add("mean", torch.ones(3))
            2
        """
        if isinstance(value, torch.Tensor) and not is_addable(value.dtype):
            raise invalid("add", f"value is {value.dtype}, which has no sum")
        return cast("int", self._change("add", name, value))

    def cas(self, name: str, value: torch.Tensor, version: int) -> int | None:
        """Store a tensor if the name still has a version: compare and swap.

        Versions are compared, not bytes: a value that was changed and changed back is seen.

        Args:
            name: As of put().
            value: As of put().
            version: As read() gave it; 0: the name does not exist.

        Returns:
            The new version, or None: the name has another one, and nothing was changed.

        Raises:
            InvalidArgumentError: As of put().
            MismatchError: As of put().
            OutOfMemoryError: As of put().
            PeerError: As of put().

        Example:
            >>> value, version = w.kv.read("best")
            >>> w.kv.cas("best", value + 1, version) is not None
            True
        """
        wanted = whole_in(version, U64_MAX, "cas", "version")
        return self._change("cas", name, value, wanted)

    def get(self, name: str, *, wait: float | None = None) -> torch.Tensor:
        """Return a copy of the tensor under a name.

        Args:
            name: Of the tensor.
            wait: Seconds to wait for a name that does not exist; None: do not wait.

        Returns:
            The tensor, of one version.

        Raises:
            InvalidArgumentError: The name does not exist, or is not a printable text of 1 to
                200 B.
            TransferTimeoutError: It does not exist after `wait` seconds.
            PeerError: A server died.

        Example:
            >>> w.kv.get("mean", wait=30)
            tensor([1., 1., 1.])
        """
        return self.read(name, wait=wait)[0]

    def read(self, name: str, *, wait: float | None = None) -> tuple[torch.Tensor, int]:
        """Return a copy of the tensor under a name, and its version for cas().

        Args:
            name: As of get().
            wait: As of get().

        Returns:
            The tensor and its version.

        Raises:
            InvalidArgumentError: As of get().
            TransferTimeoutError: As of get().
            PeerError: As of get().

        Example:
            >>> w.kv.read("mean")
            (tensor([1., 1., 1.]), 2)
        """
        limit_s = 0.0 if wait is None else timeout_s_of(wait, self._timeout_s, "get")
        deadline_s, pause_s = time.monotonic() + limit_s, _POLL_FIRST_S
        while (found := self._read(name)) is None:
            if wait is None:
                raise invalid("get", f"no value has the name {name!r}: put() it, or give wait=")
            if time.monotonic() >= deadline_s:
                detail = f"no worker has put {name!r} within {limit_s:g} s"
                raise TransferTimeoutError("RDT_ETIMEDOUT", "get", detail)
            time.sleep(min(pause_s, max(0.0, deadline_s - time.monotonic())))
            pause_s = min(2 * pause_s, _POLL_MOST_S)
        return found

    def delete(self, name: str) -> bool:
        """Remove a name.

        Args:
            name: Of the tensor.

        Returns:
            Whether it existed.

        Raises:
            InvalidArgumentError: It is not a printable text of 1 to 200 B.
            PeerError: A server died.

        Example:
            >>> w.kv.delete("mean")
            True
        """
        request: dict[str, object] = {"op": "delete", "name": name, "sequence": self._next()}
        return bool(self._carry_out(name, [request], existed=flag)["existed"])

    def names(self) -> list[str]:
        """Return the names that exist.

        Returns:
            The names, sorted.

        Raises:
            PeerError: A server died.

        Example:
            >>> w.kv.names()
            ['best', 'mean']
        """
        found: list[str] = []
        for server in range(self._servers):
            after: object = ""
            while after is not None:
                answer = self._first(self._replicas.of(server), partial(self._names_after, after))
                found.extend(answer["names"])
                if answer["after"] is not None and not answer["names"]:
                    raise ProtocolError("RDT_EPROTO", "names", f"server {server} sent no names")
                after = answer["after"]
        return sorted(found)

    def _names_after(self, after: object, replica: int) -> dict[str, Any] | None:
        request = {"op": "names", "after": after}
        return self._ask_replica(replica, request, names=_names, after=_after)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _server(self, name: object) -> int:
        if not isinstance(name, str) or not name.isprintable() or not 0 < _len(name) <= NAME_BYTES:
            raise invalid("kv", f"name={name!r} is not a printable text of 1 to {NAME_BYTES} B")
        return server_of(name, self._servers)

    def _replicas_of(self, name: object) -> list[int]:
        """Return the connections to the server that a name is on, and to its backup."""
        return self._replicas.of(self._server(name))

    def _first(self, replicas: list[int], ask: Callable[[int], T | None]) -> T:
        """Return what the first replica says that is not lost."""
        for replica in replicas:
            if (found := ask(replica)) is not None:
                return found
        raise PeerError("RDT_EPEER", "kv", f"server {replicas[0]} and its backup are lost")

    def _ask_replica(
        self, replica: int, request: dict[str, object], **kinds: Kind
    ) -> dict[str, Any] | None:
        """Ask one replica; None if it is lost, and the worker goes on without it."""
        try:
            return self._ask(replica, {"call": "kv", **request}, **kinds)
        except CanceledError:
            if self._replicas.is_lost(replica):
                return None
            raise

    def _carry_out(
        self, name: object, requests: list[dict[str, object]], **kinds: Kind
    ) -> dict[str, Any]:
        """Have a change carried out; the last request has the answer.

        With replicas the backup then gets what the primary has. If the primary is lost before, the
        backup carries the change out, or answers as the primary did if it has got it.
        """
        primary, *backups = self._replicas_of(name)

        def ask(replica: int) -> dict[str, Any] | None:
            answer = self._send(replica, requests, **kinds)
            for backup in backups if answer is not None and replica == primary else ():
                if not self._copy(name, primary, backup):
                    return None
            return answer

        with self._lock:
            return self._first([primary, *backups], ask)

    def _send(
        self, replica: int, requests: Iterable[dict[str, object]], **kinds: Kind
    ) -> dict[str, Any] | None:
        """Send requests to a replica; return the last answer, or None if it is lost."""
        *parts, last = requests
        for request in parts:
            if self._ask_replica(replica, request) is None:
                return None
        return self._ask_replica(replica, last, **kinds)

    def _copy(self, name: object, primary: int, backup: int) -> bool:
        """Bring a name to the backup; False: the primary was lost before it was read."""
        head = self._whole(primary, {"op": "copy", "name": name}, total=_whole_number)
        if head is None:
            return False
        common = {"name": name, "sequence": head["version"], "bytes": head["total"]}
        take = {key: head[key] for key in ("version", "dtype", "shape", "size")}
        self._send(backup, self._parts(head["data"], "take part", {"op": "take", **take}, common))
        return True  # also if the backup is lost

    def _whole(
        self, replica: int, request: dict[str, object], **kinds: Kind
    ) -> dict[str, Any] | None:
        """Ask for a value, and for the rest of its bytes; None if the replica is lost."""
        answer = self._send(replica, [request], **kinds)
        if answer is None:
            return None
        data = bytearray(answer.get("data", b""))
        while len(data) < answer["total"]:
            more = {"op": "more", "version": answer["version"], "offset": len(data)}
            some = self._send(replica, [more], data=_some)
            if some is None:
                return None
            data += some["data"]
        return {**answer, "data": data}

    def _parts(
        self,
        data: bytes | bytearray | memoryview,
        op: str,
        last: dict[str, object],
        common: dict[str, object],
    ) -> list[dict[str, object]]:
        """Return requests that send bytes; the last one carries out what they are for."""
        end = max(0, (len(data) - 1) // self._part) * self._part
        parts: list[dict[str, object]] = [
            {"op": op, "offset": offset, "data": data[offset : offset + self._part], **common}
            for offset in range(0, end, self._part)
        ]
        return [*parts, {**last, "offset": end, "data": data[end:], **common}]

    def _change(
        self, op: str, name: str, value: torch.Tensor, version: int | None = None
    ) -> int | None:
        """Send the value in parts; the last one carries the operation out."""
        if not isinstance(value, torch.Tensor) or value.dtype not in DTYPES.inverse:
            kind = getattr(value, "dtype", type(value).__name__)
            raise invalid(op, f"value is {kind}, not a tensor of a plain dtype")
        if value.device.type != "cpu" or value.layout != torch.strided:
            raise invalid(op, f"value is {value.layout} on {value.device}, not dense on the CPU")
        if value.dim() > NDIM_MAX:
            raise invalid(op, f"value has {value.dim()} dims: at most {NDIM_MAX}")
        data = bytes_of(value)
        common: dict[str, object] = {"name": name, "sequence": self._next(), "bytes": len(data)}
        last: dict[str, object] = {
            "op": op,
            "dtype": DTYPES.inverse[value.dtype],
            "shape": list(value.shape),
            "version": version,
        }
        requests = self._parts(data, "part", last, common)
        found: int | None = self._carry_out(name, requests, version=_version)["version"]
        return found

    def _read(self, name: str) -> tuple[torch.Tensor, int] | None:
        request: dict[str, object] = {"op": "get", "name": name}
        kinds: dict[str, Kind] = {"version": _version, "dtype": _dtype, "shape": _shape}
        with self._lock:
            answer = self._first(
                self._replicas_of(name),
                lambda one: self._whole(one, request, total=_whole_number, **kinds),
            )
        version, dtype, shape = answer["version"], answer["dtype"], answer["shape"]
        if version is None:
            return None
        total, data = math.prod(shape) * DTYPES[dtype].itemsize, answer["data"]
        if len(data) != total:
            detail = f"the server of {name!r} sent {len(data)} B of {total} B"
            raise ProtocolError("RDT_EPROTO", "get", detail)
        return value_of(dtype, shape, data), version


def _version(value: object) -> int | None:
    if value is not None and (type(value) is not int or not 0 < value <= U64_MAX):
        raise ValueError("no version")
    return value


def _whole_number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= 2 * BYTES_MAX:
        raise ValueError("no number of bytes")
    return value


def _dtype(value: object) -> str:
    if not isinstance(value, str) or value not in DTYPES:
        raise ValueError("no dtype")
    return value


def _shape(value: object) -> list[int]:
    if not isinstance(value, list) or any(type(one) is not int or one < 0 for one in value):
        raise ValueError("no shape")
    return value


def _some(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("no bytes")
    return value


def _names(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise TypeError("no list of texts")
    return value


def _after(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError("no text")
    return value


def _len(name: str) -> int:
    return len(name.encode(errors="replace"))
