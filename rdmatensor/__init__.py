"""Tensors that are born in registered memory and move by one-sided writes.

Names are loaded when they are first used: importing this package costs no torch, no numpy and no
C library, and works on a machine that has neither a NIC nor libibverbs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdmatensor.errors import RdmaTensorError as RdmaTensorError

# Public name -> the module that has it. The block above says the same to type checkers.
_HOMES = {
    "RdmaTensorError": "errors",
}

__all__ = ["RdmaTensorError", "__version__"]


def __getattr__(name: str) -> object:
    """PEP 562: load a public name at its first use."""
    if name == "__version__":
        return importlib.import_module("rdmatensor._build_stamp").VERSION
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'rdmatensor' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"rdmatensor.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
