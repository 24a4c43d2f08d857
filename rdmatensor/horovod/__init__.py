"""Horovod's API on this library: `import rdmatensor.horovod.torch as hvd` in place of Horovod's."""

from __future__ import annotations

from rdmatensor.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]


def __getattr__(name: str) -> object:
    if name == "run":  # the launcher is loaded where it is used
        from rdmatensor.horovod.runner.call import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
