"""init() and shutdown(): what a process has while Horovod's API is in use."""

from __future__ import annotations

import atexit
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import ProcessGroup

from rdmatensor import config
from rdmatensor._backend import BACKEND_NAME
from rdmatensor._backend.groups import backend_of
from rdmatensor.context import default_context
from rdmatensor.horovod import _wire, membership
from rdmatensor.horovod._controller import Controller
from rdmatensor.horovod._coordinator import Limits
from rdmatensor.horovod._entry import Entry
from rdmatensor.horovod.membership import Membership

_JOIN_S = 300.0

data_path = BACKEND_NAME  # a benchmark compares with "gloo"


@dataclass(slots=True)
class Runtime:
    """The state between init() and shutdown()."""

    membership: Membership
    controller: Controller
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    is_homogeneous: bool
    owns_default_group: bool
    groups: list[ProcessGroup]
    is_dynamic: bool


_runtime: Runtime | None = None
_unnamed: Counter[tuple[int, str]] = Counter()
before_stop: list[Callable[[], None]] = []  # called by stop()
_joins = 0  # since init(): until all have joined, ranks may have numbered differently


def is_on() -> bool:
    """Return whether init() was called, and shutdown() not since."""
    return _runtime is not None


def runtime() -> Runtime:
    """Return the state; ValueError before init()."""
    if _runtime is None:
        raise ValueError("Horovod has not been initialized; use hvd.init()")
    return _runtime


def controller() -> Controller:
    """Return the controller; ValueError before init()."""
    return runtime().controller


def full_name(set_id: int, kind: str, name: str | None) -> str:
    """Return the name that ranks agree on; without one, the next number of the process set."""
    if name is not None:
        return f"{kind}.{name}"
    _unnamed[set_id, kind] += 1
    number = _unnamed[set_id, kind]
    return f"{kind}.noname.{number}" if _joins == 0 else f"{kind}.noname.{_joins}.{number}"


def count_join() -> None:
    """Number unnamed operations from 1 again: all ranks have joined."""
    global _joins
    _joins += 1
    _unnamed.clear()


def start(*, is_dynamic: bool) -> None:
    """Meet the other ranks, and begin. No effect while it is on."""
    global _runtime, _joins
    if _runtime is not None:
        return
    place = membership.provider()
    limits = _limits()
    owns_default_group = _open_default_group(place)
    group = dist.new_group(backend=data_path)
    assert isinstance(group, ProcessGroup)
    settings = config.from_environment()
    channel, channels = _wire.open_channels(
        place.store, place.rank, place.size, settings, _listens(), _JOIN_S
    )
    groups = [group]

    def make_group(ranks: list[int]) -> ProcessGroup | None:
        made = dist.new_group(ranks, backend=data_path)
        if not isinstance(made, ProcessGroup):
            return None  # this rank is outside
        groups.append(made)
        return made

    def break_groups(why: str) -> None:
        for one in groups:
            if data_path == BACKEND_NAME:
                backend_of(one).break_group(why)

    made = Controller(
        place.rank, place.size, channel, channels, group, limits, make_group, break_groups
    )
    hosts = _hosts(place)
    _unnamed.clear()
    _joins = 0
    _runtime = Runtime(
        place,
        made,
        *_local_place(hosts, place.rank),
        *_cross_place(hosts, place.rank),
        is_homogeneous=len(set(Counter(hosts).values())) == 1,
        owns_default_group=owns_default_group,
        groups=groups,
        is_dynamic=is_dynamic or os.environ.get("HOROVOD_DYNAMIC_PROCESS_SETS") == "1",
    )
    path = os.environ.get("HOROVOD_TIMELINE")
    if path and path != "DYNAMIC":
        start_timeline(path, mark_cycles=os.environ.get("HOROVOD_TIMELINE_MARK_CYCLES") == "1")


def _open_default_group(place: Membership) -> bool:
    """Make torch.distributed's default group if there is none; return whether it was made."""
    if dist.is_initialized():
        found = dist.get_rank(), dist.get_world_size()
        if found != (place.rank, place.size):
            raise ValueError(
                f"hvd.init(): this process is rank {place.rank} of {place.size} for its launcher, "
                f"and rank {found[0]} of {found[1]} of torch.distributed's group"
            )
        return False
    dist.init_process_group(
        BACKEND_NAME if data_path == BACKEND_NAME else f"cpu:{data_path}",
        store=PrefixStore("torch", place.store),
        rank=place.rank,
        world_size=place.size,
    )
    return True


def _listens() -> list[str]:
    """Return the addresses at which other ranks reach this process, without ports."""
    listens = default_context().describe()["listens"]
    return list(dict.fromkeys(one.rpartition(":")[0].strip("[]") for one in listens))


def _hosts(place: Membership) -> list[str]:
    keys = [f"host/{rank}" for rank in range(place.size)]
    place.store.set(keys[place.rank], json.dumps(place.host))
    return [json.loads(place.store.get(key)) for key in keys]


def _local_place(hosts: list[str], rank: int) -> tuple[int, int]:
    return hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])


def _cross_place(hosts: list[str], rank: int) -> tuple[int, int]:
    """Return the place among the ranks that have this local rank on their hosts."""
    local = _local_place(hosts, rank)[0]
    same = [one for one in range(len(hosts)) if _local_place(hosts, one)[0] == local]
    return same.index(rank), len(same)


def _limits() -> Limits:
    limits = Limits()
    limits.fusion_bytes = _whole("HOROVOD_FUSION_THRESHOLD", limits.fusion_bytes)
    limits.stall_s = _whole("HOROVOD_STALL_CHECK_TIME_SECONDS", int(limits.stall_s))
    if os.environ.get("HOROVOD_STALL_CHECK_DISABLE") == "1":
        limits.stall_s = 0
    given_s = _whole("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0)
    limits.stall_shutdown_s = given_s or limits.stall_shutdown_s
    return limits


def _whole(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a whole number") from None


def stop() -> None:
    """Leave the job. No effect while it is off."""
    global _runtime
    if _runtime is None:
        return
    ended, _runtime = _runtime, None
    for call_before in before_stop:
        call_before()
    ended.controller.close()
    for group in ended.groups:
        dist.destroy_process_group(group)
    if ended.owns_default_group:
        dist.destroy_process_group()


def call(entry: Entry) -> object:
    """Submit an operation and wait for it."""
    made = controller()
    made.submit(entry)
    return made.wait(entry)


def agree(kind: str, name: str, signature: dict[str, object]) -> object:
    """Have all ranks do something that has no data, and return its result."""
    return call(Entry(0, name, kind, [], [], {"dtypes": [], "shapes": [], **signature}))


def start_timeline(path: str, *, mark_cycles: bool) -> None:
    """Begin a timeline on rank 0."""
    state = runtime()
    if state.membership.rank == 0:
        state.controller.timeline.start(path, mark_cycles=mark_cycles)


def stop_timeline() -> None:
    """End the timeline."""
    runtime().controller.timeline.stop()


atexit.register(stop)
