"""Pass: pairs of linear layers that can be computed by all ranks together.

The layers `first` have their weights cut by outputs, the layer `last` has its weight cut by inputs.
Every rank has the rows of all ranks in between, and a part of the features. Nothing is sent between
the two if each operation between them works on the cut features one by one, or only moves them.
That is shown on the graph: the cut is followed from the outputs of `first`, and every reader of a
tensor that has it must be known. Names do not matter.
"""

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod

from graph_analysis.classify import example_bytes
from graph_analysis.ir import Graph, Op, SymbolicDim, Value
from graph_analysis.liveness import storage_roots
from graph_analysis.strategies.base import forward_op_count

_POINTWISE = frozenset(
    {
        *("relu", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "hardtanh", "softplus"),
        *("add", "sub", "mul", "div", "neg", "exp", "sqrt", "rsqrt", "pow", "clamp", "clamp_min"),
        *("hardswish", "hardsigmoid", "mish", "erf", "threshold", "native_dropout", "bernoulli"),
        *("clone", "_to_copy", "detach", "alias", "contiguous", "dropout", "abs", "square"),
        *("eq", "ne", "lt", "le", "gt", "ge", "where", "logical_not", "logical_and", "full_like"),
        *("masked_fill", "ones_like", "zeros_like", "maximum", "minimum"),
    }
)
_OVER_DIMS = frozenset({"_softmax", "_safe_softmax", "_log_softmax"})  # keep the shape
_REDUCTIONS = frozenset({"any", "sum", "mean", "amax", "amin"})
_RESHAPES = frozenset({"view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"})
_ALIASES = frozenset({"detach", "alias"})  # of what the backward reads
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_HEADS = 1  # the dimension of heads in attention's tensors


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where the cut features are in a tensor: in a dimension, after `outer` others in it.

    count is how many equal runs of features there are, of which each rank has equally many.
    """

    dim: int
    outer: int
    count: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Linear layers by the names of their modules, and what crosses if ranks share them.

    begin and end are the operations of the first and the last product. in_bytes is that of the
    input of each layer of first, out_bytes of the output of last, for the rows of one rank. around
    is a module that has just these layers and takes their common input: rows can be gathered there.
    """

    first: tuple[str, ...]
    last: str
    begin: int
    end: int
    in_bytes: int
    out_bytes: int
    around: str | None = None

    @property
    def gathers(self) -> int:
        """Return how often rows of all ranks are gathered in the forward."""
        return len(self.first) if self.around is None else 1


@dataclass(frozen=True, slots=True)
class _Linear:
    """One product with a weight: the module's name, its operation, and the other operand."""

    module: str
    op: int
    source: str


def find_pairs(graph: Graph, linears: Collection[str], degree: int) -> tuple[Pair, ...]:
    """Pairs of the named linear modules for so many ranks, in the order of the graph.

    A module is in one pair at most. Its output features, or heads, divide by degree.
    """
    reader = _Reader(graph, frozenset(linears), degree)
    pairs: list[Pair] = []
    taken: set[str] = set()
    for last in reader.linears:
        pair = reader.pair_before(last)
        if pair is not None and not taken & {*pair.first, pair.last}:
            pairs.append(pair)
            taken |= {*pair.first, pair.last}
    return tuple(pairs)


