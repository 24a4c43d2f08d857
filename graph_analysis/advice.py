"""Advice: which exchange of a step's gradients costs least, by the cost model alone.

Workers have the same model and other batches. They can sum whole gradients among themselves, or
send them to servers and take new values back; of an embedding they can exchange only the rows that
their batches look up. A way is priced by its rounds, which follow each other, and by the bytes of
the busiest link: each host has a link of its own, with the bandwidth in each direction, and bytes
that move in and out of it at the same time count once. All integers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from graph_analysis.buckets import wire
from graph_analysis.ir import CostModel, Graph, Op, SymbolicDim, Value
from graph_analysis.strategies.base import Strategy, require_count
from graph_analysis.strategies.data_parallel import DataParallel
from graph_analysis.strategies.parameter_server import ParameterServer

_ID_BYTES = 8
_LOOK_UPS = ("aten.embedding.", "aten._embedding_bag.", "aten.embedding_bag.")
_NS_PER_S = 1_000_000_000
_SERVERS = (1, 2)  # numbers that are compared


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one way costs in a step. total_bytes are those of all links together."""

    rounds: int = 0
    link_bytes: int = 0
    total_bytes: int = 0

    def __add__(self, other: "Exchange") -> "Exchange":
        """One after the other."""
        return Exchange(
            self.rounds + other.rounds,
            self.link_bytes + other.link_bytes,
            self.total_bytes + other.total_bytes,
        )

    def time_ns(self, cost: CostModel) -> int:
        """Estimated time, without computation."""
        on_link = self.link_bytes * _NS_PER_S // cost.bandwidth_bytes_per_s
        return self.rounds * cost.latency_ns + on_link


