"""The C++ extension: loaded for the right torch, and shut down before the context it uses."""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import multiprocessing.util
from types import ModuleType

import torch

import rdmatensor._build_stamp as build_stamp
from rdmatensor._native.ffi import Handle
from rdmatensor.context import Context

_REBUILD = (
    "pip install --no-build-isolation --no-deps --force-reinstall --no-cache-dir rdmatensor, or "
    "`pip install --no-build-isolation --no-deps --force-reinstall .` in its source folder"
)
# Contexts whose groups are shut down before they close.
_tied: set[int] = set()


def load_extension() -> ModuleType:
    """Return rdmatensor._c10d; ImportError if it was built for another torch, naming both.

    C++ cannot check this itself: the loader would find a symbol missing, or, worse, none.
    """
    built_for = build_stamp.TORCH_VERSION
    if built_for is None:
        raise ImportError(
            "this copy of rdmatensor was built without torch, so it has no torch.distributed "
            f"backend; install it again where torch {torch.__version__} is: {_REBUILD}"
        )
    if torch.__version__ != built_for:
        raise ImportError(
            f"this copy of rdmatensor was built for torch {built_for}, but torch "
            f"{torch.__version__} is loaded; build it again: {_REBUILD}"
        )
    return importlib.import_module("rdmatensor._c10d")  # it links torch, compared above


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
