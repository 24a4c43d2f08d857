"""What the doctors of one run exchange through a store, which may be a running job's.

All keys begin with random letters of rank 0's, except the one that holds these; only the run's own
keys are written or deleted.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from types import TracebackType

from rdmatensor.errors import ProtocolError
from rdmatensor.store import Store, wait_for

ROOT = "rdmatensor-doctor/run"
_SECRET_BYTES = 32
_NAME_CHARS = 16


def refused(what: str) -> ProtocolError:
    """Make the exception for a message that no doctor of this version sends."""
    return ProtocolError("RDT_EPROTO", "doctor", f"{what}: are the versions the same?")


class Words:
    """The messages of one run, as one of its ranks sees them. A context manager.

    job: a name that no job and no other run has. secret: shared by all who can read the store.
    Raises: TransferTimeoutError (names the missing ranks), PeerError (the store is gone).
    """

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float) -> None:
        self._store, self._rank, self._timeout_s = store, rank, timeout_s
        self._everybody = range(size)
        self._own: list[str] = []  # keys that this rank deletes
        self._last: dict[str, str] = {}  # those of the last exchange
        if rank == 0:
            root = secrets.token_hex(_SECRET_BYTES)
            self._set(ROOT, root)
        else:
            wait_for(store, {ROOT: "rank 0"}, timeout_s, "doctor")
            root = store.get(ROOT).decode(errors="replace")
            if re.fullmatch(f"[0-9a-f]{{{2 * _SECRET_BYTES}}}", root) is None:
                raise refused(f"rank 0 began no run of the doctor ({root[:40]!r})")
        self.job = f"doctor-{root[:_NAME_CHARS]}"
        self.secret = bytes.fromhex(root)

    def _set(self, key: str, value: str) -> None:
        self._store.set(key, value)
        self._own.append(key)

    def _keys(self, what: str, ranks: list[int] | range) -> dict[str, str]:
        return {f"{self.job}/{what}/{rank}": f"rank {rank}" for rank in ranks}

    def exchange(self, what: str, mine: str, ranks: list[int] | None = None) -> dict[int, bytes]:
        """Return the messages of ranks (None: all) by their rank; waits for each of them."""
        members = self._everybody if ranks is None else ranks
        self._last = self._keys(what, members)
        self._set(f"{self.job}/{what}/{self._rank}", mine)
        wait_for(self._store, self._last, self._timeout_s, "doctor")
        return dict(zip(members, self._store.multi_get(list(self._last)), strict=True))

    def end(self) -> None:
        """Announce that this rank has read all; rank 0, which may host the store, waits for all.

        Others may still read the last exchange when this rank leaves: rank 0 deletes its keys.
        """
        mine, ends = f"{self.job}/end/{self._rank}", self._keys("end", self._everybody)
        self._store.set(mine, "")
        if self._rank == 0:
            wait_for(self._store, ends, self._timeout_s, "doctor")
            self._own += [*self._last, *ends]
        else:
            self._own = [key for key in self._own if key not in self._last]

    def __enter__(self) -> Words:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(RuntimeError, OSError):  # the store may be gone first
            for key in dict.fromkeys(self._own):
                self._store.delete_key(key)
