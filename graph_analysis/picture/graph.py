"""Picture: the step as lanes of operations, one for each kind of rank, and what crosses."""

from dataclasses import replace
from html import escape

from graph_analysis.ir import ROOTED, Crossing, TensorClass
from graph_analysis.picture.svg import (
    BACKWARD,
    CHARACTER_WIDTH,
    CLASS_COLOURS,
    FAINT,
    FORWARD,
    LABEL_HEIGHT,
    MARGIN_LEFT,
    RULE,
    Scale,
    drawing,
    free_label,
    legend,
    line,
    rect,
    shortened,
    text,
    ticks,
    x_scale,
)
from graph_analysis.plan import Arena, PlannedTensor, TransferPlan, sent_bytes
from graph_analysis.report import bytes_text

_LANE = 46  # height of a lane
_GAP = 58  # between lanes, for the labels of crossings
_TOP = 34
_BINS = 230  # columns of the histogram of tensors made
_MOST_ARROWS = 400  # the largest; more could not be distinguished
_LABEL_ROWS = 3
_KINDS: tuple[TensorClass, ...] = ("static", "bounded", "dynamic")


def draw_graph(plan: TransferPlan) -> str:
    """Lanes with the tensors made in them, and an arrow for each crossing of a step."""
    scale = x_scale(plan.op_count + 1)
    lanes = {arena.name: _TOP + index * (_LANE + _GAP) for index, arena in enumerate(plan.arenas)}
    bus = _TOP + len(plan.arenas) * (_LANE + _GAP)  # y of the exchanges among all ranks
    crossings = _shown(plan)
    uses_bus = any(_ends(plan, c) is None for c in crossings)
    bottom = bus + 30 if uses_bus else bus - _GAP + 24
    parts = _axis(plan, scale, bottom)
    for arena in plan.arenas:
        parts += _lane(plan, arena, scale, lanes[arena.name])
    if uses_bus:
        parts.append(rect((MARGIN_LEFT, bus, scale.stop - MARGIN_LEFT, 12), RULE))
        parts.append(text((MARGIN_LEFT - 8, bus + 10), "all ranks", "label", "end"))
    sizes = sent_bytes(plan)
    tensors = {t.name: replace(t, max_bytes=sizes.get(t.name)) for t in plan.tensors}
    taken: dict[tuple[float, int], list[tuple[float, float]]] = {}
    labels: list[str] = []
    for crossing in crossings:
        ends = _ends(plan, crossing)
        first = next(iter(lanes.values()))
        low, high = (first + _LANE, bus) if ends is None else (lanes[ends[0]], lanes[ends[1]])
        if ends is not None:
            low, high = (low + _LANE, high) if low < high else (low, high + _LANE)
        tensor = tensors[crossing.tensor]
        x = scale.at(tensor.first_use if tensor.producer is not None else 0)
        parts += _arrow(crossing, tensor, x, (low, high))
        labels += _label(tensor, x, min(low, high), scale, taken)
    parts += labels  # over all arrows
    kinds = [(CLASS_COLOURS[kind], kind) for kind in _KINDS]
    parts += legend((MARGIN_LEFT, 14), [*kinds, (FORWARD, "forward"), (BACKWARD, "backward")])
    return drawing(bottom + 26, parts, "graph with crossing tensors")


def _shown(plan: TransferPlan) -> list[Crossing]:
    """The largest crossings of a step, the largest first, so that they get the labels."""
    sizes = sent_bytes(plan)
    stepwise = [c for c in plan.crossings if c.phase != "setup"]
    return sorted(stepwise, key=lambda c: (-sizes.get(c.tensor, 0), c.tensor, c.group))[
        :_MOST_ARROWS
    ]


