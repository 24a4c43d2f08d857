"""Functions by name, and what a driver gets of their exceptions."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from rdmatensor._native.arguments import invalid

Function = TypeVar("Function", bound=Callable[..., Any])

_MAIN = ("__main__", "__mp_main__")  # one program, under two names
_registered: dict[str, Callable[..., Any]] = {}


class FunctionError(RuntimeError):
    """A function raised an exception on a worker; the message ends with its traceback there.

    Attributes:
        worker: Rank of the worker.
        kind: Name of the exception's class.
        traceback: Of the worker, as text.
    """

    def __init__(self, function: str, worker: int, kind: str, message: str, traceback: str) -> None:
        super().__init__(
            f"{function} failed on worker {worker}: {kind}: {message}\n\n"
            f"On worker {worker}:\n{traceback}"
        )
        self.worker, self.kind, self.traceback = worker, kind, traceback


def register(name: str) -> Callable[[Function], Function]:
    """Give a function a name for Driver.schedule(), on all processes.

    A function at the top of a module needs none.

    Args:
        name: Of the function, without a colon.

    Returns:
        The decorator.

    Raises:
        InvalidArgumentError: The name has another function, or the wrong length.

    Example:
        >>> @register("thrice")
        ... def thrice(w, x):
        ...     return 3 * x
    """
    if not isinstance(name, str) or not 0 < len(name) <= 200 or ":" in name:
        raise invalid("register", f"name={name!r} is not a text of 1 to 200 characters without ':'")

    def add(function: Function) -> Function:
        if _registered.setdefault(name, function) is not function:
            raise invalid("register", f"{name!r} is the name of {_registered[name]!r}")
        return function

    return add


def name_of(function: object) -> str:
    """Return the name by which workers find a function.

    Raises:
        InvalidArgumentError: They would not find it.
    """
    for name, one in _registered.items():
        if one is function:
            return name
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if (
        not callable(function)
        or not module
        or not path
        or getattr(sys.modules.get(module), path, None) is not function
    ):
        raise invalid(
            "schedule",
            f"{function!r} is not at the top of a module: move it there, or name it by "
            "ps.register()",
        )
    return f"{_MAIN[0] if module in _MAIN else module}:{path}"


def function_of(name: str) -> Callable[..., Any]:
    """Return the function that has a name here.

    Raises:
        LookupError: There is none.
    """
    module, colon, path = name.partition(":")
    if not colon:
        if name not in _registered:
            raise LookupError(f"no function is registered as {name!r} on this worker")
        return _registered[name]
    places = [sys.modules[one] for one in _MAIN if one in sys.modules]
    if module != _MAIN[0]:
        places = [importlib.import_module(module)]
    for place in places:
        found = getattr(place, path, None)
        if callable(found):
            return found  # type: ignore[no-any-return]
    raise LookupError(f"{module} has no function {path!r} on this worker")
