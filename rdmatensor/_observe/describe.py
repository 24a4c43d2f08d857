"""The C library's description of a context, as dictionaries."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from rdmatensor._native.ffi import OK, fail, ffi, lib, new_error

if TYPE_CHECKING:
    from rdmatensor._native.core import Core
    from rdmatensor.state import ContextState, PlacementState

_PLACEMENT_BYTES = 1 << 16  # enough for any: rdmatensor.h


def state_of(core: Core) -> ContextState:
    """Return the live state; raises ClosedError, ForkedProcessError."""
    size, needed = 1 << 14, ffi.new("size_t *")
    while True:
        buf = ffi.new("char[]", size)
        ptr, err = core.get("describe"), new_error()
        status = lib.rdt_context_describe(ptr, buf, size, needed, err)
        if status == OK:
            return cast("ContextState", _parsed(bytes(ffi.buffer(buf, needed[0]))))
        if status != lib.RDT_EINVAL or needed[0] < size:
            fail(status, "describe", err)
        size = needed[0] + 4096  # some room: the state may grow between the calls


def placement_of(core: Core) -> PlacementState:
    """Return where the arena's pages are; raises ClosedError, ForkedProcessError.

    It may take long, and close() waits for it as for a waiting thread.
    """
    buf, needed, err = ffi.new("char[]", _PLACEMENT_BYTES), ffi.new("size_t *"), new_error()
    ptr = core.get("describe")
    core.waiters.wait(
        lambda _: lib.rdt_context_placement(ptr, buf, _PLACEMENT_BYTES, needed, err),
        "describe",
        0.0,
        err,
    )
    return cast("PlacementState", _parsed(bytes(ffi.buffer(buf, needed[0]))))


def _parsed(text: bytes) -> dict[str, object]:
    return cast("dict[str, object]", json.loads(text.decode("utf-8", "replace")))
