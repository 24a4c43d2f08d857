"""Records of a job in a store: the root, which rank 0 sets for all, and each rank's address."""

from __future__ import annotations

import json
import re

from rdmatensor.config import Settings
from rdmatensor.errors import MismatchError, PeerError, ProtocolError, TransferTimeoutError
from rdmatensor.store import FileStore, Store

INCARNATION_BYTES = 8
SECRET_BYTES = 32
LEFT = "left: "  # not hexadecimal digits, as addresses are
_REASON_CHARS_MAX = 500


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
    """Return whether the root of a run is there that has not ended."""
    return store.check(keys) and not any(is_abandoned(store, key) for key in keys)


def is_replaced(store: Store, key: str, root: dict[str, object]) -> bool:
    """Return whether the store has the root of another run."""
    if not store.check([key]):
        return False
    try:
        value = store.get(key, 0.0) if isinstance(store, FileStore) else store.get(key)
        return read_root(value)["incarnation"] != root["incarnation"]
    except TransferTimeoutError:  # it was deleted meanwhile
        return False
    except ProtocolError:  # something else uses the key
        return True


def is_abandoned(store: Store, key: str) -> bool:
    """Return whether the root was set by a process of this host that has ended: it was killed."""
    if not isinstance(store, FileStore):  # other stores end with the process that hosts them
        return False
    try:
        root = read_root(store.get(key, 0.0))
    except (TransferTimeoutError, ProtocolError):  # it was deleted meanwhile, or is reported later
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


def withdraw_root(store: Store, key: str, root: dict[str, object]) -> None:
    """Delete the root, unless a later run has set its own, and give up its lease."""
    if store.check([key]) and not is_replaced(store, key, root):
        store.delete_key(key)
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
