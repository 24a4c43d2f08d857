"""The transfer plan: everything that is known of a step's transfers before the step runs.

Plans are values. plan_json stores them, plan_check refuses contradictions. Offsets are bytes
from the start of an arena; times are operation indices, or ns where the name says so.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from math import prod

from graph_analysis.ir import (
    CostModel,
    Crossing,
    Group,
    Loss,
    Omission,
    Operation,
    Phase,
    Role,
    SlotPolicy,
    Source,
    Symbol,
    TensorClass,
)


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor that owns memory, or a view that crosses ranks and so needs memory of its own.

    shape holds integers, or expressions over plan.symbols. size_bytes is None unless kind is
    static. max_bytes is None if nothing bounds the size; a dynamic tensor that has one would take
    more of the arena than plan.policy allows. symbols and inputs say what makes it bounded or
    dynamic. producer is the operation that makes it, None for what exists before the step. view_of
    is the tensor whose memory a view shows, None for all others. ready_order numbers the gradients
    as they become ready, parameter is the one that a gradient belongs to. homes names the arenas of
    the ranks that hold it; empty means all.
    """

    name: str
    role: Role
    dtype: str
    item_bytes: int
    shape: tuple[int | str, ...]
    kind: TensorClass
    size_bytes: int | None
    max_bytes: int | None
    symbols: tuple[str, ...]
    inputs: tuple[str, ...]
    producer: str | None
    first_use: int
    last_use: int
    view_of: str | None
    ready_order: int | None
    parameter: str | None
    homes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """The place of a bucket's members, side by side, in one arena.

    origin is the rank whose values are there, None for the ranks' own (and for what a send, pull or
    collective leaves there).
    """

    arena: str
    origin: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class PlannedBucket:
    """Tensors that are sent in one message, side by side in the order given.

    payload_bytes counts the tensors, span_bytes also the alignment gaps between them, which the
    message carries and whose content is undefined. places has one entry for each arena and origin:
    a data-parallel bucket has a single one, a send one at its source and one at its target, a push
    one at the workers and one for each worker at the shard. The times are those of the cost model.
    """

    operation: Operation
    phase: Phase
    group: str
    root: int | None
    dtype: str
    tensors: tuple[str, ...]
    payload_bytes: int
    span_bytes: int
    places: tuple[BucketPlace, ...]
    ready_ns: int
    start_ns: int
    finish_ns: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A tensor's place in an arena, and the first and last operation that need it.

    A rank that lets a peer write there waits until all earlier tensors in the same bytes are dead
    on that rank: last_use counts the operations of these ranks alone.
    """

    tensor: str
    origin: int | None
    offset: int
    size_bytes: int
    first_use: int
    last_use: int


@dataclass(frozen=True, slots=True)
class Arena:
    """Memory, on each of these ranks, for all their tensors that cross in a step.

    naive_bytes is the size without reuse, lower_bound_bytes the largest live set; both count whole
    buckets rounded up to the alignment, as peak_bytes does.
    """

    name: str
    ranks: tuple[int, ...]
    alignment_bytes: int
    peak_bytes: int
    naive_bytes: int
    lower_bound_bytes: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class LiveBlocks:
    """The blocks of a gradient that are sent; all others are zero on each rank after the step.

    The tensor counts as a matrix, its first dimension by all others, cut into blocks of `block`
    rows and columns, which may be smaller at the lower and right edges. live numbers them row by
    row. They are sent in the order of memory, without gaps.
    """

    tensor: str
    block: tuple[int, int]
    live: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StrategyRecord:
    """The strategy as data: its kind, its ranks, every option and its own choices."""

    kind: str
    world_size: int
    options: tuple[tuple[str, int | str], ...]


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """The plan of one training step. The same graph and strategy give the same plan.

    The forward is operations 0 to forward_op_count-1; forward_end_ns and end_ns are when its
    last operation and the last of all are estimated to end. live names the gradients of which a
    part is sent (thin.py); their entries in tensors describe the whole gradient.
    """

    strategy: StrategyRecord
    groups: tuple[Group, ...]
    source: Source
    loss: Loss
    captured_with: str
    cost: CostModel
    policy: SlotPolicy
    op_count: int
    forward_op_count: int
    forward_end_ns: int
    end_ns: int
    symbols: tuple[Symbol, ...]
    tensors: tuple[PlannedTensor, ...]
    crossings: tuple[Crossing, ...]
    buckets: tuple[PlannedBucket, ...]
    arenas: tuple[Arena, ...]
    omissions: tuple[Omission, ...]
    live: tuple[LiveBlocks, ...] = ()

    def fingerprint(self) -> str:
        """SHA-256, in hex, of all that decides a transfer: ranks with equal ones agree.

        The texts of omissions and the tool's version are left out, as they decide nothing.
        """
        facts = asdict(self)
        del facts["omissions"], facts["captured_with"]
        return hashlib.sha256(canonical_json(facts).encode()).hexdigest()


def canonical_json(facts: object) -> str:
    """JSON in a unique form: sorted keys, no blanks, ASCII."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def first_difference(mine: TransferPlan, theirs: TransferPlan) -> str | None:
    """What two plans first disagree on, a tensor where possible; None if they agree."""
    if mine.fingerprint() == theirs.fingerprint():
        return None
    other = {tensor.name: tensor for tensor in theirs.tensors}
    for tensor in mine.tensors:
        if tensor != other.get(tensor.name):
            return f"tensor {tensor.name}: {tensor} here, {other.get(tensor.name)} there"
    known = {tensor.name for tensor in mine.tensors}
    for tensor in theirs.tensors:
        if tensor.name not in known:
            return f"tensor {tensor.name}: unknown here, {tensor} there"
    mask = _mask_difference(mine, theirs)
    if mask is not None:
        return mask
    here, there = asdict(mine), asdict(theirs)
    section = next(key for key in here if here[key] != there[key])
    return f"{section} differ, all tensors agree"


