"""The rank's side of an elastic job: one rendezvous in which all ranks of an epoch meet.

An epoch is a set of ranks. The launcher publishes a plan for each, in its store; a rank enters the
newest one that has it. All ranks of an epoch say there whether they would skip the next sync();
they skip it only if all would, so that none waits for a broadcast that others do not send.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from rdmatensor.horovod import membership
from rdmatensor.horovod.exceptions import HorovodInternalError
from rdmatensor.horovod.membership import Membership

WORKER = "HOROVOD_ELASTIC_WORKER"  # this process's name in plans; set by the launcher
_POLL_S = 0.05
_TIMEOUT_S = 600.0

_store: Store | None = None
_epoch = 0
_would_skip = False
_skips = False


def is_elastic() -> bool:
    """Return whether the launcher started this process as a rank of an elastic job."""
    return WORKER in os.environ


def key_of_epoch() -> str:
    """Return the key of the newest epoch's number."""
    return "elastic/epoch"


def key_of_plan(epoch: int) -> str:
    """Return the key of an epoch's plan: ranks and their places, by the names of processes."""
    return f"elastic/{epoch}/plan"


def key_of_failure(epoch: int) -> str:
    """Return the key by which a rank says that this epoch has failed for it."""
    return f"elastic/{epoch}/failed"


def _open_store() -> Store:
    global _store
    if _store is None:
        _store = TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, is_master=False,
            timeout=timedelta(seconds=_TIMEOUT_S),
        )  # fmt: skip
    return _store


def newest_epoch() -> int:
    """Return the number of the newest epoch."""
    return int(_open_store().get(key_of_epoch()))


def has_changed() -> bool:
    """Return whether there is a newer epoch than this rank's."""
    return is_elastic() and newest_epoch() > _epoch


def report_failure() -> None:
    """Ask for another epoch: the launcher may not have seen why this one failed."""
    if is_elastic():
        _open_store().set(key_of_failure(_epoch), "1")


def wish_to_skip(wish: bool) -> None:
    """Say, before the next rendezvous, whether this rank would skip the sync() after it."""
    global _would_skip
    _would_skip = wish


def skips_sync() -> bool:
    """Return what the ranks of this epoch agreed on."""
    return _skips


def rendezvous() -> Membership:
    """Meet the ranks of the newest epoch.

    Returns:
        This process's place in it.

    Raises:
        SystemExit: With 0: the plan has no place for this process.
        HorovodInternalError: No epoch was complete within HOROVOD_ELASTIC_TIMEOUT.
    """
    global _epoch, _skips
    store, name = _open_store(), os.environ[WORKER]
    limit_s = float(os.environ.get("HOROVOD_ELASTIC_TIMEOUT", _TIMEOUT_S))
    deadline_s = time.monotonic() + limit_s
    entered = _epoch
    while time.monotonic() < deadline_s:
        newest = newest_epoch()
        if newest > entered:
            plan = json.loads(store.get(key_of_plan(newest)))
            if name not in plan:
                sys.exit(0)
            entered = newest
            store.set(f"elastic/{entered}/here/{plan[name]['rank']}", str(int(_would_skip)))
        if entered > _epoch:
            here = [f"elastic/{entered}/here/{rank}" for rank in range(len(plan))]
            if store.check(here):
                _epoch = entered
                _skips = all(int(store.get(one)) for one in here)
                return _place(plan[name], store)
        time.sleep(_POLL_S)
    raise HorovodInternalError(
        f"no rendezvous within {limit_s:g} s (HOROVOD_ELASTIC_TIMEOUT): too few hosts, or a rank "
        "hangs"
    )


def _place(slot: dict[str, int | str], store: Store) -> Membership:
    for name, value in slot["environment"].items():  # type: ignore[union-attr]
        os.environ[name] = value
    return Membership(
        int(slot["rank"]),
        int(slot["size"]),
        PrefixStore(f"horovod/epoch{_epoch}", store),
        str(slot["host"]),
    )


def install() -> None:
    """Have init() meet the ranks of an epoch, in a rank of an elastic job."""
    if is_elastic():
        membership.provider = rendezvous
