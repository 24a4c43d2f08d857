"""The exceptions of Horovod's API."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective failed: ranks disagree on it, a peer died, or a rank has shut down.

    Elastic training restores the last committed state on it.

    Example:
        >>> issubclass(HorovodInternalError, RuntimeError)
        True
    """


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - Horovod's name
    """The set of hosts of an elastic job has changed.

    Attributes:
        skip_sync: Whether the state need not be synchronised: hosts were only removed.

    Example:
        >>> HostsUpdatedInterrupt(skip_sync=True).skip_sync
        True
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync
