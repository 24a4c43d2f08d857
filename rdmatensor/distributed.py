"""The torch.distributed backend: making a group, and inspecting it.

`init_process_group("rdmatensor")` calls create(). All groups of a process share its context.

The first group changes what else happens in the process:

- malloc keeps large blocks: its thresholds are raised, for all libraries of the process.
- DistributedDataParallel's buckets and gradients, and the buffers of pipeline stages, are allocated
  in the arena: functions of torch are wrapped for it.
- Each rank records its operations and finds the step that repeats.

RDMATENSOR_HOOKS=0, or `pg_options=rdmatensor.Options(hooks=False)`, turns all of it off;
RDMATENSOR_ADOPT=0 the first two, RDMATENSOR_PLAN=off the last.

torch.distributed refuses some functions to every backend but Gloo or NCCL, by name:
monitored_barrier(), set_timeout(), sequence_number(), split_group() and the bf16 hooks are here.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, cast

import torch.distributed as dist
from torch._C import _distributed_c10d as torch_c10d

from rdmatensor._backend import BACKEND_NAME
from rdmatensor._backend.extension import load_extension, tie_to_context
from rdmatensor._backend.groups import LastOperation, backend_of, bounded, group_of
from rdmatensor._backend.rendezvous import open_and_meet
from rdmatensor._observe.brief import brief_of_process, why_of
from rdmatensor._observe.describe_text import text_of
from rdmatensor._record import names, recorder
from rdmatensor._torch import adopt
from rdmatensor._torch.hooks import bf16_hook, bf16_wrapper
from rdmatensor._torch.split import split_group
from rdmatensor.config import Options
from rdmatensor.context import default_context
from rdmatensor.state import CollectivesState, EndpointState, Peer, ProcessState

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, ProcessGroup, _DistributedBackendOptions

__all__ = [
    "LastOperation",
    "Peer",
    "bf16_hook",
    "bf16_wrapper",
    "create",
    "describe",
    "describe_text",
    "last_operations",
    "monitored_barrier",
    "sequence_number",
    "set_timeout",
    "split_group",
]


def create(options: _DistributedBackendOptions, backend_options: object = None) -> Backend:
    """Make the backend of one group; torch calls it on every member.

    Blocks until rank 0 of the group has come; for the process's first group, if the launcher did
    not say whether all ranks share a host, until all have. Bounded by the group's timeout.

    Args:
        options: What torch knows of the group.
        backend_options: `pg_options` of the group: rdmatensor.Options, torch's own options, which
            have no effect, or None.

    Returns:
        The backend.

    Raises:
        ImportError: The package has no module for the torch that runs, and compiling it failed; or
            that torch is older than 2.11.
        InvalidArgumentError: A setting is wrong, or the process's context has another value.
        TypeError: The options are another backend's.
        DistBackendError: Another rank failed, or did not come.
        DistStoreError: The store is gone.

    Example:
        >>> import torch.distributed as dist  # doctest: +SKIP
        >>> dist.init_process_group("rdmatensor")  # calls it  # doctest: +SKIP
    """
    c10d = load_extension()
    chosen = backend_options if isinstance(backend_options, Options) else None
    known = Options | torch_c10d.Backend.Options | None
    if not isinstance(backend_options, known):
        raise TypeError(
            f"the backend {BACKEND_NAME!r} takes no options of type "
            f"{type(backend_options).__name__}: give it rdmatensor.Options, or set RDMATENSOR_* "
            "variables"
        )
    timeout = options.timeout
    rank, size = options.group_rank, options.group_size
    meet = partial(c10d.Rendezvous, options.store, rank, size, timeout)
    context, rendezvous = open_and_meet(meet, size, chosen)
    tie_to_context(c10d, context)
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
        recorder.mark_steps(c10d)
    if has_hooks:
        adopt.install(context, on_module=names.know)
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


def describe(group: ProcessGroup | None = None) -> ProcessState:
    """Return the live state of this process: its context, how each member is reached, and why.

    Args:
        group: The group whose members, collectives and step are described; None is the default one.

    Returns:
        A dictionary; rdmatensor.state.ProcessState documents each key.

    Raises:
        ValueError: The group has no rdmatensor backend, or this process is not a member.

    Example:
        >>> describe()["collectives"]["way"]
        'undecided'
    """
    context = default_context()
    state = cast("ProcessState", context.describe())
    members = _members(group) if dist.is_initialized() else []
    endpoints = state["endpoints"]
    state["peers"] = [_peer(rank, endpoints) for rank in members if rank != dist.get_rank()]
    state["adopted"] = adopt.adopted()
    state["not_adopted"] = adopt.not_adopted(context.settings)
    state["gradients"] = adopt.gradients()
    if dist.is_initialized():
        backend = backend_of(group_of(group))
        found = {
            **backend._counters(),
            **json.loads(backend._collectives()),
            "persistent": backend._bindings(),
        }
        state["collectives"] = cast("CollectivesState", found)
        if members:
            state["plan"] = recorder.describe(backend)
    return state


def describe_text(group: ProcessGroup | None = None, *, verbose: bool = False) -> str:
    """Return the state of this process for a person.

    Args:
        group: As for describe().
        verbose: Return all of describe() as lines; otherwise version, transports, peers, memory,
            the algorithms of the group's collectives, and what went wrong.

    Returns:
        Lines of text.

    Raises:
        ValueError: As describe().

    Example:
        >>> print(describe_text())
        rdmatensor ..., process ...
        ...
    """
    state = describe(group)
    return text_of(state) if verbose else brief_of_process(state)


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


def _peer(rank: int, endpoints: list[EndpointState]) -> Peer:
    of_rank = [endpoint for endpoint in endpoints if endpoint["rank"] == rank]
    if not of_rank:
        return Peer(rank=rank, path="none", reason="nothing was sent or received yet")
    # A rank that was restarted has the endpoints of its predecessors too.
    ready = [endpoint for endpoint in of_rank if endpoint["state"] == "ready"]
    endpoint = (ready or of_rank)[-1]
    return Peer(rank=rank, path=endpoint["path"], reason=why_of(endpoint))


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

    Example:
        >>> monitored_barrier(timeout=timedelta(seconds=30), wait_all_ranks=True)
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

    Example:
        >>> set_timeout(timedelta(seconds=30))
    """
    limit = bounded(timeout)
    backend_of(group_of(group))._set_default_timeout(limit)


def sequence_number(group: ProcessGroup | None = None) -> int:
    """Return how many collectives this rank has started in the group; equal on ranks in step.

    "all_reduce #3" in errors and last_operations() is the group's third collective.
    ProcessGroup._get_sequence_number_for_group() refuses all but torch's own backends.

    Args:
        group: None is the default group.

    Returns:
        The number of collectives.

    Raises:
        ValueError: The group is another backend's, or this rank is not a member of it.

    Example:
        >>> before = sequence_number()
        >>> torch.distributed.barrier()
        >>> sequence_number() - before
        1
    """
    return backend_of(group_of(group))._get_sequence_number_for_group()


def last_operations(group: ProcessGroup | None = None) -> list[LastOperation]:
    """Return the last operations of the group on this rank, at most 128, oldest first.

    On the group's first failure the last 16 are written to torch's log.

    Args:
        group: None is the default group.

    Returns:
        One entry for each operation.

    Raises:
        ValueError: The group is another backend's, or this rank is not a member of it.

    Example:
        >>> torch.distributed.barrier()
        >>> last_operations()[-1]["operation"]
        'rdmatensor:barrier'
    """
    return backend_of(group_of(group)).last_operations()
