"""Key-value stores through which processes find each other."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote

from rdmatensor._native import lease
from rdmatensor._native.arguments import seconds
from rdmatensor.errors import InvalidArgumentError, PeerError, TransferTimeoutError

# Polling: a store has no other wait that Ctrl-C can end.
_POLL_FIRST_S = 0.0005
_POLL_MOST_S = 0.05
_PATIENCE_S = 10.0  # then one line names the missing
_GRACE_S = 0.5  # after a deadline, to find the missing
_SLICE_S = 0.1  # of a wait for a store's answer

T = TypeVar("T")

log = logging.getLogger("rdmatensor")


class Store(Protocol):
    """What a store must offer. Every torch.distributed.Store and FileStore offer it.

    Values are set as text and returned as bytes, as in torch.

    Example:
        >>> store: Store = FileStore(folder)  # or torch.distributed.TCPStore(...)
        >>> store.set("key", "value")
        >>> store.get("key")
        b'value'
    """

    def set(self, key: str, value: str, /) -> None:
        """Set a key, whole or not at all.

        Args:
            key: Any text.
            value: The value.

        Example:
            >>> FileStore(folder).set("key", "value")
        """

    def get(self, key: str, /) -> bytes:
        """Return the value of a key that exists.

        Args:
            key: The key.

        Returns:
            The value, as bytes.

        Example:
            >>> store = FileStore(folder)
            >>> store.set("key", "value")
            >>> store.get("key")
            b'value'
        """

    def check(self, keys: list[str], /) -> bool:
        """Return whether all the keys exist.

        Args:
            keys: The keys.

        Returns:
            True if each of them is set.

        Example:
            >>> FileStore(folder).check(["an unknown key"])
            False
        """

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Return the values of keys that exist.

        Args:
            keys: The keys.

        Returns:
            The values, in the order of the keys.

        Example:
            >>> store = FileStore(folder)
            >>> store.set("key", "value")
            >>> store.multi_get(["key"])
            [b'value']
        """

    def delete_key(self, key: str, /) -> bool:
        """Delete a key.

        Args:
            key: The key.

        Returns:
            Whether it existed.

        Example:
            >>> FileStore(folder).delete_key("an unknown key")
            False
        """


