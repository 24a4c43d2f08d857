"""Tensors in registered memory that peers write into with one-sided writes.

Names are loaded at their first use: importing this package loads neither torch nor numpy nor the C
library, and works on a machine without a NIC or libibverbs.

What needs torch is in modules of its own: rdmatensor.distributed for groups of torch.distributed,
rdmatensor.torch for tensors, rdmatensor.symmetric for symmetric memory, rdmatensor.plan for planned
training, rdmatensor.parallel for models that ranks split, rdmatensor.budget and rdmatensor.stream
for models that do not fit, rdmatensor.hooks for communication hooks, rdmatensor.compress to send or
keep fewer bytes, rdmatensor.ps for parameter servers, rdmatensor.horovod for Horovod's API, and
rdmatensor.trials, which also needs Optuna, for searches of hyper-parameters. `import rdmatensor` is
enough to use them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdmatensor import budget as budget
    from rdmatensor import compress as compress
    from rdmatensor import distributed as distributed
    from rdmatensor import errors as errors
    from rdmatensor import hooks as hooks
    from rdmatensor import horovod as horovod
    from rdmatensor import metrics as metrics
    from rdmatensor import parallel as parallel
    from rdmatensor import plan as plan
    from rdmatensor import ps as ps
    from rdmatensor import stream as stream
    from rdmatensor import symmetric as symmetric
    from rdmatensor import torch as torch
    from rdmatensor import trace as trace
    from rdmatensor import trials as trials
    from rdmatensor.bootstrap import join as join
    from rdmatensor.bootstrap import join_async as join_async
    from rdmatensor.config import Options as Options
    from rdmatensor.config import Settings as Settings
    from rdmatensor.context import Context as Context
    from rdmatensor.context import default_context as default_context
    from rdmatensor.endpoint import Endpoint as Endpoint
    from rdmatensor.errors import AuthenticationError as AuthenticationError
    from rdmatensor.errors import BusyError as BusyError
    from rdmatensor.errors import CanceledError as CanceledError
    from rdmatensor.errors import ClosedError as ClosedError
    from rdmatensor.errors import CompletionError as CompletionError
    from rdmatensor.errors import CorruptedDataError as CorruptedDataError
    from rdmatensor.errors import DeviceError as DeviceError
    from rdmatensor.errors import ForkedProcessError as ForkedProcessError
    from rdmatensor.errors import InternalError as InternalError
    from rdmatensor.errors import InvalidArgumentError as InvalidArgumentError
    from rdmatensor.errors import MismatchError as MismatchError
    from rdmatensor.errors import NotSupportedError as NotSupportedError
    from rdmatensor.errors import OutOfMemoryError as OutOfMemoryError
    from rdmatensor.errors import PeerError as PeerError
    from rdmatensor.errors import PlanMismatchError as PlanMismatchError
    from rdmatensor.errors import ProtocolError as ProtocolError
    from rdmatensor.errors import RdmaTensorError as RdmaTensorError
    from rdmatensor.errors import StaleRegionError as StaleRegionError
    from rdmatensor.errors import TransferTimeoutError as TransferTimeoutError
    from rdmatensor.errors import TransportNotViableError as TransportNotViableError
    from rdmatensor.errors import VersionMismatchError as VersionMismatchError
    from rdmatensor.group import Group as Group
    from rdmatensor.memory import Region as Region
    from rdmatensor.memory import RemoteRegion as RemoteRegion
    from rdmatensor.persistent import PersistentCollective as PersistentCollective
    from rdmatensor.persistent import PersistentMessage as PersistentMessage
    from rdmatensor.slot import SlotReceiver as SlotReceiver
    from rdmatensor.slot import SlotTensor as SlotTensor
    from rdmatensor.slot_sender import SlotSender as SlotSender
    from rdmatensor.store import FileStore as FileStore
    from rdmatensor.store import Store as Store
    from rdmatensor.transfer import ReceiveTransfer as ReceiveTransfer
    from rdmatensor.transfer import Transfer as Transfer
    from rdmatensor.types import Counters as Counters
    from rdmatensor.world import World as World
    from rdmatensor.write import PreparedWrite as PreparedWrite
    from rdmatensor.write import WriteBatch as WriteBatch

# Module -> its public names. The block above repeats them for type checkers; a test compares both.
_MODULES = {
    "bootstrap": ("join", "join_async"),
    "config": ("Options", "Settings"),
    "context": ("Context", "default_context"),
    "endpoint": ("Endpoint",),
    "errors": (
        *("AuthenticationError", "BusyError", "CanceledError", "ClosedError", "CompletionError"),
        *("CorruptedDataError", "DeviceError", "ForkedProcessError", "InternalError"),
        *("InvalidArgumentError", "MismatchError", "NotSupportedError", "OutOfMemoryError"),
        *("PeerError", "PlanMismatchError", "ProtocolError", "RdmaTensorError"),
        *("StaleRegionError", "TransferTimeoutError", "TransportNotViableError"),
        "VersionMismatchError",
    ),
    "group": ("Group",),
    "memory": ("Region", "RemoteRegion"),
    "persistent": ("PersistentCollective", "PersistentMessage"),
    "slot": ("SlotReceiver", "SlotTensor"),
    "slot_sender": ("SlotSender",),
    "store": ("FileStore", "Store"),
    "transfer": ("ReceiveTransfer", "Transfer"),
    "types": ("Counters",),
    "world": ("World",),
    "write": ("WriteBatch", "PreparedWrite"),
}
# Modules that need no import of their own. Of all public names only those of _OF_TORCH need torch.
_OF_TORCH = (
    "budget",
    "compress",
    "distributed",
    "hooks",
    "horovod",
    "parallel",
    "plan",
    "ps",
    "stream",
    "symmetric",
    "torch",
    "trials",
)
_MODULES_BY_NAME = (*_OF_TORCH, "errors", "metrics", "trace")
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted((*_HOMES, "__version__"))  # noqa: PLE0605 - the names are strings, of _MODULES


def __getattr__(name: str) -> object:
    """Load a public name at its first use (PEP 562)."""
    if name == "__version__":
        from rdmatensor._build_stamp import VERSION

        return VERSION
    if name in _MODULES_BY_NAME:  # rdmatensor.plan.apply() needs no separate import
        return importlib.import_module(f"rdmatensor.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'rdmatensor' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"rdmatensor.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