def all_reduce(workers: int, size_bytes: int) -> Exchange:
    """A ring's sum of whole gradients."""
    total = 2 * (workers - 1) * size_bytes
    return Exchange(2 * (workers - 1), total // workers, total)


def dense_push(workers: int, servers: int, size_bytes: int) -> Exchange:
    """Whole gradients to servers, which hold equal parts, then all values back.

    A server's link has all workers' parts; a worker's, which has all of its own, is busier where
    there are fewer workers than servers.
    """
    links = max(workers, servers)
    return Exchange(2, 2 * links * size_bytes // servers, 2 * workers * size_bytes)


def sparse_push(workers: int, servers: int, rows: int, row_bytes: int) -> Exchange:
    """Rows of an embedding from servers for their ids, then ids and gradients to them."""
    size, links = 2 * rows * (_ID_BYTES + row_bytes), max(workers, servers)
    return Exchange(4, links * size // servers, workers * size)


def sparse_all_gather(workers: int, rows: int, row_bytes: int) -> Exchange:
    """The ids and gradients of each worker's rows to all others."""
    link = (workers - 1) * rows * (_ID_BYTES + row_bytes)
    return Exchange(2 * (workers - 1), link, workers * link)


@dataclass(frozen=True, slots=True)
class Embedding:
    """A parameter of which a step changes at most `touched` rows, by its example batch."""

    parameter: str
    rows: int
    row_bytes: int
    touched: int


@dataclass(frozen=True, slots=True)
class Choice:
    """A way for the whole step. strategy is None where a plan cannot express it."""

    name: str
    strategy: Strategy | None
    exchange: Exchange


@dataclass(frozen=True, slots=True)
class Advice:
    """All choices, the cheapest first, and what they were priced by."""

    workers: int
    cost: CostModel
    dense_bytes: int
    embeddings: tuple[Embedding, ...]
    choices: tuple[Choice, ...]

    @property
    def strategy(self) -> Strategy:
        """Return the cheapest that a plan can express."""
        return next(one.strategy for one in self.choices if one.strategy is not None)

    def text(self) -> str:
        """Return which choice is best, and why, ending in a newline."""
        best = self.choices[0]
        lines = [f"Advice for {self.workers} workers: {best.name}"]
        for one in self.choices:
            ns, exchange = one.exchange.time_ns(self.cost), one.exchange
            lines.append(
                f"  {one.name:<40}  {ns / 1e6:10.3f} ms  {exchange.rounds:3} rounds"
                f"  {exchange.link_bytes:12} bytes over the busiest link"
            )
        lines.append(
            f"  priced by {self.cost.latency_ns / 1e3:g} us a round and"
            f" {self.cost.bandwidth_bytes_per_s / 1e6:g} MB/s of each host's link,"
            f" of {self.dense_bytes} bytes of dense gradients; servers are hosts of their own"
        )
        lines += [
            f"  {one.parameter}: a worker's batch has at most {one.touched} of {one.rows} rows of"
            f" {one.row_bytes} bytes"
            for one in self.embeddings
        ]
        if best.strategy is None:
            lines.append(
                "  A plan sends whole gradients: this one has the cheapest strategy that does. Rows"
                " of embeddings that are not in the model can be exchanged apart"
            )
        return "\n".join(lines) + "\n"


def advise(
    graph: Graph, workers: int, cost: CostModel, servers: Sequence[int] = _SERVERS
) -> Advice:
    """Price the exchanges of a captured step. Pure: the same graph, the same advice.

    Raises ArgumentError: workers is not an integer of 1 or more, or cost has a rate below 1.
    """
    require_count("advise", "workers", workers)
    wire(cost, "all_reduce", workers)  # refuses such a cost
    embeddings = _embeddings(graph)
    apart = {one.parameter for one in embeddings}
    gradients = [v for v in graph.values if v.role == "gradient" and v.of not in apart]
    dense = sum(prod(_sizes(value)) * value.item_bytes for value in gradients)
    whole = dense + sum(one.rows * one.row_bytes for one in embeddings)
    rest = all_reduce(workers, dense) if dense else Exchange()
    choices = [Choice("all_reduce", DataParallel(workers), all_reduce(workers, whole))]
    for count in servers:
        held = f"{count} server{'s' * (count > 1)}"
        strategy = ParameterServer(count, workers)
        choices.append(
            Choice(f"parameter server, {held}", strategy, dense_push(workers, count, whole))
        )
        pushed = [sparse_push(workers, count, one.touched, one.row_bytes) for one in embeddings]
        if embeddings:
            choices.append(Choice(f"rows to {held}, else all_reduce", None, sum(pushed, rest)))
    if embeddings:
        gathered = [sparse_all_gather(workers, one.touched, one.row_bytes) for one in embeddings]
        choices.append(Choice("all_gather of rows, else all_reduce", None, sum(gathered, rest)))
    choices.sort(key=lambda one: one.exchange.time_ns(cost))  # stable: equal ones keep their order
    return Advice(workers, cost, dense, embeddings, tuple(choices))


def _embeddings(graph: Graph) -> tuple[Embedding, ...]:
    """Trained parameters that one look-up reads, and nothing else; others' gradients are dense."""
    values = {value.name: value for value in graph.values}
    readers: dict[str, list[Op]] = {}
    for op in graph.ops:
        for name in dict.fromkeys(op.inputs):
            readers.setdefault(values[name].alias_of or name, []).append(op)
    trained = {value.of for value in graph.values if value.role == "gradient"}
    if any(
        "sparse_coo_tensor" in op.target for op in graph.ops
    ):  # the gradient itself is not in the graph
        trained |= {value.name for value in graph.values if value.role == "parameter"}
    found = []
    for value in graph.values:
        used, shape = readers.get(value.name, []), _sizes(value)
        is_looked_up = len(used) == 1 and used[0].target.startswith(_LOOK_UPS)
        if value.role == "parameter" and value.name in trained and is_looked_up:
            ids = next(values[name] for name in used[0].inputs if "int" in values[name].dtype)
            touched = min(shape[0], prod(_sizes(ids)))
            found.append(Embedding(value.name, shape[0], shape[1] * value.item_bytes, touched))
    return tuple(found)


def _sizes(value: Value) -> list[int]:
    """Sizes of the traced example; an unknown one counts as nothing."""
    sizes = (dim.example if isinstance(dim, SymbolicDim) else dim for dim in value.shape)
    return [0 if size is None else size for size in sizes]