def _mask_difference(mine: TransferPlan, theirs: TransferPlan) -> str | None:
    """The parameter whose masks differ, and where."""
    here, there = ({one.tensor: one for one in plan.live} for plan in (mine, theirs))
    for tensor in mine.tensors:
        one, other = here.get(tensor.name), there.get(tensor.name)
        if one == other:
            continue
        what = f"the mask of {tensor.parameter} differs"
        if one is None or other is None:
            return f"{what}: blocks are masked {'there' if one is None else 'here'} only"
        if one.block != other.block:
            return f"{what}: blocks of {one.block} here, {other.block} there"
        block = min(set(one.live) ^ set(other.live))
        return f"{what}: block {block} is live {'here' if block in one.live else 'there'} only"
    return None


def block_grid(tensor: PlannedTensor, block: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of blocks of a static tensor."""
    rows, columns = _matrix(tensor)
    return -(-rows // block[0]), -(-columns // block[1])


def _matrix(tensor: PlannedTensor) -> tuple[int, int]:
    sizes = [dim for dim in tensor.shape if isinstance(dim, int)]
    assert len(sizes) == len(tensor.shape), f"{tensor.name} is {tensor.kind}"
    return (sizes[0], prod(sizes[1:])) if sizes else (1, 1)


def live_bytes(tensor: PlannedTensor, blocks: LiveBlocks) -> int:
    """Bytes of a tensor's live blocks, of which those at the edges may be smaller."""
    rows, columns = _matrix(tensor)
    high, wide = blocks.block
    across = block_grid(tensor, blocks.block)[1]
    elements = sum(
        min(high, rows - block // across * high) * min(wide, columns - block % across * wide)
        for block in blocks.live
    )
    return elements * tensor.item_bytes


def sent_bytes(plan: TransferPlan) -> dict[str, int]:
    """What a tensor takes in its bucket, at most, by name; dynamic tensors are not in it."""
    live = {one.tensor: one for one in plan.live}
    return {
        tensor.name: live_bytes(tensor, live[tensor.name])
        if tensor.name in live
        else tensor.max_bytes
        for tensor in plan.tensors
        if tensor.max_bytes is not None
    }


def gradient_buckets(plan: TransferPlan) -> tuple[PlannedBucket, ...]:
    """The buckets that all ranks sum in backward, in the order in which they are sent.

    A merged plan also has sums of the program's own, which are not sums of gradients.
    """
    gradients = {tensor.name for tensor in plan.tensors if tensor.role == "gradient"}
    return tuple(
        bucket
        for bucket in plan.buckets
        if bucket.phase == "backward"
        and bucket.operation == "all_reduce"
        and gradients.issuperset(bucket.tensors)
    )