class _Reader:
    """What the search needs of the forward graph."""

    def __init__(self, graph: Graph, linears: frozenset[str], degree: int) -> None:
        self.degree = degree
        self.limit = forward_op_count(graph)
        self.ops = graph.ops[: self.limit]
        self.values = {value.name: value for value in graph.values}
        self.roots = storage_roots(graph)
        self.readers: dict[str, list[int]] = {}
        for index, op in enumerate(self.ops):
            for name in dict.fromkeys(op.inputs):
                self.readers.setdefault(name, []).append(index)
        self.linears = self._linears(linears)
        self.of_op = {one.op: one for one in self.linears}

    def _linears(self, allowed: frozenset[str]) -> list[_Linear]:
        """Products that read the weight of an allowed module, which nothing else reads."""
        readers: dict[str, set[int]] = {}
        for index, op in enumerate(self.ops):
            if any(self.values[name].alias_of is None for name in op.outputs):
                for name in op.inputs:
                    readers.setdefault(self.roots[name], set()).add(index)
        found = []
        for index, op in enumerate(self.ops):
            if packet(op) not in ("mm", "addmm", "linear"):
                continue
            weights = [name for name in op.inputs if self.roots[name].endswith(".weight")]
            sources = [name for name in op.inputs if not self._is_parameter(name)]
            module = self.roots[weights[0]].removesuffix(".weight") if weights else ""
            is_alone = len(weights) == 1 and len(readers[self.roots[weights[0]]]) == 1
            if module in allowed and is_alone and len(sources) == 1:
                found.append(_Linear(module, index, sources[0]))
        return found

    def _is_parameter(self, name: str) -> bool:
        return self.values[self.roots[name]].role == "parameter"

    def pair_before(self, last: _Linear) -> Pair | None:
        """The pair that ends in a product, None if there is none."""
        first = self._products_before(last)
        if not first or last.op in {one.op for one in first}:
            return None
        cut: dict[str, _Cut] = {}
        for one in first:
            made = self.ops[one.op].outputs[0]
            shape = self.shape(made)
            if shape[-1] % self.degree:
                return None
            cut[made] = _Cut(len(shape) - 1, 1, shape[-1])
        begin = min(one.op for one in first)
        if not self._follow(begin, last, {one.op for one in first}, cut):
            return None
        return Pair(
            first=tuple(one.module for one in first),
            last=last.module,
            begin=begin,
            end=last.op,
            in_bytes=example_bytes(self.values[first[0].source]),
            out_bytes=example_bytes(self.values[self.ops[last.op].outputs[0]]),
        )

    def _products_before(self, last: _Linear) -> list[_Linear]:
        """The products from which the input of the last one is made, in order."""
        found: set[int] = set()
        waiting, seen = [last.source], {last.source}
        while waiting:
            producer = self.values[waiting.pop()].producer
            if producer is None:
                continue
            if producer in self.of_op:
                found.add(producer)
                continue
            for name in (*self.ops[producer].inputs,):
                if name not in seen:
                    seen.add(name)
                    waiting.append(name)
        return [self.of_op[index] for index in sorted(found)]

    def _follow(self, begin: int, last: _Linear, first: set[int], cut: dict[str, _Cut]) -> bool:
        """Whether the cut features stay apart up to the last product, and are read only there."""
        for index in range(begin, self.limit):
            op = self.ops[index]
            touched = [name for name in op.inputs if name in cut]
            if not touched:
                continue
            if index == last.op:
                width = len(self.shape(last.source)) - 1
                if touched != [last.source] or (cut[last.source].dim, cut[last.source].outer) != (
                    width,
                    1,
                ):
                    return False
                continue
            if index in first or (index > last.op and packet(op) not in _ALIASES):
                return False
            made = self._after(op, cut)
            if made is None:
                return False
            cut.update(made)
        return last.source in cut

    def _after(self, op: Op, cut: Mapping[str, _Cut]) -> dict[str, _Cut] | None:
        """The cut of each result; None for an operation that may mix the features."""
        name = packet(op)
        if name in _POINTWISE:
            return self._pointwise(op, cut)
        if name in (_ATTENTION, "bmm"):
            return self._batched(op, cut, 0 if name == "bmm" else _HEADS)
        if len(op.outputs) != 1 or len(op.inputs) != 1:
            return None
        source, made = op.inputs[0], op.outputs[0]
        here, before, after = cut[source], self.shape(source), self.shape(made)
        found: _Cut | None = None
        if name in _RESHAPES:
            found = self._reshaped(before, after, here)
        elif name == "expand" and before == after:
            found = here
        elif name in ("transpose", "permute", "t"):
            found = replace(here, dim=_moved(op, len(before), here.dim))
        elif name in _OVER_DIMS or name in _REDUCTIONS:
            found = _reduced(op, before, after, here)
        return None if found is None else {made: found}

    def _batched(self, op: Op, cut: Mapping[str, _Cut], dim: int) -> dict[str, _Cut] | None:
        """Products of every head, or of every matrix of a batch, alone."""
        cuts = {cut.get(one) for one in op.inputs}
        here = next(iter(cuts))
        if len(cuts) != 1 or here is None or here.dim != dim or here.count % self.degree:
            return None
        rank = len(self.shape(op.inputs[0]))
        return {made: here for made in op.outputs if len(self.shape(made)) == rank}

    def _pointwise(self, op: Op, cut: Mapping[str, _Cut]) -> dict[str, _Cut] | None:
        shapes = {name: self.shape(name) for name in (*op.inputs, *op.outputs)}
        cuts = {
            replace(cut[name], dim=cut[name].dim - len(shapes[name]))
            for name in op.inputs
            if name in cut
        }
        if len(cuts) != 1:
            return None
        here = next(iter(cuts))
        for name in op.inputs:
            if name not in cut and len(shapes[name]) >= -here.dim and shapes[name][here.dim] != 1:
                return None  # it has all features, and would have to be cut, too
        return {
            name: replace(here, dim=len(shapes[name]) + here.dim)
            for name in op.outputs
            if len(shapes[name]) >= -here.dim
        }

    def _reshaped(self, before: tuple[int, ...], after: tuple[int, ...], here: _Cut) -> _Cut | None:
        """Where the cut begins again after a reshape; None if its runs are taken apart."""
        ahead = prod(before[: here.dim]) * here.outer
        for place, size in enumerate(after):
            outer, rest = divmod(ahead, max(1, prod(after[:place])))
            if rest or not outer or size % outer or size // outer < 2:
                continue
            inside = size // outer
            if inside % here.count and here.count % inside:
                return None
            count = min(inside, here.count)
            return _Cut(place, outer, count) if count % self.degree == 0 else None
        return None

    def shape(self, name: str) -> tuple[int, ...]:
        """Sizes of the example; an unknown one counts as 0, which nothing divides into."""
        return _sizes(self.values[name])


