"""split_group(): groups of a parent's ranks, made by the parent's members only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch.distributed as dist
from torch.distributed import distributed_c10d as torch_groups

from rdmatensor._backend import BACKEND_NAME
from rdmatensor._backend.groups import backend_of, bounded, group_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_calls: Counter[int] = Counter()  # of split_group(), by the parent's number


def split_group(
    split_ranks: Sequence[Sequence[int]],
    group: ProcessGroup | None = None,
    *,
    timeout: timedelta | None = None,
) -> ProcessGroup | None:
    """Do what torch.distributed.split_group() does, which requires a group bound to an accelerator.

    Collective over `group`, the parent: each member calls it with the same lists.

    Args:
        split_ranks: Disjoint lists of ranks in the parent.
        group: The parent; None is the default group.
        timeout: Of the new groups; None takes the parent's.

    Returns:
        The new group that has this rank, or None if no list does.

    Raises:
        ValueError: Lists overlap, or name a rank that the parent lacks.

    Example:
        >>> part = split_group([[0]])
        >>> part.size()
        1
    """
    parent = group_of(group)
    limit = bounded(backend_of(parent).options._timeout if timeout is None else timeout)
    named = [rank for ranks in split_ranks for rank in ranks]
    size = parent.size()
    if len(set(named)) != len(named) or any(not 0 <= rank < size for rank in named):
        raise ValueError(
            f"split_ranks={[list(ranks) for ranks in split_ranks]}: each of the parent's ranks "
            f"0 to {size - 1} may be named once, no other at all"
        )
    number = backend_of(parent).number
    _calls[number] += 1
    for index, ranks in enumerate(split_ranks):
        if parent.rank() in ranks:
            name = f"{parent.group_name}/split {_calls[number]}.{index}"
            return _new_group(parent, ranks, name, limit)
    return None


def _new_group(
    parent: ProcessGroup, ranks: Sequence[int], name: str, timeout: timedelta
) -> ProcessGroup:
    """Do what dist.new_group() does on the members only, under a name of rdmatensor's.

    torch's own name for such a group counts the groups of each process, and members of different
    groups have different counts.
    """
    of_parent = dist.get_process_group_ranks(parent)
    members = sorted(of_parent[rank] for rank in ranks)
    default = dist.group.WORLD
    assert default is not None  # it has a parent
    _, store = torch_groups._world.pg_map[default]
    made, _ = torch_groups._new_process_group_helper(
        len(members),
        members.index(dist.get_rank()),
        members,
        dist.Backend(BACKEND_NAME),
        store,
        cast("Any", name),  # a GroupName, which older torches do not have
        timeout=timeout,
    )
    torch_groups._world.pg_group_ranks[made] = {rank: place for place, rank in enumerate(members)}
    return cast("ProcessGroup", made)
