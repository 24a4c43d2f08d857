"""Notes that processes of a cluster leave for each other in its store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from rdmatensor.store import Store
from rdmatensor.world import World

LOST = "lost"  # the note of servers that died, and whose other replicas go on
_LIMIT_S = 0.2


class Board:
    """Notes by name; the last one counts."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _ask(self, request: Callable[[Store], object], limit_s: float | None) -> object:
        world = self._world
        wait_s = world._timeout_s if limit_s is None else limit_s
        return world._store.ask(request, wait_s, "join", world._check_open)

    def _key(self, name: str) -> str:
        return f"{self._world._prefix}/ps/{name}"

    def put(self, name: str, note: dict[str, object]) -> None:
        """Leave a note."""
        self._ask(lambda store: store.set(self._key(name), json.dumps(note)), None)

    def get(self, name: str, limit_s: float | None = None) -> dict[str, Any] | None:
        """Return the note, or None; raises TransferTimeoutError if the store does not answer."""

        def request(store: Store) -> bytes | None:
            return store.get(self._key(name)) if store.check([self._key(name)]) else None

        found = self._ask(request, limit_s)
        return None if found is None else json.loads(found)  # type: ignore[arg-type]


def last_checkpoint(board: Board) -> str:
    """Return what is known of the last checkpoint, for an error that must not be late."""
    try:
        note = board.get("checkpoint", _LIMIT_S)
    except Exception as error:  # noqa: BLE001 - the store may be gone too; the text has its error
        return f"the last checkpoint is not known, as the store says {error}"
    if note is None:
        return "no checkpoint was saved"
    age_s = time.time() - float(str(note["saved_at"]))
    return f"the last checkpoint is {note['path']}, of {age_s:.1f} s ago"
