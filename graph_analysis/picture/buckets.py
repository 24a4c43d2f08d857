"""Picture: when each bucket is ready, is sent and has arrived, next to the computation."""

from graph_analysis.picture.svg import (
    BACKWARD,
    CHARACTER_WIDTH,
    FAINT,
    FORWARD,
    MARGIN_LEFT,
    RULE,
    Scale,
    drawing,
    legend,
    line,
    rect,
    shortened,
    text,
    ticks,
    x_scale,
)
from graph_analysis.plan import PlannedBucket, TransferPlan
from graph_analysis.report import bytes_text

_ROW = 30
_BAR = 18
_TOP = 34
_SENDING = "#2f8f6b"
_MOST_STREAMS = 24
_DASHED = ' stroke-dasharray="4 3"'

_Stream = tuple[str, str, str]


def draw_buckets(plan: TransferPlan) -> str:
    """A row for the computation and one for each operation and group."""
    last = max((b.finish_ns for b in plan.buckets), default=0)
    scale = x_scale(max(last, plan.end_ns) or 1)
    streams: dict[_Stream, list[PlannedBucket]] = {}
    for bucket in plan.buckets:
        streams.setdefault((bucket.phase, bucket.operation, bucket.group), []).append(bucket)
    shown = list(streams.items())[:_MOST_STREAMS]
    bottom = _TOP + (len(shown) + 1) * _ROW
    parts = _axis(scale, bottom)
    forward = plan.forward_end_ns
    parts += [
        text((MARGIN_LEFT - 8, _TOP + 13), "computation", "label", "end"),
        rect((scale.start, _TOP, scale.at(forward) - scale.start, _BAR), FORWARD, "forward"),
        rect(
            (scale.at(forward), _TOP, scale.at(plan.end_ns) - scale.at(forward), _BAR),
            BACKWARD,
            "backward",
        ),
        line((scale.at(plan.end_ns), _TOP, scale.at(plan.end_ns), bottom), FAINT, _DASHED),
    ]
    for row, ((phase, operation, group), buckets) in enumerate(shown, 1):
        begin = forward if phase == "backward" else 0
        parts += _stream(_name(operation, group), buckets, begin, scale, _TOP + row * _ROW)
    if len(streams) > len(shown):
        words = f"and {len(streams) - len(shown)} more groups"
        parts.append(text((MARGIN_LEFT, bottom + 30), words, "small"))
    entries = [(_SENDING, "on the link"), (FAINT, "waiting for the last of its tensors")]
    parts += legend((MARGIN_LEFT, 14), entries)
    return drawing(bottom + 36, parts, "time line of the buckets")


def _axis(scale: Scale, bottom: float) -> list[str]:
    unit, per_unit = ("ms", 1e6) if scale.top >= 5e6 else ("us", 1e3)
    parts = []
    for tick in ticks(scale.top / per_unit):
        x = scale.at(tick * per_unit)
        parts.append(line((x, _TOP - 4, x, bottom), RULE))
        parts.append(text((x, bottom + 15), f"{tick} {unit}", "small", "middle"))
    return parts


def _stream(
    name: str, buckets: list[PlannedBucket], begin_ns: int, scale: Scale, y: float
) -> list[str]:
    """A row of buckets. None of their tensors is ready before begin_ns."""
    label = shortened(name, MARGIN_LEFT - 8)
    parts = [text((MARGIN_LEFT - 8, y + 13), label, "label", "end")]
    before = begin_ns
    for number, b in enumerate(buckets):
        start, stop = scale.at(b.start_ns), scale.at(b.finish_ns)
        title = (
            f"{b.operation} {number}: {len(b.tensors)} tensors, {bytes_text(b.payload_bytes)} "
            f"{b.dtype}, ready {b.ready_ns / 1000:.1f} us, sent {b.start_ns / 1000:.1f} "
            f"to {b.finish_ns / 1000:.1f} us, from {b.tensors[0]} to {b.tensors[-1]}"
        )
        filling = scale.at(b.ready_ns) - scale.at(before)
        if filling > 0.5:
            box = (scale.at(before), y + _BAR + 2, filling, 3)
            parts.append(rect(box, FAINT, f"filling of {number}", ' stroke="#fff"'))
        before = b.ready_ns
        edge = ' stroke="#fff" stroke-width="0.8" rx="2"'
        parts.append(rect((start, y, max(1.2, stop - start), _BAR), _SENDING, title, edge))
        words = shortened(bytes_text(b.payload_bytes), stop - start - CHARACTER_WIDTH)
        if words and "\u2026" not in words:
            parts.append(text(((start + stop) / 2, y + 13), words, "inside", "middle"))
    return parts


def _name(operation: str, group: str) -> str:
    """Name of a row; a send is between the two ranks that its group names."""
    return group if operation == "send" else f"{operation} {group}"
