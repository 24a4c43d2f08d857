"""Measured times of operations, and what they say about a graph. All integers.

Operations with the same target, sizes, types and constants are one signature and take the same
time. One that was not measured is priced by others with its target: on a line over their work, or
in proportion if only one was. So a step measured at two batch sizes predicts a third one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from graph_analysis.document import read_document, write_document
from graph_analysis.errors import PlanError
from graph_analysis.ir import Graph, Omission, Op, SymbolicDim, Value

FORMAT = "operation-times"
VERSION = 1
Clock = Literal["thread", "wall"]  # processor time of the calling thread, or elapsed time


@dataclass(frozen=True, slots=True)
class OpTime:
    """One signature: its target, its work, and its time."""

    signature: str
    target: str
    flops: int
    moved_bytes: int
    ns: int

    @property
    def work(self) -> int:
        """Return what its time grows with."""
        return self.flops or self.moved_bytes


@dataclass(frozen=True, slots=True)
class OpTimes:
    """Times by signature, in its order. overhead_permille is a whole step's over their sum."""

    clock: Clock
    rows: tuple[OpTime, ...]
    overhead_permille: int = 1000


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Time of each operation of a graph, and operations that nothing measured can price."""

    op_ns: tuple[int, ...]
    omissions: tuple[Omission, ...]

    @property
    def total_ns(self) -> int:
        """Return the sum."""
        return sum(self.op_ns)


def signatures(graph: Graph) -> tuple[str, ...]:
    """The signature of each operation."""
    shown = {value.name: _shown(value) for value in graph.values}
    return tuple(
        f"{op.target}({' '.join(shown[name] for name in op.inputs)}) {op.constants}"
        for op in graph.ops
    )


def _shown(value: Value) -> str:
    sizes = (dim.example if isinstance(dim, SymbolicDim) else dim for dim in value.shape)
    return f"{value.dtype}[{','.join(map(str, sizes))}]"


def tabulate(
    graph: Graph, op_ns: Sequence[int], clock: Clock, overhead_permille: int = 1000
) -> OpTimes:
    """The table of one measured step; equal signatures count once, with their smallest time."""
    rows: dict[str, OpTime] = {}
    for op, signature, ns in zip(graph.ops, signatures(graph), op_ns, strict=True):
        found = rows.get(signature)
        if found is None or ns < found.ns:
            rows[signature] = OpTime(signature, op.target, op.flops, op.moved_bytes, ns)
    ordered = tuple(rows[signature] for signature in sorted(rows))
    return OpTimes(clock, ordered, overhead_permille)


def merge(first: OpTimes, second: OpTimes) -> OpTimes:
    """Both tables; of a signature in both the smaller time counts, and the larger overhead."""
    if first.clock != second.clock:
        raise PlanError(f"times by the clocks {first.clock} and {second.clock}")
    rows = {row.signature: row for row in first.rows}
    for row in second.rows:
        if row.signature not in rows or row.ns < rows[row.signature].ns:
            rows[row.signature] = row
    ordered = tuple(rows[signature] for signature in sorted(rows))
    return OpTimes(first.clock, ordered, max(first.overhead_permille, second.overhead_permille))


def predict(graph: Graph, times: OpTimes) -> StepTimes:
    """The time of each operation, overhead included. Pure."""
    exact = {row.signature: row.ns for row in times.rows}
    families: dict[str, list[OpTime]] = {}
    for row in times.rows:
        families.setdefault(row.target, []).append(row)
    for family in families.values():
        family.sort(key=lambda row: (row.work, row.ns))
    op_ns: list[int] = []
    omissions: list[Omission] = []
    for op, signature in zip(graph.ops, signatures(graph), strict=True):
        ns = exact.get(signature)
        if ns is None:
            ns = _by_family(op, families.get(op.target, []))
        if ns is None:
            omissions.append(Omission(op.name, f"no time of {op.target} was measured"))
            ns = 0
        op_ns.append(ns * times.overhead_permille // 1000)
    return StepTimes(tuple(op_ns), tuple(omissions))


def _by_family(op: Op, family: list[OpTime]) -> int | None:
    """On the line through the nearest rows of less and of more work."""
    if not family:
        return None
    work = op.flops or op.moved_bytes
    below = [row for row in family if row.work <= work]
    above = [row for row in family if row.work > work]
    if below and above:
        low, high = below[-1], above[0]
        return low.ns + (high.ns - low.ns) * (work - low.work) // (high.work - low.work)
    nearest = below[-1] if below else above[0]
    return nearest.ns * work // nearest.work if nearest.work else nearest.ns


def times_to_json(times: OpTimes) -> str:
    """The table as text, ending in a newline; the same table gives the same bytes."""
    return write_document(FORMAT, VERSION, times)


def times_from_json(text: str | bytes) -> OpTimes:
    """The inverse of times_to_json(). PlanError if the text is damaged or contradicts itself."""
    times = read_document(FORMAT, VERSION, text, OpTimes)
    names = [row.signature for row in times.rows]
    if names != sorted(set(names)):
        raise PlanError("operation-times: signatures are not in their order, each once")
    for row in times.rows:
        if min(row.flops, row.moved_bytes, row.ns) < 0:
            raise PlanError(f"operation-times: {row.signature} has a negative number")
    if times.overhead_permille < 0:
        raise PlanError(f"operation-times: overhead is {times.overhead_permille}")
    return times
