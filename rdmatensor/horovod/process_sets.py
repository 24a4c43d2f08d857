"""Process sets: subsets of the ranks that run collectives among themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rdmatensor.horovod import _runtime


class ProcessSet:
    """Ranks that run collectives together; used once it is given to init() or add_process_set().

    Attributes:
        ranks: The global ranks, sorted; None for the global set before init().
        process_set_id: Its number, or None before it is registered and after it is removed.

    Example:
        >>> ProcessSet([1, 0]).ranks
        [0, 1]
    """

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        if not isinstance(ranks_or_comm, Iterable):
            raise ValueError(
                f"expected a list of ranks, not a {type(ranks_or_comm).__name__}: MPI "
                "communicators are not supported"
            )
        ranks = list(ranks_or_comm)
        if any(isinstance(rank, bool) or not isinstance(rank, int) for rank in ranks):
            raise ValueError(f"ranks {ranks} are not all integers")
        self.ranks: list[int] | None = sorted(ranks)
        self.process_set_id: int | None = None

    def size(self) -> int | None:
        """Return the number of ranks; None before it is registered."""
        return None if self.process_set_id is None else len(self._members())

    def rank(self) -> int | None:
        """Return this process's rank in the set; None before it is registered.

        Collectives take global ranks all the same: broadcast()'s root_rank is one.

        Raises:
            ValueError: This process is not in the set.
        """
        if self.process_set_id is None:
            return None
        members, own = self._members(), _runtime.controller().rank
        if own not in members:
            raise ValueError(f"rank {own} is not in the process set {members}")
        return members.index(own)

    def included(self) -> bool | None:
        """Return whether this process is in the set; None if its ranks are unknown."""
        if self.ranks is None:
            return None
        return _runtime.controller().rank in self.ranks

    def _members(self) -> Sequence[int]:
        found = _runtime.controller().ranks.get(self.process_set_id or 0)
        if found is None:
            raise ValueError(f"{self} is not registered since the last hvd.init()")
        return found

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


global_process_set = ProcessSet([])
global_process_set.process_set_id, global_process_set.ranks = 0, None


def register_all(sets: Sequence[ProcessSet]) -> None:
    """Register sets at init(), in their order."""
    global_process_set.ranks = list(range(_runtime.controller().size))
    for one in sets:
        if one.ranks == global_process_set.ranks:
            one.process_set_id = None  # a clone of the global set
        else:
            _add(one)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set after init(); all ranks call this with the same set.

    Args:
        process_set: The set, or its global ranks.

    Returns:
        The set, ready for use.

    Raises:
        ValueError: init() was not called, or not with process_sets="dynamic" and without
            HOROVOD_DYNAMIC_PROCESS_SETS=1; a set of these ranks exists; a rank is outside
            the job.
        HorovodInternalError: Ranks disagree on the set.

    Example:
        >>> even = add_process_set([0, 2])  # doctest: +SKIP
        >>> even.size()  # doctest: +SKIP
        2
    """
    one = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    _check_dynamic("add")
    _add(one)
    return one


def _add(one: ProcessSet) -> None:
    controller = _runtime.controller()
    ranks = one.ranks or []
    if (
        not ranks
        or len(set(ranks)) < len(ranks)
        or not 0 <= ranks[0] <= ranks[-1] < controller.size
    ):
        raise ValueError(f"ranks {ranks} must be distinct ranks from 0 to {controller.size - 1}")
    if tuple(ranks) in controller.ranks.values():
        raise ValueError(f"a process set of ranks {ranks} exists already")
    name = _runtime.full_name(0, "add_process_set", None)
    found = _runtime.agree("add_process_set", name, {"ranks": ranks})
    assert isinstance(found, int)
    one.process_set_id = found


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set; all ranks call this with the same set.

    Args:
        process_set: The set, which cannot be used afterwards.

    Returns:
        False for the global set and for sets that are not registered.

    Raises:
        ValueError: As add_process_set().
        HorovodInternalError: Ranks disagree on the set.

    Example:
        >>> remove_process_set(global_process_set)
        False
    """
    set_id = process_set.process_set_id
    if not set_id:
        return False
    _check_dynamic("remove")
    process_set.process_set_id = None
    ranks = _runtime.controller().ranks.get(set_id)
    if ranks is None:
        return False
    name = _runtime.full_name(0, "remove_process_set", None)
    _runtime.agree("remove_process_set", name, {"ranks": list(ranks), "id": set_id})
    return True


def _check_dynamic(verb: str) -> None:
    if not _runtime.runtime().is_dynamic:
        raise ValueError(
            f"to {verb} process sets after hvd.init(), set HOROVOD_DYNAMIC_PROCESS_SETS=1 or call "
            'hvd.init(process_sets="dynamic")'
        )
