"""A plan as text for people."""

from collections.abc import Iterable, Sequence

from graph_analysis.ir import Role, TensorClass
from graph_analysis.plan import TransferPlan, block_grid, sent_bytes

_ROLES: tuple[Role, ...] = (
    "parameter",
    "gradient",
    "buffer",
    "constant",
    "input",
    "activation",
    "loss",
    "backward",
)
_KINDS: tuple[TensorClass, ...] = ("static", "bounded", "dynamic")
_LOSS = {
    "loss_fn": "the given loss_fn",
    "output_sum": "the sum of the floating outputs, since no loss_fn was given",
}
_SOURCE = {
    "joint_graph": "forward and backward graph",
    "pieces": "graphs between the graph breaks, see below",
    "recorded": "what a backend saw in the first steps",
    "module": "parameters and buffers of the module only, see below",
}
# A screenful; the JSON has them all.
_MAX_BUCKETS = 20
_MAX_UNSIZED = 20


def render_text(plan: TransferPlan) -> str:
    """The report, ending in a newline. Bytes are exact, units in powers of 1024."""
    sections = [
        _header(plan),
        _homes(plan),
        _classes(plan),
        _unsized(plan),
        _over_share(plan),
        _thinned(plan),
        _crossings(plan),
        _buckets(plan),
        _arena(plan),
        _omissions(plan),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def bytes_text(count: int) -> str:
    """A number of bytes with a unit, for people."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns lined up, the first to the left and the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def _header(plan: TransferPlan) -> list[str]:
    options = ", ".join(f"{name}={value}" for name, value in plan.strategy.options)
    lines = [
        "Transfer plan",
        f"  strategy     {plan.strategy.kind} ({options})",
        f"  captured     {_SOURCE[plan.source]}, {plan.op_count} operations, {plan.captured_with}",
        f"  loss         {_LOSS[plan.loss]}",
        f"  fingerprint  {plan.fingerprint()}",
    ]
    return [*lines, *(f"  symbol       {line}" for line in symbol_lines(plan))]


def symbol_lines(plan: TransferPlan) -> list[str]:
    """Every symbol with what makes it and its bounds."""
    lines = []
    for s in plan.symbols:
        upper = "no maximum" if s.upper is None else f"at most {s.upper}"
        where = f"computed by {s.source}" if s.dim is None else f"{s.source}, dimension {s.dim}"
        lines.append(f"{s.name}: {where}, at least {s.lower}, {upper}")
    return lines


def _homes(plan: TransferPlan) -> list[str]:
    """The tensors of each kind of rank, where they differ."""
    if len(plan.arenas) < 2:
        return []
    rows = [["Ranks", "of", "parameters", "bytes", "gradients", "arena"]]
    for arena in plan.arenas:
        held = [t for t in plan.tensors if not t.homes or arena.name in t.homes]
        parameters = [t for t in held if t.role == "parameter"]
        total = bytes_text(sum(t.max_bytes or 0 for t in parameters))
        gradients = sum(t.role == "gradient" for t in held)
        ranks = (
            f"{arena.ranks[0]}" if len(arena.ranks) == 1 else f"{arena.ranks[0]}-{arena.ranks[-1]}"
        )
        counts = [str(len(parameters)), total, str(gradients)]
        rows.append([arena.name, ranks, *counts, bytes_text(arena.peak_bytes)])
    return _table(rows)


def _classes(plan: TransferPlan) -> list[str]:
    rows: list[list[str]] = [
        ["Tensors", *(f"{kind} {what}" for kind in _KINDS for what in ("n", "max bytes"))]
    ]
    for role in _ROLES:
        row: list[str] = [role]
        for kind in _KINDS:
            chosen = [t for t in plan.tensors if (t.role, t.kind) == (role, kind)]
            total = sum(t.max_bytes or 0 for t in chosen)
            row += [str(len(chosen)), "-" if kind == "dynamic" else bytes_text(total)]
        if any(cell not in ("0", "-", "0 B") for cell in row[1:]):
            rows.append(row)
    return _table(rows)


def _unsized(plan: TransferPlan) -> list[str]:
    chosen = sorted(
        (t for t in plan.tensors if t.kind != "static" and t.role != "backward"),
        key=lambda t: (-(t.max_bytes or 0), t.name),
    )
    if not chosen:
        return []
    rows = [["Largest without a fixed size", "kind", "shape", "max", "because of"]]
    for t in chosen[:_MAX_UNSIZED]:
        shape = "(" + ", ".join(map(str, t.shape)) + ")"
        top = "none" if t.max_bytes is None else bytes_text(t.max_bytes)
        rows.append([t.name, t.kind, shape, top, ", ".join(t.symbols)])
    return _table(rows) + _rest(chosen, _MAX_UNSIZED)


def _over_share(plan: TransferPlan) -> list[str]:
    chosen = [t for t in plan.tensors if t.kind == "dynamic" and t.max_bytes is not None]
    if not chosen:
        return []
    policy = plan.policy
    limit = f"{policy.bounded_share_percent} % of an arena of {bytes_text(policy.arena_bytes)}"
    return [
        f"Bounded, but counted as dynamic: a slot would take more than {limit}",
        *(f"  {t.name}: at most {bytes_text(t.max_bytes or 0)}" for t in chosen[:_MAX_UNSIZED]),
        *_rest(chosen, _MAX_UNSIZED),
    ]


def _rest(items: Sequence[object], shown: int) -> list[str]:
    return [f"  and {len(items) - shown} more"] if len(items) > shown else []


def _thinned(plan: TransferPlan) -> list[str]:
    """The gradients of which a part is sent."""
    if not plan.live:
        return []
    tensors, sizes = {t.name: t for t in plan.tensors}, sent_bytes(plan)
    rows = [["Sent in part", "block", "live blocks", "of", "bytes", "of"]]
    for one in plan.live[:_MAX_UNSIZED]:
        tensor = tensors[one.tensor]
        high, wide = block_grid(tensor, one.block)
        counts = [str(len(one.live)), str(high * wide), str(sizes[one.tensor])]
        sides = f"{one.block[0]}x{one.block[1]}"
        rows.append([one.tensor, sides, *counts, str(tensor.max_bytes)])
    return _table(rows) + _rest(plan.live, _MAX_UNSIZED)


def _crossings(plan: TransferPlan) -> list[str]:
    if not plan.crossings:
        return ["Nothing crosses ranks."]
    sizes = sent_bytes(plan)
    rows = [["Crossing", "operation", "tensors", "bytes"]]
    found: dict[tuple[str, str], list[str]] = {}
    for c in plan.crossings:
        found.setdefault((c.phase, c.operation), []).append(c.tensor)
    for (phase, operation), names in found.items():
        when = "once, at set-up" if phase == "setup" else f"every step, {phase}"
        rows.append([when, operation, str(len(names)), _sum(map(sizes.get, names))])
    return _table(rows)


def _sum(sizes: Iterable[int | None]) -> str:
    known = list(sizes)
    total = sum(size for size in known if size is not None)
    unknown = sum(size is None for size in known)
    return f"{total}" + (f" + {unknown} dynamic" if unknown else "")


def _buckets(plan: TransferPlan) -> list[str]:
    if not plan.buckets:
        return []
    rows = [["Bucket", "operation", "dtype", "tensors", "bytes", "ready us", "done us", "first"]]
    for index, b in enumerate(plan.buckets[:_MAX_BUCKETS]):
        times = [f"{b.ready_ns / 1000:.1f}", f"{b.finish_ns / 1000:.1f}"]
        counts = [str(len(b.tensors)), str(b.payload_bytes)]
        rows.append([str(index), b.operation, b.dtype, *counts, *times, b.tensors[0]])
    cost = plan.cost
    note = (
        f"  times assumed, not measured: {cost.latency_ns / 1000:g} us a message, "
        f"{cost.bandwidth_bytes_per_s / 1e9:g} GB/s, {cost.op_ns / 1000:g} us an operation, "
        f"{cost.memory_bytes_per_s / 1e9:g} GB/s of memory traffic"
    )
    return [*_table(rows), *_rest(plan.buckets, _MAX_BUCKETS), note]


def _arena(plan: TransferPlan) -> list[str]:
    chosen = [arena for arena in plan.arenas if arena.placements]
    if not chosen:
        return []
    rows = [["Arena", "tensors", "bytes", "without reuse", "largest live set", "aligned to"]]
    for a in chosen:
        sizes = [a.peak_bytes, a.naive_bytes, a.lower_bound_bytes, a.alignment_bytes]
        rows.append([a.name, str(len(a.placements)), *map(str, sizes)])
    return _table(rows)


def _omissions(plan: TransferPlan) -> list[str]:
    if not plan.omissions:
        return ["Nothing was left out."]
    return ["Left out", *(f"  {o.subject}: {o.reason}" for o in plan.omissions)]
