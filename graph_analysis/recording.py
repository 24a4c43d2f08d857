"""The second source of a plan: what a communication backend recorded in steps that repeated.

Each rank has a list of RecordedOps, a step of its own as it repeats. record_plan() compares the
ranks' lists and builds the one plan of the group; missing_from() compares that with a plan made
from a graph. Pure functions over values; nothing here knows a backend, or needs torch.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import cast

from graph_analysis.build import build_plan
from graph_analysis.errors import PlanError
from graph_analysis.ir import ROOTED, Collective, Graph, Op, Operation, Role, Value
from graph_analysis.plan import TransferPlan
from graph_analysis.plan_json import decode
from graph_analysis.strategies.graph_collectives import GraphCollectives

ANY_SOURCE = -1  # of a receive that accepts a message from any sender
_MOST_BYTES = (1 << 63) - 1  # that a process can address; it limits products of sizes


@dataclass(frozen=True, slots=True)
class RecordedTensor:
    """A tensor that has a name in the program. of: the parameter that a gradient belongs to."""

    name: str
    role: Role
    dtype: str
    item_bytes: int
    shape: tuple[int, ...]
    of: str | None = None

    @property
    def size_bytes(self) -> int:
        """Of the tensor alone, without other bytes of its message."""
        size_bytes = self.item_bytes
        for dim in self.shape:
            size_bytes *= dim
        return size_bytes


@dataclass(frozen=True, slots=True)
class RecordedOp:
    """One operation of one rank, in the ranks of its group.

    operation: "send" for both ends of a message; then root is the sender and peer the receiver.
        size_bytes is the rank's input, out_bytes its output. tensors are the known ones in it, in
        their order. is_fixed: it had the same address each time.
    """

    operation: Operation
    dtype: str
    item_bytes: int
    size_bytes: int
    out_bytes: int
    reduce_op: int
    root: int | None
    peer: int | None
    tag: int
    is_fixed: bool
    tensors: tuple[RecordedTensor, ...]


Recording = tuple[RecordedOp, ...]


def recording_to_json(recording: Recording) -> str:
    """The recording as text, for the other ranks."""
    return json.dumps([asdict(op) for op in recording], separators=(",", ":"))


def recording_from_json(text: str) -> Recording:
    """The inverse of recording_to_json(). PlanError for anything else."""
    try:
        data = json.loads(text)
        json.dumps(data, ensure_ascii=False).encode()  # refuses names that cannot be encoded
    except (ValueError, RecursionError) as error:
        raise PlanError(f"not a recording: {error}") from error
    recording = cast(Recording, decode(tuple[RecordedOp, ...], data, "not a recording: step"))
    for index, op in enumerate(recording):
        why = _why_impossible(op)
        if why is not None:
            raise PlanError(f"not a recording: step[{index}]: {why}")
    return recording


def _why_impossible(op: RecordedOp) -> str | None:
    """Why no backend records this, for any number of ranks; None if it is possible."""
    sizes = (op.size_bytes, op.out_bytes)
    if op.item_bytes < 1 or any(not 0 <= size <= _MOST_BYTES for size in sizes):
        return f"{sizes} bytes in items of {op.item_bytes}"
    has_root = op.root is not None and op.root >= 0
    if op.operation == "send":
        is_possible = (has_root or op.root == ANY_SOURCE) and op.peer is not None and op.peer >= 0
    else:
        is_possible = has_root if op.operation in ROOTED else op.root is None
    if op.operation in ("push", "pull") or not is_possible:
        return f"{op.operation} from {op.root} to {op.peer}"
    return next((why for tensor in op.tensors if (why := _why_no_tensor(tensor))), None)


def _why_no_tensor(tensor: RecordedTensor) -> str | None:
    if tensor.item_bytes < 1 or any(not 0 <= dim <= _MOST_BYTES for dim in tensor.shape):
        return f"tensor {tensor.name}: {tensor.shape} of items of {tensor.item_bytes}"
    if tensor.size_bytes > _MOST_BYTES:
        return f"tensor {tensor.name} has {tensor.size_bytes} bytes"
    if tensor.role not in ("parameter", "gradient", "buffer"):
        return f"tensor {tensor.name} is of the role {tensor.role}"
    if (tensor.role == "gradient") != (tensor.of is not None) or tensor.of == tensor.name:
        return f"tensor {tensor.name}: {tensor.role} of {tensor.of}"
    return None


# ---- comparison of the ranks ---------------------------------------------------------------------


def recorded_difference(recordings: Sequence[Recording]) -> str | None:
    """The first difference of the ranks in steps of one form, by a tensor's name if it has one.

    Collectives must be the same ones in the same order, of the same tensors. A rank that has no
    names for what it sent agrees with any.
    """
    lists = [_collectives(recording) for recording in recordings]
    for rank, theirs in enumerate(lists[1:], 1):
        for index, (first, other) in enumerate(zip(lists[0], theirs, strict=False)):
            why = _collective_difference(first, other)
            if why is not None:
                return f"ranks 0 and {rank} differ in collective {index + 1} of the step, {why}"
    return None


def form_difference(recordings: Sequence[Recording]) -> str | None:
    """Why the ranks' steps are not parts of one, though each may be right; None if they are.

    Each rank needs the same number of collectives, and what one rank sends to another, by tag, must
    be what that one receives. A rank that steps its optimizer twice as often as another has other
    steps.
    """
    counts = [len(_collectives(recording)) for recording in recordings]
    if len(set(counts)) > 1:
        return f"the ranks have {counts} collectives in a step"
    return _message_difference(recordings)


def _collectives(recording: Recording) -> list[RecordedOp]:
    return [op for op in recording if op.operation != "send"]


def _collective_difference(first: RecordedOp, other: RecordedOp) -> str | None:
    if first.tensors and other.tensors:
        for mine, theirs in zip_longest(first.tensors, other.tensors):
            if mine != theirs:
                return f"tensor {(mine or theirs).name}: {mine} and {theirs}"
    is_uneven = first.operation == other.operation == "all_to_all"
    if _key(first, is_uneven) != _key(other, is_uneven):
        return f"{_text(first)}: {first} and {other}"
    return None


def _key(op: RecordedOp, is_uneven: bool) -> tuple[object, ...]:
    sizes = () if is_uneven else (op.size_bytes,)
    return (op.operation, op.dtype, op.reduce_op, op.root, *sizes)


def _text(op: RecordedOp) -> str:
    names = ", ".join(tensor.name for tensor in op.tensors[:1])
    return f"{op.operation} of {names or 'a tensor without a name'} ({op.size_bytes} bytes)"


def _message_difference(recordings: Sequence[Recording]) -> str | None:
    open_ended = {
        rank
        for rank, recording in enumerate(recordings)
        if any(op.operation == "send" and op.root == ANY_SOURCE for op in recording)
    }
    sent: dict[tuple[int | None, int | None, int], list[int]] = {}
    received: dict[tuple[int | None, int | None, int], list[int]] = {}
    for rank, recording in enumerate(recordings):
        for op in recording:
            if op.operation != "send":
                continue
            is_receive = op.root != rank or op.out_bytes > 0  # the latter: from itself
            side, size = (received, op.out_bytes) if is_receive else (sent, op.size_bytes)
            side.setdefault((op.root, op.peer, op.tag), []).append(size)
    for source, target, tag in sorted({*sent, *received}, key=str):
        if target in open_ended or source == ANY_SOURCE:
            continue
        mine = sent.get((source, target, tag), [])
        theirs = received.get((source, target, tag), [])
        if len(mine) != len(theirs) or any(a > b for a, b in zip(mine, theirs, strict=True)):
            return (
                f"messages from rank {source} to {target}, tag {tag}: sent are {mine} bytes, "
                f"received {theirs}"
            )
    return None


# ---- one plan of all ranks -----------------------------------------------------------------------


def record_plan(recordings: Sequence[Recording]) -> TransferPlan:
    """The plan of what the ranks of one group recorded; the same on every rank.

    Collectives keep their order and their tensors stay together; between two of them come the
    messages of rank 0, then those of rank 1, and so on.
    Raises: PlanError, naming the first tensor in which the ranks differ.
    """
    why = form_difference(recordings) or recorded_difference(recordings)
    if why is not None:
        raise PlanError(f"the ranks recorded different steps: {why}")
    for rank, op in ((rank, op) for rank, recording in enumerate(recordings) for op in recording):
        if max(op.root or 0, op.peer or 0) >= len(recordings):
            raise PlanError(
                f"rank {rank} recorded {_text(op)} from {op.root} to {op.peer}, there are "
                f"{len(recordings)} ranks"
            )
    builder = _Builder(len(recordings))
    for op in _in_order(recordings):
        builder.add(op)
    graph = Graph(
        symbols=(),
        values=tuple(builder.values.values()),
        ops=tuple(builder.ops),
        omissions=(),
        source="recorded",
        loss="loss_fn",
        captured_with="recorder",
    )
    return build_plan(graph, GraphCollectives(len(recordings)))


def _in_order(recordings: Sequence[Recording]) -> list[RecordedOp]:
    parts: list[list[list[RecordedOp]]] = []  # by rank, then between which collectives
    for rank, recording in enumerate(recordings):
        parts.append([[]])
        for op in recording:
            if op.operation != "send":
                parts[rank].append([])
            elif op.root == rank != op.peer:
                parts[rank][-1].append(op)
    collectives = _collectives(recordings[0])
    ordered: list[RecordedOp] = []
    for index in range(len(collectives) + 1):
        for of_rank in parts:
            ordered += of_rank[index]
        ordered += collectives[index : index + 1]
    return ordered


class _Builder:
    """Values and operations of the graph, in which the program's own work is operations too."""

    def __init__(self, world_size: int) -> None:
        self._ranks = tuple(range(world_size))
        self._sent: set[str] = set()
        self.values: dict[str, Value] = {}
        self.ops: list[Op] = []

    def add(self, op: RecordedOp) -> None:
        """Add one operation, what it sends, and the operation that made that."""
        if op.size_bytes == 0:
            return  # a barrier, or a collective of nothing: no tensor crosses
        number = sum(made.collective is not None for made in self.ops)
        title = f"{op.operation} {number}"
        names = [self._tensor(tensor) for tensor in op.tensors]
        if not names:
            names = [self._anonymous(title, op, op.size_bytes)]
        made = [name for name in names if self.values[name].producer == len(self.ops)]
        if made:
            self.ops.append(Op(f"program before {title}", "program", (), tuple(made)))
        results = names
        if op.operation in ("all_gather", "reduce_scatter", "all_to_all") and len(names) == 1:
            results = [self._anonymous(f"{title} result", op, op.out_bytes)]
        self.ops.append(Op(title, "recorded", tuple(names), tuple(results), self._call(op)))

    def _call(self, op: RecordedOp) -> Collective:
        if op.operation != "send":
            return Collective(op.operation, "group", self._ranks, op.root)
        assert op.root is not None
        assert op.peer is not None
        ends = tuple(sorted({op.root, op.peer}))
        return Collective("send", f"ranks {'-'.join(map(str, ends))}", ends, op.root)

    def _tensor(self, tensor: RecordedTensor) -> str:
        """The name of a value for it; one that crosses twice in a step has two."""
        if tensor.of is not None and tensor.of not in self.values:
            self._put(tensor.of, "parameter", tensor, None)
        name, count = tensor.name, 1
        while name in self._sent:
            count += 1
            name = f"{tensor.name} again {count}"
        self._sent.add(name)
        if name in self.values:  # a parameter that is known from its gradient
            return name
        if tensor.role == "gradient" and count == 1:
            self._put(name, "gradient", tensor, len(self.ops))
        else:
            role: Role = "backward" if tensor.role == "gradient" else tensor.role
            stays = tensor.role in ("parameter", "buffer")
            self._put(name, role, tensor, None if stays else len(self.ops))
        return name

    def _put(self, name: str, role: Role, tensor: RecordedTensor, producer: int | None) -> None:
        self.values[name] = Value(
            name=name,
            role=role,
            dtype=tensor.dtype,
            item_bytes=tensor.item_bytes,
            shape=tensor.shape,
            producer=producer,
            ready=producer if role == "gradient" else None,
            of=tensor.of if role == "gradient" else None,
        )

    def _anonymous(self, name: str, op: RecordedOp, size_bytes: int) -> str:
        if name in self.values:
            raise PlanError(f"tensor {name} has the name of what has none")
        has_backward = any(value.role == "gradient" for value in self.values.values())
        self.values[name] = Value(
            name=name,
            role="backward" if has_backward else "activation",
            dtype=op.dtype,
            item_bytes=op.item_bytes,
            shape=(size_bytes // op.item_bytes,),
            producer=len(self.ops),
        )
        return name


# ---- comparison with the graph
# --------------------------------------------------------------------


def missing_from(recorded: TransferPlan, graph_plan: TransferPlan) -> str | None:
    """The first tensor of a step by the graph's plan that was not recorded so, None if all were.

    Compared are the operation and the bytes of each tensor, and that no other parameter's gradient
    was sent. Transfers that no graph shows, such as a metric's all_reduce, are allowed.
    """
    found = {(c, name): size for c, name, size in _step(recorded)}
    wanted = {(c, name): size for c, name, size in _step(graph_plan)}
    for (operation, name), size in wanted.items():
        seen = found.get((operation, name))
        if seen is None:
            return f"tensor {name}: the plan has {operation} of {size} bytes, none was recorded"
        if seen != size:
            return f"tensor {name}: the plan has {operation} of {size} bytes, recorded were {seen}"
    gradients = {t.name for t in recorded.tensors if t.role == "gradient"}
    for (operation, name), size in found.items():
        if name in gradients and (operation, name) not in wanted:
            return f"tensor {name}: recorded were {operation} of {size} bytes, the plan has none"
    return None


def _step(plan: TransferPlan) -> list[tuple[Operation, str, int | None]]:
    sizes = {tensor.name: tensor.size_bytes for tensor in plan.tensors}
    return [(c.operation, c.tensor, sizes[c.tensor]) for c in plan.crossings if c.phase != "setup"]
