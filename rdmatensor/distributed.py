"""The torch.distributed backend: making a group, and inspecting it.

`init_process_group("rdmatensor")` calls create(). All groups of a process share its context.
"""

from __future__ import annotations

import atexit
import importlib
import json
import sys
from datetime import timedelta
from functools import partial
from hashlib import sha256
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, cast

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as torch_c10d

from rdmatensor._autoload import BACKEND_NAME
from rdmatensor._ffi import Handle
from rdmatensor._rendezvous import open_and_meet
from rdmatensor.context import Context, default_context

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, ProcessGroup, _DistributedBackendOptions

_REBUILD = (
    "pip install --no-build-isolation --no-deps --force-reinstall --no-cache-dir rdmatensor, or "
    "`pip install --no-build-isolation --no-deps --force-reinstall .` in its source folder"
)
# Contexts whose groups are shut down before they close.
_tied: set[int] = set()
_LONGEST = timedelta(days=365)  # a longer timeout means none, and would overflow in C++


class LastOperation(TypedDict):
    """One operation of a group, as this rank saw it."""

    number: int  # among all operations of this rank in the group, from 1
    sequence: int | None  # of its last collective: "#3" in errors on all ranks; None: it has none
    collectives: int  # number of collectives: 0 for a message, several for a list of large tensors
    operation: str  # "rdmatensor:recv from rank 3, tag 0"
    bytes: int  # of the inputs
    dtype: torch.dtype
    state: Literal["in flight", "done", "failed"]
    seconds: float  # that it took, or has taken so far


class BackendPart(Protocol):
    """The part of rdmatensor._c10d.Backend that is used here and not declared by torch."""

    number: int

    @property
    def options(self) -> torch_c10d.Backend.Options:
        """Return the group's options, with its present timeout."""

    def name(self) -> str:
        """Return the backend's name."""

    def _set_default_timeout(self, timeout: timedelta) -> None: ...
    def _get_sequence_number_for_group(self) -> int: ...
    def _counters(self) -> dict[str, int]: ...
    def _collectives(self) -> str: ...
    def _average_bucket(self, bucket: torch.Tensor, label: int) -> torch_c10d.Work: ...

    def last_operations(self) -> list[LastOperation]:
        """Return the last operations of this rank, oldest first."""

    def recorded(self) -> dict[str, Any]:
        """Return the recorder's report, with the cycle that it found."""

    def rank(self) -> int:
        """Return this process's rank in the group."""

    def everyone(self, what: str, mine: str) -> list[str]:
        """Return every rank's value, in rank order; waits for all."""

    def break_group(self, reason: str) -> None:
        """End the group on all ranks."""

    def get_error(self) -> torch_c10d.ErrorType:
        """Return how the group ended, or success."""


class Peer(TypedDict):
    """How one member of a group is reached from here. rank: global."""

    rank: int
    path: str
    reason: str


def load_extension() -> ModuleType:
    """Return rdmatensor._c10d; ImportError if it was built for another torch, naming both.

    C++ cannot check this itself: the loader would find a symbol missing, or, worse, none.
    """
    from rdmatensor._build_stamp import TORCH_VERSION

    if TORCH_VERSION is None:
        raise ImportError(
            "this copy of rdmatensor was built without torch, so it has no torch.distributed "
            f"backend; install it again where torch {torch.__version__} is: {_REBUILD}"
        )
    if torch.__version__ != TORCH_VERSION:
        raise ImportError(
            f"this copy of rdmatensor was built for torch {TORCH_VERSION}, but torch "
            f"{torch.__version__} is loaded; build it again: {_REBUILD}"
        )
    return importlib.import_module("rdmatensor._c10d")


