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
    """Totals since a context was opened; struct rdt_counters in rdmatensor.h documents each."""

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
