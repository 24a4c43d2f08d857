"""The errors of this package, as exceptions.

Local fault and remote fault are never one class: InvalidArgumentError is the caller's, PeerError
the other side's. Each message says what happened, with which values, and what to try.
"""

from __future__ import annotations

RANK_UNKNOWN = -1


class RdmaTensorError(Exception):
    """Base of every exception that this package raises on purpose.

    code: the C library's status by name, for example "RDT_EPEER"; call: the operation that failed;
        detail: the message; rank: global rank at fault, or -1 if unknown.
    """

    rank = RANK_UNKNOWN

    def __init__(self, code: str, call: str, detail: str) -> None:
        # Not super(): subclasses that are OSErrors too would take the three for errno and text.
        Exception.__init__(self, code, call, detail)
        self.code = code
        self.call = call
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.detail} [{self.call}: {self.code}]"


class InvalidArgumentError(RdmaTensorError, ValueError):
    """An argument is wrong; the message names it, with its value."""


class OutOfMemoryError(RdmaTensorError, MemoryError):
    """A limit on memory was hit; the message has the line that lifts it."""


class TransferTimeoutError(RdmaTensorError, TimeoutError):
    """The deadline passed. The operation may still end; its buffers stay in use until then."""


class ClosedError(RdmaTensorError):
    """The object was closed on this side."""


class CanceledError(RdmaTensorError):
    """The operation was cancelled on this side before it was done."""


class BusyError(RdmaTensorError):
    """The object still has live children or operations in flight."""


class NotSupportedError(RdmaTensorError):
    """This path or this build cannot do it."""


class TransportNotViableError(RdmaTensorError):
    """A transport cannot be used here; the message says why."""


class ForkedProcessError(RdmaTensorError):
    """Called in a forked child, which must open a Context of its own in a fresh process."""


class MismatchError(RdmaTensorError):
    """Both sides disagree on the description of a slot, a message or a collective."""


class StaleRegionError(RdmaTensorError):
    """The remote region was freed by its owner; ask the owner for a new one."""


class DeviceError(RdmaTensorError):
    """The operating system refused a call; see sys_errno."""

    sys_errno = 0


class CompletionError(DeviceError):
    """A NIC reported a failed work request; see wc_status and vendor_err."""

    wc_status = 0
    vendor_err = 0


class PeerError(RdmaTensorError):
    """A peer died, left, or cannot be reached; rank is its global rank, or -1 where unknown."""


class ProtocolError(PeerError):
    """A peer sent bytes that break the protocol."""


class CorruptedDataError(PeerError):
    """Other bytes arrived than were sent; the message names the operation, peer, path and place.

    Raised only if RDMATENSOR_VERIFY is set. rank is the peer's; the path, a NIC or memory may be at
    fault as well as its process. The connection is given up.
    """


class AuthenticationError(PeerError):
    """A peer could not prove that it knows the job's secret."""


class VersionMismatchError(PeerError):
    """The peer runs another version of the protocol or the library; the message names both."""


class PlanMismatchError(RdmaTensorError, RuntimeError):
    """The model is not the one that the plan was made from; the message names the tensor."""

    def __init__(self, detail: str) -> None:
        super().__init__("RDT_EMISMATCH", "plan", detail)

    def __str__(self) -> str:
        return self.detail  # the ranks of a group send it to each other

    def __reduce__(self) -> tuple[type[PlanMismatchError], tuple[str], dict[str, object]]:
        return type(self), (self.detail,), self.__dict__


class InternalError(RdmaTensorError):
    """An invariant of this library is broken: please report it with the message."""