def create(options: _DistributedBackendOptions, backend_options: object = None) -> Backend:
    """Make the backend of one group; torch calls it on every member.

    backend_options: only torch's own exist; anything else is a TypeError.
    Blocks until rank 0 of the group has come; for the process's first group, if the launcher did
    not say whether all ranks share a host, until all have. Bounded by the group's timeout.
    Raises: ImportError (built for another torch), InvalidArgument (a setting), DistBackendError,
        DistStoreError.
    """
    c10d = load_extension()
    if backend_options is not None and not isinstance(backend_options, torch_c10d.Backend.Options):
        raise TypeError(
            f"the backend {BACKEND_NAME!r} takes no options of type "
            f"{type(backend_options).__name__}; it is set up by RDMATENSOR_* variables"
        )
    timeout = options.timeout
    rank, size = options.group_rank, options.group_size
    meet = partial(c10d.Rendezvous, options.store, rank, size, timeout)
    context, rendezvous = open_and_meet(meet, size)
    tie_to_context(c10d, context)
    from rdmatensor import _adopt, _record  # they need this module

    has_hooks = context.settings.hooks
    is_recorded = has_hooks and context.settings.plan == "auto"
    secret = context.settings.secret
    global_ranks = list(options.global_ranks_in_group)
    backend = c10d.create_backend(
        rendezvous=rendezvous,
        context=context._c_addr,
        group_name=options.group_id,
        global_ranks=global_ranks,
        timeout=timeout,
        secret=b"" if secret is None else sha256(secret).digest(),
        is_default_group=not global_ranks,
        is_recorded=is_recorded,
    )
    context.notes["secret"] = context.settings.secret_source or "store"
    _repair_default_backend()
    if is_recorded:
        _record.mark_steps(c10d)
    if has_hooks:
        _adopt.install(context)
    return cast("Backend", backend)


def _repair_default_backend() -> None:
    """Name this backend the default of a group that was opened with "cpu:rdmatensor".

    torch 2.13 looks for the upper-case name among lower-case names, and leaves the default
    undefined: name() is wrong, hooks fail, destroying the group warns. The group is a variable of
    the calling function in torch; other callers have nothing to repair.
    """
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    group = frame.f_locals.get("pg")
    if isinstance(group, dist.ProcessGroup) and group.name() == "undefined":
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)


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


def _before_exit(c10d: ModuleType) -> None:
    """Stop while the GIL is available: a thread that requests it later ends the process."""
    c10d.shutdown_groups()
    c10d.stop_finisher()


def describe(group: ProcessGroup | None = None) -> dict[str, object]:
    """Return the live state of this process, with "peers": how each member is reached, and why.

    Peers are all other members, by global rank, as {"rank", "path", "reason"}; path "none": nothing
    was sent or received yet. "adopted": what was allocated in the arena without a request, {"what",
    "tensors", "bytes", "missed", "missed_bytes", "reason"}; "not_adopted": what is outside,
    {"what", "reason", "tensors", "bytes", "names"}; "born": gradients of DDP, {"what", "born",
    "copied", "copied_bytes", "why_off"}.
    "collectives" counts those of the group on this rank: {"calls", "packs", "packed_tensors",
    "writes", "rearranged_tensors", "rearranged_bytes"}. A pack is one call for many small tensors
    of a coalesced one; rearranged tensors were not row-major and were copied; a write is a message
    to a member, or a fill of memory that all read. "way" is how they are carried out (shared
    memory, hosts, messages, undecided at first), "algorithm" the value of RDMATENSOR_ALGO, "ran"
    how many used which, "summing_s" and "copying_s" the time of passes over 4 KiB or more. With
    messages, "costs" is a table (its "source", "between": path to hosts), "chosen" the choice for
    each operation; "hosts" numbers each rank's host.
    "plan" is what the recorder knows of the group's step: "state" (watching, locked, off) and
    "reason"; when locked "operations" and "bytes" of a step, "steps" since then, their average cost
    ("per_step", of counters(); other groups' too), how many tensors "moved" to another address.

    Args:
        group: None is the default group.

    Raises:
        ValueError: The group has no rdmatensor backend, or this process is not a member.
    """
    context, state = default_context(), default_context().describe()
    members = _members(group) if dist.is_initialized() else []
    endpoints = cast("list[dict[str, object]]", state["endpoints"])
    state["peers"] = [_peer(rank, endpoints) for rank in members if rank != dist.get_rank()]
    from rdmatensor import _adopt, _record  # they need this module

    state.update(_adopt.report(context.settings.adopt and context.settings.hooks))
    state["collectives"] = {}
    if dist.is_initialized():
        backend = backend_of(group_of(group))
        state["collectives"] = {**backend._counters(), **json.loads(backend._collectives())}
    if members:
        state["plan"] = _record.describe(backend_of(group_of(group)))
    return state