def _sizes(value: Value) -> tuple[int, ...]:
    sizes = (dim.example if isinstance(dim, SymbolicDim) else dim for dim in value.shape)
    return tuple(size or 0 for size in sizes)


def packet(op: Op) -> str:
    """The operator's name without its namespace and overload; empty for anything else."""
    parts = op.target.split(".")
    return parts[1] if len(parts) == 3 and parts[0] == "aten" else ""


def _reduced(op: Op, before: tuple[int, ...], after: tuple[int, ...], here: _Cut) -> _Cut | None:
    """The cut after a sum or a softmax over other dimensions."""
    _, *given = ast.literal_eval(op.constants.partition(" {")[0])
    dims = given[0] if given else None
    places = [dims] if isinstance(dims, int) else dims
    if not places:
        return None  # over all
    over = {place % len(before) for place in places}
    if here.dim in over:
        return None
    ahead = sum(place < here.dim for place in over) if len(after) < len(before) else 0
    return replace(here, dim=here.dim - ahead)


def _moved(op: Op, rank: int, dim: int) -> int:
    """Where a dimension is after a transposition or a permutation."""
    name = packet(op)
    if name == "t":
        return 1 - dim if rank > 1 else dim
    _, *given = ast.literal_eval(op.constants)
    if name == "permute":
        return [place % rank for place in given[0]].index(dim)
    ends = [place % rank for place in given]
    return ends[1 - ends.index(dim)] if dim in ends else dim
