"""Pass: the pipeline stage of every operation.

The forward is cut into runs of operations in their order, by names or in balance. autograd runs the
backward of an operation in the reverse order of the forward, so the backward is cut into runs too,
last stage first: before the first operation that can only belong to a lower stage (it reads a
parameter that only that stage reads, or an activation that never left it) and after the last that
can only belong to a higher one. The operations between the two, such as an activation function on
the boundary, stay with the higher stage as long as the tensors that then cross have the types and
sizes of the activations that crossed there in the forward.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise

from graph_analysis.classify import example_bytes
from graph_analysis.errors import ArgumentError
from graph_analysis.ir import Graph, Value
from graph_analysis.liveness import storage_roots
from graph_analysis.strategies.base import forward_op_count

# A stage may take this much longer than in the best balance if fewer bytes cross for it.
SLACK_PERCENT = 25


def cut_by_names(graph: Graph, names: Sequence[str]) -> tuple[int, ...]:
    """First operation of each stage after the first.

    A name is an operation's, or a module's: then the stage begins at the first operation that
    reads one of its parameters.
    """
    by_op = {op.name: index for index, op in enumerate(graph.ops)}
    roots = storage_roots(graph)
    parameters = {v.name for v in graph.values if v.role == "parameter"}
    first_read: dict[str, int] = {}
    for index, op in enumerate(graph.ops):
        for name in op.inputs:
            if roots[name] in parameters:
                first_read.setdefault(roots[name], index)
    cuts = []
    for name in names:
        inside = [at for key, at in first_read.items() if key.startswith(f"{name}.")]
        if name not in by_op and not inside:
            raise ArgumentError(
                f"split point {name!r} is neither an operation nor a module whose parameters "
                "the graph reads"
            )
        cuts.append(min(inside) if inside else by_op[name])
    limit = forward_op_count(graph)
    if any(a >= b for a, b in pairwise((0, *cuts, limit))):
        raise ArgumentError(
            f"split points {list(names)} are operations {cuts}: not in the order of the "
            f"forward, which has {limit} operations, or a stage is empty"
        )
    return tuple(cuts)


def cut_in_balance(graph: Graph, op_end_ns: Sequence[int], stages: int) -> tuple[int, ...]:
    """Cuts into so many stages of nearly equal estimated time, at points where few bytes cross."""
    limit = forward_op_count(graph)
    if stages == 1:
        return ()
    if stages > limit:
        raise ArgumentError(f"{stages} stages for a forward of {limit} operations")
    ends = [0, *op_end_ns[:limit]]
    most = _smallest_longest_stage(ends, stages)
    most += most * SLACK_PERCENT // 100
    weights = _bytes_alive_before(graph, limit)
    # best[i]: least bytes for cutting the first i operations into k stages; low is the first
    # start of a stage that ends at i and is not too long. Equal costs take the later cut.
    best: list[int | None] = [0 if ends[i] <= most and i > 0 else None for i in range(limit + 1)]
    starts: list[list[int]] = []
    for _ in range(stages - 1):
        best, came = _one_more_stage(best, ends, weights, most)
        starts.append(came)
    cuts = []
    at = limit
    for came in reversed(starts):
        at = came[at]
        cuts.append(at)
    return tuple(reversed(cuts))


def _one_more_stage(
    best: list[int | None], ends: list[int], weights: list[int], most: int
) -> tuple[list[int | None], list[int]]:
    """Minimum over a window that only moves forward, by a queue of candidates."""
    found: list[int | None] = [None] * len(best)
    came = [0] * len(best)
    queue: list[tuple[int, int]] = []  # cost and place, costs rising from head on
    head = low = 0
    for stop in range(1, len(best)):
        start = stop - 1
        before = best[start]
        if before is not None and start > 0:
            cost = before + weights[start]
            while len(queue) > head and queue[-1][0] >= cost:
                queue.pop()
            queue.append((cost, start))
        while ends[stop] - ends[low] > most:
            low += 1
        while len(queue) > head and queue[head][1] < low:
            head += 1
        if len(queue) > head:
            found[stop], came[stop] = queue[head]
    return found, came


def _smallest_longest_stage(ends: list[int], stages: int) -> int:
    """Smallest time within which so many stages, none of them empty, can do the forward."""
    low, high = 0, ends[-1]
    while low < high:
        middle = (low + high) // 2
        if _stages_needed(ends, middle) <= stages:
            high = middle
        else:
            low = middle + 1
    return low


def _stages_needed(ends: list[int], most: int) -> int:
    """Stages of at most that time, filled one after the other; more than there are ops if none."""
    needed, start = 1, 0
    for before, end in pairwise(ends):
        if end - before > most:
            return len(ends)
        if end - start > most:
            needed += 1
            start = before
    return needed


def _bytes_alive_before(graph: Graph, limit: int) -> list[int]:
    """For each operation of the forward the bytes of activations made before it, read later."""
    roots = storage_roots(graph)
    made = {v.name: v for v in graph.values if v.alias_of is None and v.producer is not None}
    last: dict[str, int] = {}
    for index, op in enumerate(graph.ops[:limit]):
        for name in op.inputs:
            last[roots[name]] = index
    change = [0] * (limit + 1)
    for name, value in made.items():
        producer = value.producer or 0
        if producer < limit and last.get(name, 0) > producer:
            change[producer + 1] += example_bytes(value)
            change[last[name] + 1] -= example_bytes(value)
    return list(accumulate(change))


def stage_of_ops(graph: Graph, cuts: Sequence[int]) -> tuple[int, ...]:
    """The stage of each operation, for forward stages that begin at operation 0 and the cuts."""
    limit = forward_op_count(graph)
    forward = _forward_stages(graph, cuts, limit)
    bound = _bound_stages(graph, forward, limit)
    ends = [
        _backward_cut(graph, (forward, bound), boundary) for boundary in range(len(cuts))
    ]  # the backward of the stages above boundary b ends before operation ends[b]
    backward = []
    for index in range(limit, len(graph.ops)):
        stage = bound[index - limit]
        if stage is None:
            stage = max((b + 1 for b, end in enumerate(ends) if index < end), default=0)
        backward.append(stage)
    return (*forward, *backward)


def _forward_stages(graph: Graph, cuts: Sequence[int], limit: int) -> list[int]:
    """By the cuts, except that a view of what exists before the step is taken where it is read."""
    stages = [bisect_right(cuts, index) for index in range(limit)]
    values = {v.name: v for v in graph.values}
    needed: dict[str, int] = {}
    for index in reversed(range(limit)):
        op = graph.ops[index]
        bases = [values[name].alias_of for name in op.outputs]
        if bases and all(base is not None and values[base].producer is None for base in bases):
            stages[index] = min(needed.get(n, stages[index]) for n in op.outputs)
        for name in op.inputs:
            needed[name] = min(needed.get(name, stages[index]), stages[index])
    return stages


def readers_by_stage(graph: Graph, forward: Sequence[int]) -> dict[str, set[int]]:
    """For the memory of each value the stages that make or read it in the forward."""
    roots = storage_roots(graph)
    found: dict[str, set[int]] = {}
    for index, stage in enumerate(forward):
        for name in (*graph.ops[index].inputs, *graph.ops[index].outputs):
            found.setdefault(roots[name], set()).add(stage)
    return found


def _bound_stages(graph: Graph, forward: Sequence[int], limit: int) -> list[int | None]:
    """For each operation of the backward the only stage that it can belong to, None if open."""
    roots = storage_roots(graph)
    values = {v.name: v for v in graph.values}
    at = readers_by_stage(graph, forward)
    found: list[int | None] = []
    for op in graph.ops[limit:]:
        stages: set[int] = set()
        for name in (*op.inputs, *op.outputs):
            root = values[roots[name]]
            home = at.get(root.of or root.name, set())
            is_forward = root.role in ("parameter", "buffer", "activation", "loss", "gradient")
            if is_forward and len(home) == 1:
                stages |= home
        found.append(max(stages) if stages else None)
    return found


def _backward_cut(graph: Graph, known: tuple[list[int], list[int | None]], boundary: int) -> int:
    """The point where the backward passes from above the boundary to below it."""
    forward, bound = known
    limit = len(forward)
    above = [index for index, stage in enumerate(bound) if stage is not None and stage > boundary]
    low = limit + (above[-1] + 1 if above else 0)
    below = (
        index
        for index in range(low, len(graph.ops))
        if (stage := bound[index - limit]) is not None and stage <= boundary
    )
    high = next(below, len(graph.ops))
    wanted = Counter(_crossing_kinds(graph, forward, boundary))
    return _last_match(graph, limit, (low, high), wanted)


def _crossing_kinds(graph: Graph, forward: Sequence[int], boundary: int) -> list[tuple[str, int]]:
    """Type and size of each floating tensor that is below the boundary and is read above it."""
    at = readers_by_stage(graph, forward)
    return [
        _kind(v)
        for v in graph.values
        if v.role in ("activation", "parameter")
        and v.alias_of is None
        and "float" in v.dtype
        and min(at.get(v.name, {0})) <= boundary < max(at.get(v.name, {0}))
    ]


def _kind(value: Value) -> tuple[str, int]:
    return value.dtype, example_bytes(value)


def _last_match(
    graph: Graph, limit: int, window: tuple[int, int], wanted: Counter[tuple[str, int]]
) -> int:
    """The last place in the window where just the wanted kinds are made before and read after."""
    values = {v.name: v for v in graph.values if v.role == "backward"}
    last = {
        name: index
        for index in range(limit, len(graph.ops))
        for name in graph.ops[index].inputs
        if name in values
    }
    low, high = window
    match = low
    alive: Counter[tuple[str, int]] = Counter()
    ending: dict[int, list[str]] = {}
    for index in range(limit, high + 1):
        for name in ending.pop(index, []):
            alive[_kind(values[name])] -= 1
        if index >= low and alive == wanted:  # Counters compare without their zeros
            match = index
        for name in graph.ops[index].outputs if index < high else ():
            if name in values and last.get(name, index) > index:
                alive[_kind(values[name])] += 1
                ending.setdefault(last[name] + 1, []).append(name)
    return match
