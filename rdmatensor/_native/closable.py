"""What the objects over a C handle share: `with`, close(), and a warning if it was forgotten."""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import TypeVar

from rdmatensor._native.core import Core
from rdmatensor._native.ffi import Handle

Own = TypeVar("Own", bound="Closable")


class Closable:
    """The owner of a handle of a context. Subclasses set _core and, but for Context, _handle."""

    _core: Core
    _handle: Handle | None = None

    def close(self) -> None:
        """Release the handle; idempotent."""
        if self._handle is not None:
            self._core.release(self._handle)

    def _is_open(self) -> bool:
        """Whether close() is still due; also of an object whose __init__ has raised."""
        handle = self._handle
        return handle is not None and handle.ptr is not None and not self._core.is_foreign

    def _name(self) -> str:
        """Return the object's name in the warning."""
        return repr(self)

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._is_open():
            warnings.warn(
                f"{self._name()} was dropped without close()", ResourceWarning, stacklevel=2
            )
