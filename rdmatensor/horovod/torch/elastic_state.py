"""What survives a change of ranks, and the loop that survives it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import torch
import torch.distributed as dist

import rdmatensor.horovod.torch as hvd
from rdmatensor.horovod.elastic import worker
from rdmatensor.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="State")


class State:
    """What ranks keep between commits; subclasses say what that is.

    Example:
        >>> state = ObjectState(epoch=0)
        >>> state.commit()
    """

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Have functions called after each change of ranks, such as one that scales the rate.

        Args:
            callbacks: Called without arguments, in this order.

        Example:
            >>> ObjectState().register_reset_callbacks([lambda: None])
        """
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Adapt to the new ranks; run() calls it.

        Example:
            >>> ObjectState().on_reset()
        """
        self.reset()
        for one in self._callbacks:
            one()

    def commit(self) -> None:
        """Save, then check for changed hosts: training may go on from here.

        Raises:
            HostsUpdatedInterrupt: The hosts have changed; run() handles it.

        Example:
            >>> ObjectState(batch=3).commit()
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt on all ranks if rank 0 sees another set of hosts.

        Raises:
            HostsUpdatedInterrupt: The hosts have changed; run() handles it.

        Example:
            >>> ObjectState().check_host_updates()
        """
        if not worker.is_elastic():
            return
        seen = torch.tensor([int(hvd.rank() == 0 and worker.has_changed())])
        if int(hvd.broadcast(seen, 0, name="elastic.hosts")) != 0:
            # The new ranks agree on it: if one is new, it cannot skip.
            raise HostsUpdatedInterrupt(skip_sync=True)

    def save(self) -> None:
        """Keep what restore() brings back.

        Example:
            >>> ObjectState(batch=3).save()
        """
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the last save().

        Example:
            >>> ObjectState(batch=3).restore()
        """
        raise NotImplementedError

    def sync(self) -> None:
        """Take rank 0's state, on all ranks.

        Example:
            >>> ObjectState(batch=3).sync()
        """
        raise NotImplementedError

    def sync_shares(self) -> None:
        """Exchange what each rank has of its own, where sync() is skipped.

        Example:
            >>> ObjectState().sync_shares()
        """

    def reset(self) -> None:
        """Forget what depends on the ranks.

        Example:
            >>> ObjectState().reset()
        """


class ObjectState(State):
    """Attributes that can be pickled.

    Args:
        **kwargs: Names and first values.

    Example:
        >>> ObjectState(epoch=0, batch=0).epoch
        0
    """

    def __init__(self, **kwargs: object) -> None:
        super().__init__()
        self._saved = copy.deepcopy(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - for type checkers: any attribute
        raise AttributeError(f"the state has no attribute {name!r}")

    def save(self) -> None:
        """Keep copies of the attributes.

        Example:
            >>> ObjectState(batch=3).save()
        """
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._saved}

    def restore(self) -> None:
        """Set the attributes to the copies.

        Example:
            >>> ObjectState(batch=3).restore()
        """
        self._assign()

    def _assign(self) -> None:
        for name, value in copy.deepcopy(self._saved).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Take rank 0's attributes.

        Example:
            >>> ObjectState(batch=3).sync()
        """
        mine = {name: getattr(self, name) for name in self._saved}
        self._saved = hvd.broadcast_object(mine, 0, name="elastic.objects")
        self._assign()  # not restore(): a subclass would go back with all that it has


def run(function: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Have a training function go on after ranks died or came.

    Args:
        function: Called as function(state, ...); it is called again after each change, and goes on
            from the state, which is the last commit's if a rank died.

    Returns:
        The function to call, after init().

    Example:
        >>> @run
        ... def train(state):
        ...     return state.epoch
        >>> train(ObjectState(epoch=3))
        3
    """

    @functools.wraps(function)
    def wrapped(state: S, *args: P.args, **kwargs: P.kwargs) -> R:
        skips = False
        while True:
            try:
                if skips:
                    state.sync_shares()
                else:
                    state.sync()
                return function(state, *args, **kwargs)
            except HorovodInternalError:
                if not worker.is_elastic():
                    raise
                worker.report_failure()
                state.restore()
                skips = False
            except HostsUpdatedInterrupt as change:
                skips = change.skip_sync
            skips = _meet(skips)
            state.on_reset()

    return cast("Callable[Concatenate[S, P], R]", wrapped)


def _meet(would_skip: bool) -> bool:
    """Leave the old ranks and meet the new; return whether all skip the next sync()."""
    while True:
        worker.wish_to_skip(would_skip)
        hvd.shutdown()
        try:
            hvd.init()
        except (HorovodInternalError, RuntimeError) as error:
            # A rank died while all met: the launcher has another epoch.
            if "HOROVOD_ELASTIC_TIMEOUT" in str(error):
                raise
            worker.report_failure()
            if dist.is_initialized():
                dist.destroy_process_group()
            would_skip = False
            continue
        return worker.skips_sync()


worker.install()
