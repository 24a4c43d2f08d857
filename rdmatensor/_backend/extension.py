"""The C++ extension: the one for the torch that runs, shut down before the context it uses."""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import multiprocessing.util
import sysconfig
from types import ModuleType

import torch

import rdmatensor._build_stamp as build_stamp
from rdmatensor._backend import on_demand
from rdmatensor._backend.prebuilt import identity_of, module_name
from rdmatensor._native.ffi import Handle
from rdmatensor.context import Context

_OLDEST = (2, 11)
# Contexts whose groups are shut down before they close.
_tied: set[int] = set()
_loaded: ModuleType | None = None


def load_extension() -> ModuleType:
    """Return the C++ module for the torch that runs.

    Where this package has none for it, the module is compiled once, with the user's compiler, and
    kept in a cache folder; see `rdmatensor._backend.on_demand`. That takes minutes.

    Returns:
        The module.

    Raises:
        ImportError: It cannot be had. The message names the torch that runs, those that this
            package has modules for, and what to install.
    """
    global _loaded
    if _loaded is None:
        _loaded = _load()
    return _loaded


def _load() -> ModuleType:
    version = torch.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise ImportError(
            f"torch {version} is too old for rdmatensor's backend: upgrade it to 2.11 or later"
        )
    name = module_name(version)
    file_name = name + str(sysconfig.get_config_var("EXT_SUFFIX"))
    # C++ cannot check this itself: the loader would find a symbol missing, or, worse, none.
    if build_stamp.BACKENDS.get(file_name) == identity_of(torch):
        return importlib.import_module(f"rdmatensor.{name}")
    return on_demand.load(name)


def tie_to_context(c10d: ModuleType, context: Context) -> None:
    """Shut the context's groups down before it closes, and keep it while torch uses parts of it."""
    addr = context._c_addr
    c10d.offer_symmetric_memory(addr)
    if addr in _tied:
        return
    _tied.add(addr)

    def close(address: int) -> None:
        _tied.discard(address)
        c10d.shutdown_groups(address)

    context._core.adopt(Handle("torch groups", addr, close))
    context._core.is_held.append(lambda: bool(c10d.is_context_in_use(addr)))
    # Runs before the context's own handler, which was registered earlier; again is harmless.
    atexit.register(_before_exit, c10d)
    if multiprocessing.parent_process() is not None:  # one that was forked runs no atexit
        multiprocessing.util.Finalize(None, _before_exit, (c10d,), exitpriority=10)


def _before_exit(c10d: ModuleType) -> None:
    """Stop while the GIL is available: a thread that requests it later ends the process."""
    c10d.shutdown_groups()
    c10d.stop_finisher()