def _members(group: ProcessGroup | None) -> list[int]:
    chosen = dist.group.WORLD if group is None else group
    if chosen is None or dist.get_rank(chosen) < 0:
        raise ValueError("this process is not a member of the group")
    if BACKEND_NAME not in dist.get_backend_config(chosen):
        raise ValueError(
            f"the group's backend is {dist.get_backend_config(chosen)!r}, not {BACKEND_NAME!r}; "
            "pass the group to describe(group)"
        )
    return dist.get_process_group_ranks(chosen)


def _peer(rank: int, endpoints: list[dict[str, object]]) -> Peer:
    of_rank = [endpoint for endpoint in endpoints if endpoint["rank"] == rank]
    if not of_rank:
        return Peer(rank=rank, path="none", reason="nothing was sent or received yet")
    # A rank that was restarted has the endpoints of its predecessors too.
    ready = [endpoint for endpoint in of_rank if endpoint["state"] == "ready"]
    endpoint = (ready or of_rank)[-1]
    texts = [str(endpoint[key]) for key in ("error", "lane", "why_not_better") if endpoint[key]]
    if endpoint["state"] != "ready":
        texts.insert(0, str(endpoint["state"]))
    return Peer(rank=rank, path=str(endpoint["path"]), reason="; ".join(texts))


def monitored_barrier(
    group: ProcessGroup | None = None,
    timeout: timedelta | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Do what torch.distributed.monitored_barrier() does, which refuses every backend but Gloo.

    Rank 0 of the group learns which ranks did not come within the timeout.

    Args:
        group: None is the default group.
        timeout: None takes the group's.
        wait_all_ranks: Name all missing ranks, not only the first.

    Raises:
        RuntimeError: It names the missing ranks on rank 0; on the others, rank 0 did not answer.
    """
    given = None if timeout is None else bounded(timeout)
    chosen = group_of(group)
    limit = backend_of(chosen).options._timeout if given is None else given
    chosen.monitored_barrier(limit, wait_all_ranks=wait_all_ranks)  # type: ignore[attr-defined]


def set_timeout(timeout: timedelta, group: ProcessGroup | None = None) -> None:
    """Set the group's timeout for operations that start from now on, on this rank.

    torch's own function supports Gloo and NCCL only; for any other backend it warns and does
    nothing.

    Args:
        timeout: The new timeout, limited to a year.
        group: None is the default group.

    Raises:
        ValueError: The group is another backend's, or this rank is not a member of it.
    """
    limit = bounded(timeout)
    backend_of(group_of(group))._set_default_timeout(limit)


def sequence_number(group: ProcessGroup | None = None) -> int:
    """Return how many collectives this rank has started in the group; equal on ranks in step.

    "all_reduce #3" in errors and last_operations() is the group's third collective.
    ProcessGroup._get_sequence_number_for_group() refuses all but torch's own backends.

    Args:
        group: None is the default group.

    Raises:
        ValueError: The group is another backend's, or this rank is not a member of it.
    """
    return backend_of(group_of(group))._get_sequence_number_for_group()


def last_operations(group: ProcessGroup | None = None) -> list[LastOperation]:
    """Return the last 128 operations of the group on this rank, oldest first.

    On the group's first failure the last 16 are written to torch's log.

    Args:
        group: None is the default group.

    Raises:
        ValueError: The group is another backend's, or this rank is not a member of it.
    """
    return backend_of(group_of(group)).last_operations()


def bounded(timeout: object) -> timedelta:
    """Return the timeout, or the longest that C++ accepts; TypeError for any other type."""
    if not isinstance(timeout, timedelta):
        raise TypeError(f"timeout={timeout!r} is a {type(timeout).__name__}, not a timedelta")
    return min(timeout, _LONGEST)


def group_of(group: ProcessGroup | None) -> ProcessGroup:
    """Return the group, or the default one for None; ValueError if there is none to use."""
    chosen = dist.group.WORLD if group is None else group
    if chosen is None:
        raise ValueError("init_process_group() has not been called")
    if not isinstance(chosen, dist.ProcessGroup):
        raise ValueError("this process is not a member of the group")
    return chosen


def backend_of(group: ProcessGroup) -> BackendPart:
    """Return this backend's part of a group, without the wrapper of TORCH_DISTRIBUTED_DEBUG."""
    part = group._get_backend(torch.device("cpu"))
    backend = cast("BackendPart", getattr(part, "wrapped_pg", part))
    if backend.name() != BACKEND_NAME:
        raise ValueError(f"the group's CPU tensors are {backend.name()}'s, not {BACKEND_NAME}'s")
    return backend
