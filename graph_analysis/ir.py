"""The intermediate representation: one training step as plain values, and the facts about it.

Capture produces a Graph; each pass turns a Graph into facts of the types below; the plan stores
them. Time is counted in operations: operation k runs at time k, and time len(ops) is the
optimizer step, which reads every gradient. Nothing here needs torch.
"""

from dataclasses import dataclass
from typing import Literal

Role = Literal[
    "parameter",  # trainable or frozen, lives across steps
    "buffer",  # module state without a gradient, lives across steps
    "constant",  # tensor baked into the graph
    "input",
    "activation",  # made up to and including the loss
    "loss",
    "backward",  # made after the loss, but not a parameter's gradient
    "gradient",  # of one parameter, read by the optimizer
]
TensorClass = Literal["static", "bounded", "dynamic"]
Phase = Literal["setup", "forward", "backward"]
Source = Literal[
    "joint_graph",  # forward and backward, whole
    "pieces",  # what torch.compile made of the step between its graph breaks
    "module",  # the module's own tensors alone
    "recorded",  # recorded by a communication backend in the first steps
]
Loss = Literal["loss_fn", "output_sum"]
Operation = Literal[
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send",  # the root to the other member of its group
    "push",  # every other member to the root, each into its own place
    "pull",  # the root to every other member
    "reduce",  # the sum of all to the root
    "gather",  # every member's own value to the root
    "scatter",  # the root to each member its own value
]
# Operations in which one member of the group, the root, has a special part.
ROOTED: frozenset[Operation] = frozenset(
    {"broadcast", "send", "push", "pull", "reduce", "gather", "scatter"}
)

# Enough for a cache line and for AVX-512 loads; also what torch's CPU allocator gives.
DEFAULT_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Symbol:
    """An unknown size. upper None means that nothing bounds it.

    source is the input that carries it and dim the dimension there; where the size depends on
    data, source is the operation that computes it and dim is None.
    """

    name: str
    lower: int
    upper: int | None
    source: str
    dim: int | None


@dataclass(frozen=True, slots=True)
class SymbolicDim:
    """A dimension that is an expression over symbols, with its largest and its traced value."""

    expr: str
    symbols: tuple[str, ...]
    upper: int | None
    example: int | None


Dim = int | SymbolicDim


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the step. A view names the value whose memory it shares in alias_of.

    producer is the index of the operation that makes it, None for what exists before the step.
    ready is set for gradients only: the operation after which the value is final. of is the
    parameter that a gradient belongs to.
    """

    name: str
    role: Role
    dtype: str
    item_bytes: int
    shape: tuple[Dim, ...]
    producer: int | None = None
    alias_of: str | None = None
    ready: int | None = None
    of: str | None = None

    @property
    def ready_op(self) -> int:
        """Index of the operation after which the value can be sent, -1 if it always can."""
        if self.ready is not None:
            return self.ready
        return -1 if self.producer is None else self.producer


@dataclass(frozen=True, slots=True)
class Collective:
    """The part of an operation that is a collective. root is a member's rank, or None.

    group is the name of its process group in the graph; ranks are global ones.
    """

    operation: Operation
    group: str
    ranks: tuple[int, ...]
    root: int | None


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: the names of the values that it reads and makes.

    constants is the text of the arguments that are no tensors, with None for a tensor. flops and
    moved_bytes are those of the traced example; flops is 0 for an operation without products.
    moved_bytes: of what it reads and makes, without views. unit is the module that it belongs to.
    """

    name: str
    target: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    collective: Collective | None = None
    constants: str = ""
    flops: int = 0
    moved_bytes: int = 0
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Omission:
    """Something that capture could not see, and that the plan therefore does not claim."""

    subject: str
    reason: str


@dataclass(frozen=True, slots=True)
class Graph:
    """A captured step. Values precede their aliases, and ops are in execution order.

    source "module" means that only parameters and buffers are known, see omissions. captured_with
    names the tool and its version.
    """

    symbols: tuple[Symbol, ...]
    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    omissions: tuple[Omission, ...]
    source: Source
    loss: Loss
    captured_with: str


@dataclass(frozen=True, slots=True)
class Lifetime:
    """First and last use of a tensor's memory, in operations, both inclusive."""

    first_use: int
    last_use: int


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that communicate together."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor that leaves its rank. root is a rank if the operation has one, else None.

    result is the tensor that a collective of the graph makes, None if the outcome is in tensor
    itself (or, at the other end of a send, push or pull, under the same name).
    """

    tensor: str
    operation: Operation
    phase: Phase
    group: str
    root: int | None
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Home:
    """Ranks that do the same work, so that one arena's layout serves them all."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stay:
    """A crossing tensor's place in the memory of one home.

    origin is the rank whose value is there, None for the rank's own or the group's common one: a
    parameter server keeps a place for each worker's gradient.
    """

    home: str
    tensor: str
    origin: int | None
    lifetime: Lifetime


@dataclass(frozen=True, slots=True)
class CostModel:
    """Assumed costs of a message and an operation. All integers, so plans are exact.

    The defaults are assumptions, not measurements: 10 Gbit/s Ethernet with 50 us for a message
    through torch.distributed, 5 us to dispatch an eager CPU operation, 10 GB/s of memory traffic.
    They decide how gradients are bucketed, never what is sent.
    """

    latency_ns: int = 50_000
    bandwidth_bytes_per_s: int = 1_250_000_000
    op_ns: int = 5_000
    memory_bytes_per_s: int = 10_000_000_000


DEFAULT_COST = CostModel()


@dataclass(frozen=True, slots=True)
class SlotPolicy:
    """When a bounded tensor gets no slot of its maximum size and counts as dynamic.

    That is when the slot would take more than bounded_share_percent of the arena. The arena is
    assumed to have arena_bytes, or the bytes of the static tensors if those are more. The default
    arena is an assumption: a gibibyte is a small part of the memory of a training machine.
    """

    arena_bytes: int = 1 << 30
    bounded_share_percent: int = 25


DEFAULT_POLICY = SlotPolicy()


@dataclass(frozen=True, slots=True)
class Message:
    """A tensor that waits to be sent: its place in a bucket takes span_bytes, padding included."""

    tensor: str
    dtype: str
    span_bytes: int
    ready_ns: int


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes that are needed from operation first_use to last_use, both inclusive."""

    name: str
    size_bytes: int
    lifetime: Lifetime


def align_up(size_bytes: int, alignment_bytes: int) -> int:
    """The smallest multiple of alignment_bytes that is at least size_bytes."""
    return -(-size_bytes // alignment_bytes) * alignment_bytes
