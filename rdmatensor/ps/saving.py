"""A worker's side of a checkpoint."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rdmatensor._native.arguments import seconds
from rdmatensor._native.ffi import error_of, lib, new_error
from rdmatensor.errors import (
    BusyError,
    CanceledError,
    InvalidArgumentError,
    RdmaTensorError,
    TransferTimeoutError,
)
from rdmatensor.ps.calls import Kind, clocks, text


class Ask(Protocol):
    """Worker._call()."""

    def __call__(self, server: int, request: dict[str, object], **kinds: Kind) -> dict[str, Any]:
        """Ask a server."""


_LOOK_S = 0.01


class Saving:
    """A checkpoint that the servers save; made by Worker.save().

    Attributes:
        path: Its folder.
    """

    def __init__(self, ask: Ask, path: Path, uid: str) -> None:
        self._ask, self.path, self._uid = ask, path, uid

    def _status(self) -> dict[str, Any]:
        answer = self._ask(0, {"call": "save status", "uid": self._uid}, state=text)
        if answer["state"] == "failed":
            error = error_of(getattr(lib, str(answer["code"]), 0), "save", new_error())
            error.detail = str(answer["text"])
            error.args = (error.code, error.call, error.detail)
            raise error
        return answer

    def is_done(self) -> bool:
        """Return whether it is saved.

        Returns:
            True once it counts: a restore would take it.

        Raises:
            DeviceError: The operating system could not write it, such as for a full disk; the
                message names the path. The checkpoint of before is intact.
            OutOfMemoryError: There was no memory for rows that changed meanwhile.
            CanceledError: A worker died within its step; save again.
            PeerError: A server died.

        Example:
            >>> w.save("saved").is_done()
            False
        """
        return bool(self._status()["state"] == "done")

    def progress(self) -> tuple[int, int]:
        """Return the bytes written so far, and about how many there are.

        Returns:
            Of all servers; an increment writes less than that.

        Raises:
            RdmaTensorError: As is_done().

        Example:
            >>> w.save("saved").progress()
            (0, 6231040)
        """
        answer = self._status()
        return int(str(answer["written"])), int(str(answer["total"]))

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it is saved. In "sync" the other workers then wait for this one.

        Args:
            timeout_s: None waits as long as servers write.

        Raises:
            TransferTimeoutError: It is not saved yet.
            RdmaTensorError: As is_done().

        Example:
            >>> w.save("saved").wait()
        """
        limit_s = None if timeout_s is None else seconds(timeout_s, "wait")
        since_s = time.monotonic()
        while not self.is_done():
            if limit_s is not None and time.monotonic() - since_s >= limit_s:
                raise TransferTimeoutError(
                    "RDT_ETIMEDOUT", "wait", f"{self.path} is not saved within {limit_s:.3f} s"
                )
            time.sleep(_LOOK_S)

    def __repr__(self) -> str:
        return f"<Saving {str(self.path)!r}>"


def save(ask: Ask, servers: int, path: str | os.PathLike[str], *, is_increment: bool) -> Saving:
    """Have all servers cut a checkpoint at the same steps; see Worker.save()."""
    folder, uid = Path(path).absolute(), secrets.token_hex(8)
    try:
        for server in range(servers):
            ask(server, {
                "call": "save", "uid": uid, "path": str(folder), "incremental": is_increment,
            })  # fmt: skip
        held = [
            ask(server, {"call": "save hold", "uid": uid}, clocks=clocks)["clocks"]
            for server in range(servers)
        ]
        most = [_most(of_one) for of_one in zip(*held, strict=True)]
        for server in range(servers):
            ask(server, {"call": "save cut", "uid": uid, "clocks": most})
    except BaseException:
        for server in range(servers):
            with contextlib.suppress(RdmaTensorError):  # a server that is gone holds nothing
                ask(server, {"call": "save release", "uid": uid})
        raise
    return Saving(ask, folder, uid)


def asker(ask: Ask, losses: Callable[[], int]) -> Ask:
    """Return ask for one checkpoint, of which the backup of a server that dies knows nothing."""
    before = losses()

    def call(server: int, request: dict[str, object], **kinds: Kind) -> dict[str, Any]:
        try:
            return ask(server, request, **kinds)
        except (BusyError, InvalidArgumentError) as error:
            if losses() == before:
                raise
            detail = f"a server has died meanwhile: save again ({error.detail})"
            raise CanceledError("RDT_ECANCELED", "save", detail) from error

    return call


def _most(clocks: tuple[int | None, ...]) -> int | None:
    """Return the steps of a worker that the furthest server has applied; None: it is gone."""
    return None if None in clocks else max(one for one in clocks if one is not None)
