"""Records of a job in a store: the root, which rank 0 sets for all, and each rank's address."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import cast

from rdmatensor.config import Settings
from rdmatensor.errors import MismatchError, PeerError, ProtocolError, TransferTimeoutError
from rdmatensor.store import FileStore, Store

INCARNATION_BYTES = 8
SECRET_BYTES = 32
LEFT = "left: "  # not hexadecimal digits, as addresses are
_REASON_CHARS_MAX = 500
_known: set[object] = set()  # incarnations that this process has joined, or knows to have failed


def left(error: BaseException) -> str:
    """Return the record of a rank that gave up, in place of its address."""
    return LEFT + f"{type(error).__name__}: {error}"[:_REASON_CHARS_MAX]


def values(keys: list[str], store: Store) -> list[bytes]:
    return list(store.multi_get(keys))


def found(keys: list[str], store: Store) -> list[bytes]:
    """Return the values of keys, or nothing while one of them is missing."""
    return values(keys, store) if store.check(keys) else []


def _stored_wrongly(rank: int, what: str, value: bytes) -> ProtocolError:
    error = ProtocolError(
        "RDT_EPROTO",
        "join",
        f"rank {rank} put {value[:40]!r} into the store, which is not {what}: does something else "
        "use the same store and job?",
    )
    error.rank = rank
    return error


def read_address(rank: int, value: bytes) -> bytes:
    """Return the address that a rank put into the store; PeerError if the rank left."""
    text = value.decode(errors="replace")
    if text.startswith(LEFT):
        error = PeerError("RDT_EPEER", "join", f"rank {rank} left: {text.removeprefix(LEFT)}")
        error.rank = rank
        raise error
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise _stored_wrongly(rank, "an address", value) from None


def has_root(store: Store, keys: list[str]) -> bool:
    """Return whether the root of a run is there that has not ended, or ended without this rank."""
    return store.check(keys) and all(
        _was_missed(store, key) or not is_abandoned(store, key) for key in keys
    )


def _was_missed(store: Store, key: str) -> bool:
    """Return whether rank 0 failed in a run that this process never joined, but could have.

    It was there at that time. A later one belongs to the next run, and waits for its root.
    """
    root = _root_now(store, key)
    if root is None or "failure" not in root or root["incarnation"] in _known:
        return False
    at_s = root.get("failed_at_s")
    is_here = root.get("failed_on") == _boot_id() and isinstance(at_s, float)
    return is_here and _start_s() <= cast("float", at_s)


def _root_now(store: Store, key: str) -> dict[str, object] | None:
    """Return the root; None if it was deleted meanwhile, or is reported later."""
    try:
        return read_root(store.get(key, 0.0) if isinstance(store, FileStore) else store.get(key))
    except (TransferTimeoutError, ProtocolError):
        return None


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _start_s() -> float:
    """Return when this process was started, by CLOCK_BOOTTIME."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def check_root(root: dict[str, object]) -> None:
    """Raise PeerError if rank 0 has failed; from now on this process knows the run."""
    _known.add(root["incarnation"])
    if "failure" in root:
        error = PeerError(
            "RDT_EPEER",
            "join",
            f"rank 0 left before this rank joined: {root['failure']}; to join its next run, join "
            "again",
        )
        error.rank = 0
        raise error


def is_replaced(store: Store, key: str, root: dict[str, object]) -> bool:
    """Return whether the store has the root of another run."""
    if not store.check([key]):
        return False
    now = _root_now(store, key)
    return now is not None and now["incarnation"] != root["incarnation"]


def is_abandoned(store: Store, key: str) -> bool:
    """Return whether the process that set the root has failed, or was killed on this host."""
    root = _root_now(store, key)
    if root is None:
        return False
    if "failure" in root:
        return True
    if not isinstance(store, FileStore):  # other stores end with the process that hosts them
        return False
    return store._is_abandoned(lease_of(key, root), root.get("host"))


def lease_of(key: str, root: dict[str, object]) -> str:
    """Return the name of the lease that rank 0 of a run holds."""
    return f"{key}/{root['incarnation']}"


def publish_root(store: Store, key: str, root: dict[str, object]) -> None:
    """Set the root of a new run; deletes what a run that was killed has left."""
    if isinstance(store, FileStore):
        if store.check([key]) and is_abandoned(store, key):
            old = read_root(store.get(key, 0.0))
            store._delete_below(lease_of(key, old))
            store._delete_below(f"{key.removesuffix('/root')}/{old['incarnation']}/")
        root = {**root, "host": store._take_lease(lease_of(key, root))}
    store.set(key, json.dumps(root))


def withdraw_root(
    store: Store, key: str, root: dict[str, object], failure: BaseException | None
) -> None:
    """Give up the lease, and delete the root, or put the failure there for those still to join.

    A root that a later run has set stays.
    """
    if store.check([key]) and not is_replaced(store, key, root):
        if failure is None:
            store.delete_key(key)
        else:
            left_root = {
                **root,
                "secret": None,
                "failure": left(failure).removeprefix(LEFT),
                "failed_on": _boot_id(),
                "failed_at_s": time.clock_gettime(time.CLOCK_BOOTTIME),
            }
            store.set(key, json.dumps(left_root))
    if isinstance(store, FileStore):
        store._give_lease(lease_of(key, root))


def read_root(value: bytes) -> dict[str, object]:
    """Return what rank 0 put into the store for all, after checking it."""
    try:
        root = json.loads(value)
    except (ValueError, RecursionError):
        root = None
    if (
        not isinstance(root, dict)
        or not _is_hex(root.get("incarnation"), INCARNATION_BYTES)
        or not (root.get("secret") is None or _is_hex(root.get("secret"), SECRET_BYTES))
    ):
        raise _stored_wrongly(0, "the root of a job", value)
    return root


def _is_hex(text: object, size_bytes: int) -> bool:
    return isinstance(text, str) and re.fullmatch(f"[0-9a-f]{{{2 * size_bytes}}}", text) is not None


def secret_of(root: dict[str, object], settings: Settings) -> tuple[bytes, str]:
    """Return the job's secret and its source, which must be the same on both sides."""
    shared = root.get("secret")
    if settings.secret is not None and shared is None:
        return settings.secret, f"from the {settings.secret_source or 'argument'}"
    if settings.secret is None and isinstance(shared, str):
        return bytes.fromhex(shared), "generated by rank 0 into the store: stops strays only"
    has, lacks = ("rank 0", "this rank") if shared is None else ("this rank", "rank 0")
    raise MismatchError(
        "RDT_EMISMATCH",
        "join",
        f"{has} has RDMATENSOR_SECRET or RDMATENSOR_SECRET_FILE set and {lacks} has not; set it "
        "for all ranks or for none",
    )
