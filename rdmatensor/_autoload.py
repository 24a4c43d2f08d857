"""Called by torch at the end of `import torch`: registers the backend's name, nothing else.

An exception here would break `import torch`, so none is raised. Imports stand in functions: a
failure is then a warning, and `import torch` does not load what only a group needs.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING

from rdmatensor._backend import BACKEND_NAME

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, _DistributedBackendOptions


def register() -> None:
    """Register the backend with torch.distributed; idempotent. Never raises, but warns."""
    try:
        _register()
    except Exception as error:  # noqa: BLE001 - `import torch` must work whatever is broken here
        _warn(
            f"the torch.distributed backend {BACKEND_NAME!r} is not available: "
            f"{type(error).__name__}: {error}"
        )


def _register() -> None:
    import torch.distributed as dist

    if not dist.is_available() or BACKEND_NAME.upper() in dist.Backend._plugins:
        return
    # cuda: a CUDA tensor then reaches the backend, whose error says how to open the group for it;
    # torch would only report a missing backend. NCCL stays the default for such tensors.
    devices = ["cpu", "cuda"]
    dist.Backend.register_backend(BACKEND_NAME, _create, extended_api=True, devices=devices)
    if _goes_to_torchcomms():
        _warn(
            "TORCH_DISTRIBUTED_USE_TORCHCOMMS is set and torchcomms is installed: torch asks it "
            f"for every backend, {BACKEND_NAME!r} too; unset the variable to use rdmatensor"
        )


def _warn(text: str) -> None:
    with contextlib.suppress(RuntimeWarning):  # raised if warnings are errors
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def _goes_to_torchcomms() -> bool:
    """Return whether torch makes groups with torchcomms; versions before 2.13 do not."""
    from torch.distributed import distributed_c10d

    asked = getattr(distributed_c10d, "_use_torchcomms_enabled", None)
    return asked is not None and bool(asked())


def _create(options: _DistributedBackendOptions, backend_options: object) -> Backend:
    from rdmatensor.distributed import create

    return create(options, backend_options)