def _ends(plan: TransferPlan, crossing: Crossing) -> tuple[str, str] | None:
    """Arenas at the two ends, None where all members of the group take equal part."""
    group = next(g for g in plan.groups if g.name == crossing.group)
    if crossing.operation not in ROOTED:
        return None
    at = {rank: arena.name for arena in plan.arenas for rank in arena.ranks}
    root = at[crossing.root or 0]
    others = [at[rank] for rank in group.ranks if at[rank] != root]
    if not others:
        return None
    to_root = crossing.operation in ("push", "reduce", "gather")
    return (others[0], root) if to_root else (root, others[0])


def _axis(plan: TransferPlan, scale: Scale, bottom: float) -> list[str]:
    parts = []
    for tick in ticks(plan.op_count):
        x = scale.at(tick)
        parts.append(line((x, _TOP - 6, x, bottom), RULE))
        parts.append(text((x, bottom + 15), str(tick), "small", "middle"))
    parts.append(text((MARGIN_LEFT - 8, bottom + 15), "operation", "small", "end"))
    return parts


def _lane(plan: TransferPlan, arena: Arena, scale: Scale, y: float) -> list[str]:
    """One kind of rank: forward and backward, and how many tensors are made when."""
    middle, end = scale.at(plan.forward_op_count), scale.at(plan.op_count)
    ranks = f"rank {arena.ranks[0]}"
    if len(arena.ranks) > 1:
        ranks = f"ranks {arena.ranks[0]}\u2013{arena.ranks[-1]}"
    parts = [
        rect((scale.start, y, middle - scale.start, _LANE), FORWARD),
        rect((middle, y, end - middle, _LANE), BACKWARD),
        text((MARGIN_LEFT - 8, y + 20), arena.name, "label", "end"),
        text((MARGIN_LEFT - 8, y + 34), ranks, "small", "end"),
    ]
    made = [0] * _BINS
    for tensor in plan.tensors:
        if tensor.producer is not None and (not tensor.homes or arena.name in tensor.homes):
            made[min(_BINS - 1, tensor.first_use * _BINS // max(1, plan.op_count))] += 1
    most = max(made, default=0)
    for index, count in enumerate(made):
        if count:
            start, stop = (scale.at(plan.op_count * (index + k) / _BINS) for k in (0, 1))
            height = (_LANE - 6) * count / most
            box = (start, y + _LANE - height, max(1.0, stop - start - 0.6), height)
            parts.append(rect(box, FAINT, f"{count} tensors made about here", ' opacity="0.55"'))
    return parts


def _arrow(
    crossing: Crossing, tensor: PlannedTensor, x: float, ends: tuple[float, float]
) -> list[str]:
    low, high = ends
    colour = CLASS_COLOURS[tensor.kind]
    shape = ", ".join(map(str, tensor.shape))
    title = (
        f"{crossing.operation} {tensor.name} ({shape}) {tensor.dtype}, {_size(tensor)}, "
        f"{tensor.kind}, {crossing.group}"
    )
    tip = 5 if high > low else -5
    return [
        f"<g><title>{escape(title)}</title>",
        line((x, low, x, high - tip), colour, ' stroke-width="1.3" opacity="0.6"'),
        f'<path d="M{x - 3:.1f} {high - tip:.1f} L{x + 3:.1f} {high - tip:.1f} '
        f'L{x:.1f} {high:.1f} Z" fill="{colour}"/>',
        "</g>",
    ]


def _label(
    tensor: PlannedTensor,
    x: float,
    top: float,
    scale: Scale,
    taken: dict[tuple[float, int], list[tuple[float, float]]],
) -> list[str]:
    """Name and size next to the arrow, in the first row that has room; none without room."""
    words = shortened(f"{tensor.name} {_size(tensor)}", 30 * CHARACTER_WIDTH)
    width = len(words) * CHARACTER_WIDTH
    left = x + 4 if x + 4 + width < scale.stop else x - 4 - width
    for row in range(_LABEL_ROWS):
        if free_label(taken.setdefault((top, row), []), left, width + 6):
            return [text((left, top + 15 + row * LABEL_HEIGHT), words, "tag")]
    return []


def _size(tensor: PlannedTensor) -> str:
    return "size unknown" if tensor.max_bytes is None else bytes_text(tensor.max_bytes)
