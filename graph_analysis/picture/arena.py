"""Picture: the tensors in an arena, over the operations of a step."""

from graph_analysis.picture.svg import (
    BACKWARD,
    CHARACTER_WIDTH,
    CLASS_COLOURS,
    FAINT,
    MARGIN_LEFT,
    RULE,
    Scale,
    drawing,
    line,
    rect,
    shortened,
    text,
    ticks,
    x_scale,
)
from graph_analysis.plan import Arena, Placement, PlannedTensor, TransferPlan
from graph_analysis.report import bytes_text

_HEIGHT = 230
_TOP = 26
_MOST_BOXES = 1500  # the largest; others would be too thin to see


def draw_arena(plan: TransferPlan, arena: Arena) -> str:
    """Boxes from first to last use and from offset to end, the largest of them labelled."""
    scale = x_scale(plan.op_count + 1)
    heights = Scale(arena.peak_bytes, _TOP + _HEIGHT, _TOP)
    tensors = {t.name: t for t in plan.tensors}
    parts = _axes(plan, arena, scale, heights)
    shown = sorted(arena.placements, key=lambda p: (-p.size_bytes, p.offset))[:_MOST_BOXES]
    for place in sorted(shown, key=lambda p: (p.first_use, p.offset)):
        parts += _box(tensors[place.tensor], place, scale, heights)
    parts += _live_line(plan, arena, scale, heights)
    return drawing(_TOP + _HEIGHT + 24, parts, f"arena {arena.name} over time")


def _axes(plan: TransferPlan, arena: Arena, scale: Scale, heights: Scale) -> list[str]:
    bottom = heights.start
    parts = []
    for tick in ticks(plan.op_count):
        x = scale.at(tick)
        parts.append(line((x, _TOP, x, bottom), RULE))
        parts.append(text((x, bottom + 15), str(tick), "small", "middle"))
    start = scale.at(plan.forward_op_count)
    box = (start, _TOP, scale.at(plan.op_count) - start, _HEIGHT)
    parts.append(rect(box, BACKWARD, extra=' opacity="0.35"'))
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = heights.at(arena.peak_bytes * share)
        parts.append(line((MARGIN_LEFT, y, scale.stop, y), RULE))
        label = bytes_text(round(arena.peak_bytes * share))
        parts.append(text((MARGIN_LEFT - 8, y + 4), label, "small", "end"))
    parts.append(text((MARGIN_LEFT - 8, bottom + 15), "operation", "small", "end"))
    words = (
        f"{arena.name}: {bytes_text(arena.peak_bytes)}, without reuse "
        f"{bytes_text(arena.naive_bytes)}, largest live set {bytes_text(arena.lower_bound_bytes)}"
    )
    return [*parts, text((MARGIN_LEFT, 14), words, "label")]


def _box(tensor: PlannedTensor, place: Placement, scale: Scale, heights: Scale) -> list[str]:
    left, right = scale.at(place.first_use), scale.at(place.last_use + 1)
    low = heights.at(place.offset)
    high = heights.at(place.offset + place.size_bytes)
    whose = "" if place.origin is None else f" of rank {place.origin}"
    title = (
        f"{tensor.name}{whose}: {place.size_bytes} bytes at {place.offset}, "
        f"operations {place.first_use} to {place.last_use}"
    )
    box = (left, high, right - left, max(0.4, low - high))
    edge = ' stroke="#fff" stroke-width="0.5" opacity="0.85"'
    parts = [rect(box, CLASS_COLOURS[tensor.kind], title, edge)]
    if low - high >= 12:
        words = shortened(f"{tensor.name}{whose}", right - left - CHARACTER_WIDTH)
        if words:
            parts.append(text((left + 4, (low + high) / 2 + 4), words, "inside"))
    return parts


def _live_line(plan: TransferPlan, arena: Arena, scale: Scale, heights: Scale) -> list[str]:
    """Bytes alive at each moment, as a step line: the layout cannot be lower than its top."""
    change: dict[int, int] = {}
    for place in arena.placements:
        change[place.first_use] = change.get(place.first_use, 0) + place.size_bytes
        change[place.last_use + 1] = change.get(place.last_use + 1, 0) - place.size_bytes
    alive = 0
    points = [f"M{scale.at(0):.1f} {heights.at(0):.1f}"]
    for moment in sorted(change):
        points.append(f"H{scale.at(moment):.1f}")
        alive += change[moment]
        points.append(f"V{heights.at(alive):.1f}")
    points.append(f"H{scale.at(plan.op_count + 1):.1f}")
    path = " ".join(points)
    style = f'fill="none" stroke="{FAINT}" stroke-width="1.2" stroke-dasharray="4 3"'
    return [f'<path d="{path}" {style}><title>bytes alive</title></path>']
