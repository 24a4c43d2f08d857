"""Plain values that the other modules share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TransportName = Literal["auto", "shm", "tcp", "verbs"]
SlotKind = Literal["static", "bounded", "dynamic"]
# A string: this module is imported where numpy is not.
Array: TypeAlias = "NDArray[np.generic]"
ReduceOp = Literal["sum", "avg", "product", "min", "max", "band", "bor", "bxor"]


class NamedOp(Protocol):
    """A reduction of another library, by its name: torch.distributed.ReduceOp.SUM is one."""

    @property
    def name(self) -> str:
        """The name of the reduction, in any case."""


ReduceOpLike: TypeAlias = "ReduceOp | NamedOp"

# The order is that of RDT_BOOL ... RDT_C128 in the C header; a test compares them.
DTYPE_NAMES = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)


class TorchDType(Protocol):
    """The part of torch.dtype that is used."""

    @property
    def is_floating_point(self) -> bool:
        """Whether it is a floating dtype."""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""


class TorchTensor(Protocol):
    """The part of torch.Tensor that is used: tensors are accepted without importing torch."""

    @property
    def shape(self) -> Sequence[int]:
        """Sizes of the dims."""

    def data_ptr(self) -> int:
        """Address of the first element."""

    def is_contiguous(self) -> bool:
        """Whether the elements lie row-major without gaps."""

    def element_size(self) -> int:
        """Bytes of one element."""

    def numel(self) -> int:
        """Count of the elements."""


# A name such as "bfloat16", or a dtype of numpy or torch, such as np.float32 or torch.float32.
DTypeLike: TypeAlias = "str | np.dtype[np.generic] | type[np.generic] | TorchDType"

# numpy arrays, objects with the buffer protocol, and CPU torch tensors.
TensorLike: TypeAlias = "Array | bytes | bytearray | memoryview | TorchTensor"


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since a context was opened. Bytes are payload unless something else is said.

    Attributes:
        writes: One-sided writes posted.
        reads: One-sided reads posted.
        notifications: Notifications received.
        moved_bytes: Payload that a transport moved into its final place.
        copied_bytes: Other passes over payload.
        control_messages: Messages with an address, a shape or a request that were sent.
        credits_alone: Credits that rode on no data.
        registrations: Regions registered or allocated.
        wakeups_sent: System calls made only to wake a sleeping peer.
        wire_bytes: Bytes handed to sockets, with headers, and to RDMA devices.
        mailbox_eager: Messages sent through an eager ring.
        mailbox_rendezvous: Messages whose payload the receiver fetched, or was given in
            place.
        verified_bytes: Payload that was compared with its sender's sums.
        mismatches: Comparisons that found other bytes than were sent.
        registered_bytes: Memory registered with RDMA devices, for each device and kind of
            access.
        failovers: Peers that moved to tcp because the path over RDMA was lost.
        mailbox_placed: Messages written at once where their receive stood.
        shm_bytes: Of moved_bytes, through shared memory.
        tcp_bytes: Of moved_bytes, over tcp.
        verbs_bytes: Of moved_bytes, over RDMA devices.
        planned_bytes: Of moved_bytes, to or from a place that was known before.
        dynamic_bytes: Of moved_bytes, where place or size was sent for it alone.
        control_bytes: Of moved_bytes, what carries no payload.
        fallback_bytes: Payload over a worse path than the pair should have had, or past its
            place.
        reconnections: Paths to a process that another path had reached before.
        side_channel_bytes: Frames on the side channels to peers, which no transport moves.
        planned_copied_bytes: Of copied_bytes, for traffic whose place was known before.
        dynamic_copied_bytes: Of copied_bytes, for traffic whose place or size was sent for
            it.
        planned_control_messages: Of control_messages, for traffic whose place was known
            before.
        dynamic_control_messages: Of control_messages, for traffic whose place or size was
            sent.
        registration_s: Time taken to register memory with RDMA devices, and to deregister
            it.
        wait_s: Time that threads spent waiting for transfers, for data and for room at
            peers.
    """

    writes: int
    reads: int
    notifications: int
    moved_bytes: int
    copied_bytes: int
    control_messages: int
    credits_alone: int
    registrations: int
    wakeups_sent: int
    wire_bytes: int
    mailbox_eager: int
    mailbox_rendezvous: int
    verified_bytes: int
    mismatches: int
    registered_bytes: int
    failovers: int
    mailbox_placed: int
    shm_bytes: int
    tcp_bytes: int
    verbs_bytes: int
    planned_bytes: int
    dynamic_bytes: int
    control_bytes: int
    fallback_bytes: int
    reconnections: int
    side_channel_bytes: int
    planned_copied_bytes: int
    dynamic_copied_bytes: int
    planned_control_messages: int
    dynamic_control_messages: int
    registration_s: float
    wait_s: float
