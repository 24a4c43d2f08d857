"""The page: the plan in words, its pictures, and the whole report below them."""

from html import escape

from graph_analysis.picture.arena import draw_arena
from graph_analysis.picture.buckets import draw_buckets
from graph_analysis.picture.graph import draw_graph
from graph_analysis.plan import TransferPlan, sent_bytes
from graph_analysis.report import bytes_text, render_text, symbol_lines

_MOST_ARENAS = 12
_STYLE = """
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #1f2933; background: #fff;
       max-width: 1080px; margin: 24px auto; padding: 0 20px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 30px 0 2px; }
p { margin: 2px 0 8px; color: #52606d; }
dl { display: grid; grid-template-columns: 150px 1fr; gap: 2px 12px; margin: 12px 0; }
dt { color: #52606d; } dd { margin: 0; overflow-wrap: anywhere; }
.lost { border-left: 4px solid #b8323c; padding: 4px 12px; background: #fbf1f1; }
.lost ul { margin: 2px 0; padding-left: 18px; }
svg { width: 100%; height: auto; display: block; margin-bottom: 10px; }
svg text { font: 11px "DejaVu Sans", sans-serif; fill: #1f2933; }
svg text.small { fill: #52606d; } svg text.inside { fill: #fff; }
svg text.label { font-size: 12px; }
svg text.tag { font-size: 10.5px; paint-order: stroke; stroke: #fff; stroke-width: 3px; }
pre { background: #f5f7fa; padding: 12px; overflow-x: auto; font-size: 12.5px; line-height: 1.4; }
"""


def render_html(plan: TransferPlan) -> str:
    """The page of a plan; the same plan gives the same bytes."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<title>Transfer plan: {escape(plan.strategy.kind)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        "<h1>Transfer plan</h1>",
        _facts(plan),
        _lost(plan),
        *_pictures(plan),
        "<h2>Report</h2>",
        f"<pre>{escape(render_text(plan))}</pre>",
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _facts(plan: TransferPlan) -> str:
    options = ", ".join(f"{name}={value}" for name, value in plan.strategy.options)
    sizes = sent_bytes(plan)
    sent = [sizes.get(c.tensor) for c in plan.crossings if c.phase != "setup"]
    unsized = sum(size is None for size in sent)
    crossing = f"{len(sent)} tensors, {bytes_text(sum(size or 0 for size in sent))}"
    counts = [
        f"{sum(t.kind == k for t in plan.tensors)} {k}" for k in ("static", "bounded", "dynamic")
    ]
    rows = [
        ("strategy", f"{plan.strategy.kind} ({options})"),
        ("captured", f"{plan.source}, {plan.op_count} operations, {plan.captured_with}"),
        ("tensors", ", ".join(counts)),
        ("crossing a step", crossing + (f" and {unsized} of unknown size" if unsized else "")),
        ("messages", f"{len(plan.buckets)} buckets"),
        ("fingerprint", plan.fingerprint()),
        *(("symbol", line) for line in symbol_lines(plan)),
    ]
    return "<dl>" + "".join(f"<dt>{k}</dt><dd>{escape(v)}</dd>" for k, v in rows) + "</dl>"


def _lost(plan: TransferPlan) -> str:
    if not plan.omissions:
        return ""
    items = "".join(f"<li>{escape(o.subject)}: {escape(o.reason)}</li>" for o in plan.omissions)
    return f'<div class="lost">Left out<ul>{items}</ul></div>'


def _pictures(plan: TransferPlan) -> list[str]:
    if not any(c.phase != "setup" for c in plan.crossings):
        return ["<p>Nothing crosses ranks in a step, so there is nothing to draw.</p>"]
    arenas = [arena for arena in plan.arenas if arena.placements]
    parts = [
        "<h2>Graph</h2>",
        "<p>Operations from left to right, in grey how many tensors they make. Arrows are "
        "tensors that cross, at the operation that makes them; the largest are named.</p>",
        draw_graph(plan),
    ]
    if arenas:
        parts.append("<h2>Arena over time</h2>")
        parts.append(
            "<p>Each box is a tensor, from its first to its last use; the dashed line counts "
            "the bytes alive. Boxes above one another share no byte.</p>"
        )
        parts += [draw_arena(plan, arena) for arena in arenas[:_MOST_ARENAS]]
        if len(arenas) > _MOST_ARENAS:
            parts.append(f"<p>and {len(arenas) - _MOST_ARENAS} more arenas</p>")
    if plan.buckets:
        parts.append("<h2>Buckets over time</h2>")
        parts.append(
            "<p>When each bucket leaves, by the cost model, not measured; the dashed line is "
            "the end of the computation.</p>"
        )
        parts.append(draw_buckets(plan))
    return parts