class FileStore:
    """A store in a folder that all processes of a job can access, for users without torch.

    The folder is created if it does not exist, for its owner only, since it may hold the job's
    secret. Runs of a job may use it one after the other; what a run that was killed has left is
    recognised on the same host, and replaced.

    Threads:
        Any thread, and any process.

    Args:
        path: The folder.

    Raises:
        InvalidArgumentError: The folder belongs to another user, or others may open it.

    Example:
        >>> store = FileStore(folder)
        >>> store.set("greeting", "hello")
        >>> store.get("greeting")
        b'hello'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._folder = Path(path)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = self._folder.stat()
        if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidArgumentError(
                "RDT_EINVAL",
                "FileStore",
                f"{self._folder} must belong to you and be closed to others, since it may hold a "
                f"secret: chmod 700 {self._folder}",
            )

    def _file(self, key: str) -> Path:
        return self._folder / (quote(key, safe="") + ".value")

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key by renaming a complete file, so that readers see all of it or nothing.

        Args:
            key: Any text.
            value: Text, stored as UTF-8, or bytes.

        Example:
            >>> FileStore(folder).set("key", "value")
        """
        data = value.encode() if isinstance(value, str) else value
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(name).replace(self._file(key))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def get(self, key: str, timeout_s: float = 300.0) -> bytes:
        """Return the value of a key, waiting for it.

        Args:
            key: The key.
            timeout_s: Seconds to wait.

        Returns:
            The value, as bytes.

        Raises:
            TransferTimeoutError: The key was not set in time.

        Example:
            >>> store = FileStore(folder)
            >>> store.set("key", "value")
            >>> store.get("key", timeout_s=5)
            b'value'
        """
        limit_s = seconds(timeout_s, "FileStore.get")
        deadline_s = time.monotonic() + limit_s
        while True:  # the key may be deleted between the wait and the reading
            left_s = max(0.0, deadline_s - time.monotonic())
            wait_for(self, {key: f"key {key!r}"}, left_s, "FileStore.get")
            with contextlib.suppress(FileNotFoundError):
                return self._file(key).read_bytes()

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all the keys exist.

        Args:
            keys: The keys.

        Returns:
            True if each of them is set.

        Example:
            >>> FileStore(folder).check(["an unknown key"])
            False
        """
        return all(self._file(key).exists() for key in keys)

    def multi_get(self, keys: Sequence[str], timeout_s: float = 300.0) -> list[bytes]:
        """Return the values of keys, waiting for each.

        Args:
            keys: The keys.
            timeout_s: Seconds to wait for all of them together.

        Returns:
            The values, in the order of the keys.

        Raises:
            TransferTimeoutError: A key was not set in time.

        Example:
            >>> store = FileStore(folder)
            >>> store.set("key", "value")
            >>> store.multi_get(["key", "key"])
            [b'value', b'value']
        """
        deadline_s = time.monotonic() + seconds(timeout_s, "FileStore.multi_get")
        return [self.get(key, max(0.0, deadline_s - time.monotonic())) for key in keys]

    def delete_key(self, key: str) -> bool:
        """Delete a key.

        Args:
            key: The key.

        Returns:
            Whether it existed.

        Example:
            >>> FileStore(folder).delete_key("an unknown key")
            False
        """
        try:
            self._file(key).unlink()
        except FileNotFoundError:
            return False
        return True

    # ---- runs of a job, of which one may have been killed ----------------------------------------

    def _take_lease(self, name: str) -> str | None:
        return lease.take(self._lease(name))

    def _give_lease(self, name: str) -> None:
        lease.give(self._lease(name))

    def _is_abandoned(self, name: str, host: object) -> bool:
        return lease.is_abandoned(self._lease(name), host)

    def _lease(self, name: str) -> Path:
        return self._folder / (quote(name, safe="") + ".lease")

    def _delete_below(self, prefix: str) -> None:
        """Delete all keys and leases that begin with prefix."""
        start = quote(prefix, safe="")
        for path in self._folder.iterdir():
            if path.name.startswith(start):
                path.unlink(missing_ok=True)


class _Asked(threading.Thread, Generic[T]):
    """A request to a store, which runs on if its caller has given up."""

    def __init__(self, request: Callable[[], T], turn: threading.Lock) -> None:
        super().__init__(name="rdmatensor store", daemon=True)
        self._request, self._turn = request, turn
        self._is_over = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._answer = self._request()
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            self._error = error
        finally:
            self._turn.release()
            self._is_over.set()

    def is_over(self, timeout_s: float) -> bool:
        return self._is_over.wait(timeout_s)

    def answer(self) -> T:
        if self._error is not None:
            raise self._error
        return self._answer


class PatientStore:
    """A store that may never answer: torch's waits without a limit for a stopped host.

    Each request has a thread of its own, which ends with it. A request whose caller gave up goes
    on, and the next one waits for its end: at most one thread is stuck.

    Threads:
        Any.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turn = threading.Lock()

    def ask(
        self,
        request: Callable[[Store], T],
        limit_s: float,
        call: str,
        look: Callable[[], object] = lambda: None,
        *,
        since_s: float | None = None,
    ) -> T:
        """Return what the request returns or raises. look is called periodically meanwhile.

        since_s: when the limit began, None: now. A little time is left even after the limit.
        Raises TransferTimeoutError. Ctrl-C works at any time.
        """
        if isinstance(self._store, FileStore):  # does not communicate
            return request(self._store)
        now_s = time.monotonic()
        deadline_s = now_s + limit_s
        if since_s is not None:
            deadline_s = max(since_s + limit_s, now_s + _GRACE_S)

        def until(is_met: Callable[[float], bool]) -> None:
            while not is_met(max(0.0, min(_SLICE_S, deadline_s - time.monotonic()))):
                look()
                if time.monotonic() >= deadline_s:
                    raise TransferTimeoutError(
                        "RDT_ETIMEDOUT",
                        call,
                        f"the store did not answer within {limit_s:.3f} s: was the process that "
                        "hosts it stopped or cut off?",
                    )

        asked = _Asked(lambda: request(self._store), self._turn)
        until(lambda wait_s: self._turn.acquire(timeout=wait_s))
        try:
            asked.start()
        except BaseException:
            self._turn.release()
            raise
        until(asked.is_over)
        return asked.answer()


def wait_for(
    store: Store | PatientStore,
    keys: dict[str, str],
    timeout_s: float,
    call: str,
    look: Callable[[], object] = lambda: None,
    has: Callable[[Store, list[str]], bool] = lambda store, names: store.check(names),
) -> None:
    """Wait until all keys are in the store; keys maps each to the process that sets it.

    look is called in each round: its exception ends the wait. has tells whether keys are there.
    Raises TransferTimeoutError with the names of those that set nothing. After 10 s one log line
    names them too. Ctrl-C works at any time.
    """
    start_s = time.monotonic()
    pause_s, has_said = _POLL_FIRST_S, False
    asked = store if isinstance(store, PatientStore) else PatientStore(store)

    def is_there(names: list[str]) -> bool:
        try:
            return asked.ask(
                lambda inner: has(inner, names), timeout_s, call, look, since_s=start_s
            )
        except RuntimeError as error:  # torch's stores: the process that hosts it is gone
            raise PeerError("RDT_EPEER", call, f"the store cannot be reached: {error}") from error

    while not is_there(list(keys)):
        look()
        waited_s = time.monotonic() - start_s
        if waited_s >= timeout_s or (waited_s >= _PATIENCE_S and not has_said):
            missing = [who for key, who in keys.items() if not is_there([key])]
            if missing and waited_s >= timeout_s:
                raise TransferTimeoutError(
                    "RDT_ETIMEDOUT",
                    call,
                    f"nothing from {_listed(missing)} within {timeout_s:.3f} s: did they start, "
                    "with the same store and job?",
                )
            if missing:
                log.warning("%s: still waiting for %s", call, _listed(missing))
            has_said = True
        time.sleep(min(pause_s, max(0.0, start_s + timeout_s - time.monotonic())))
        pause_s = min(2 * pause_s, _POLL_MOST_S)


def _listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
