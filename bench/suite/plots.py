"""A result as a page: pictures, tables, which peers were missing, and what machine it was.

A picture has a panel for each thing that was timed and a line for each of those compared. Bands
reach from the 10th to the 90th percentile of the samples; baselines are grey and dashed.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.benchlib.record import Record, Result, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import models, samples, tables, transfers
from bench.suite.peers import RDMATENSOR
from bench.suite.settings import PLAIN

_WIDTH_IN, _DPI, _COLUMNS = 11.0, 130, 3
_GREY = "#444444"
# Colours that the colour-blind tell apart, in the order of a picture; rdmatensor has the first.
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#8C6BB1", "#56B4E9", "#8C564B"),
)
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; }
img { max-width: 100%; height: auto; display: block; }
pre { overflow-x: auto; background: #f6f6f6; padding: .8rem; font-size: 12px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
dd { margin: 0; overflow-wrap: anywhere; }
.missing { background: #fff4e0; padding: .5rem 1rem; }
"""
Panels = dict[str, dict[str, list[Record]]]


def _line_of(record: Record) -> str:
    wait = ", sleeping" if record.get("wait") == samples.WAITS["sleep"] else ""
    return text(record, "name") + (wait if record["peer"] in (RDMATENSOR, "floor") else "")


def panels_of(records: Sequence[Record], panel: str, x: str) -> Panels:
    """Return the panels and lines of some records, from small to large; rdmatensor's first."""
    found: Panels = {}
    places = {RDMATENSOR: 0, "floor": 1}
    ordered = sorted(records, key=lambda one: number(one, x))
    for record in sorted(ordered, key=lambda one: places.get(text(one, "peer"), 2)):
        found.setdefault(text(record, panel), {}).setdefault(_line_of(record), []).append(record)
    return found


def grid(panels: Panels, path: Path, x: str, label: str) -> None:
    """Write a picture with a part for each panel, of times over x."""
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(_WIDTH_IN, 0.8 + 2.7 * rows), layout="constrained")
    parts = figure.subplots(rows, columns, squeeze=False).flatten()
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    colours = {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(names)}
    for axes, (title, lines) in zip(parts, panels.items(), strict=False):
        for name, records in lines.items():
            xs = [number(one, x) for one in records]
            style: dict[str, Any] = {"color": colours[name], "marker": "o", "markersize": 4}
            if records[0]["peer"] == "floor":
                style = {"color": _GREY, "linestyle": "--"}
            axes.plot(xs, [number(one, "median_ns") for one in records], label=name, **style)
            low, high = ([samples.figure(one, at) for one in records] for at in samples.BAND)
            axes.fill_between(xs, low, high, color=style["color"], alpha=0.12, lw=0)
        ticks = sorted({number(one, x) for records in lines.values() for one in records})
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(ticks[:: 1 + len(ticks) // 6]))
        axes.xaxis.set_minor_locator(NullLocator())
        as_text = size_text if x == "size" else "{:.0f}".format
        axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _, show=as_text: show(round(at))))
        axes.set_xlabel(label)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda ns, _: time_text(ns)))
        _tidy(axes, title)
    for axes in parts[len(panels) :]:
        axes.set_visible(False)
    _save(figure, path)


def _tidy(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)


def _save(figure: Figure, path: Path) -> None:
    """Write the picture, with one legend of all its parts below them."""
    named = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    columns = max(1, min(4, len(named)))
    figure.legend(named.values(), named, loc="outside lower center", ncols=columns, frameon=False)
    figure.savefig(path, dpi=_DPI)


def _by_size(records: Sequence[Record], topic: str, folder: Path, panel: str) -> list[str]:
    """A picture for each path and number of ranks."""
    files = []
    for transport, ranks in dict.fromkeys(
        (one["transport"], one.get("ranks", "")) for one in records
    ):
        of_path = [
            one for one in records if (one["transport"], one.get("ranks", "")) == (transport, ranks)
        ]
        if len({one["size"] for one in of_path}) > 1:
            files.append(f"{topic}_{transport}_{ranks}".rstrip("_") + ".png")
            grid(panels_of(of_path, panel, "size"), folder / files[-1], "size", "size")
    return files


def of_p2p(records: Sequence[Record], folder: Path) -> list[str]:
    """Time against size, a part for each thing that was timed."""
    moving = [
        one
        for one in records
        if one["language"] != "Python" and transfers.kind_of(one) != "cold start"
    ]
    return _by_size(moving, "p2p", folder, "timed")


def of_collectives(records: Sequence[Record], folder: Path) -> list[str]:
    """Time of a call against size, a part for each operation."""
    moving = [one for one in records if one["op"] not in ("barrier", "device")]
    plain = [one for one in moving if one.get("row", PLAIN) == PLAIN]
    return _by_size(plain, "collectives", folder, "op")


def of_setup(records: Sequence[Record], folder: Path) -> list[str]:
    """Time until ranks can work against their number."""
    if len({record["ranks"] for record in records}) < 2:
        return []
    titled: list[Record] = [{**one, "title": f"{one['transport']}: {one['op']}"} for one in records]
    grid(panels_of(titled, "title", "ranks"), folder / "setup.png", "ranks", "ranks")
    return ["setup.png"]


def of_models(records: Sequence[Record], folder: Path) -> list[str]:
    """Bars of each model's steps for each path, the step without communication dashed."""
    names = [name for name, peer, _ in models.TRAINERS.values() if peer != "floor"]
    colours = dict(zip(names, _COLOURS, strict=False))
    files = []
    for transport in dict.fromkeys(text(record, "transport") for record in records):
        of_path = [record for record in records if record["transport"] == transport]
        shown = [name for name in models.NAMES if any(one["op"] == name for one in of_path)]
        columns = min(_COLUMNS, len(shown))
        rows = -(-len(shown) // columns)
        figure = Figure(figsize=(_WIDTH_IN, 0.7 + 2.9 * rows), layout="constrained")
        parts = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes, model in zip(parts, shown, strict=False):
            for one in (one for one in of_path if one["op"] == model):
                who, seconds = text(one, "name"), number(one, "median_ns") / 1e9
                if who in colours:
                    axes.bar(names.index(who), seconds, color=colours[who], label=who)
                elif who == models.FLOOR:
                    axes.axhline(seconds, color=_GREY, linestyle="--", label=who)
            axes.set_xticks([])
            axes.set_ylabel("seconds a step")
            _tidy(axes, model)
        for axes in parts[len(shown) :]:
            axes.set_visible(False)
        files.append(f"models_{transport}.png")
        _save(figure, folder / files[-1])
    return files


PICTURES: dict[str, Callable[[Sequence[Record], Path], list[str]]] = {
    "p2p": of_p2p,
    "collectives": of_collectives,
    "setup": of_setup,
    "models": of_models,
}


def write(result: Result, folder: Path) -> Path:
    """Write index.html and its pictures into a folder, which is made; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [record for run in result.runs for record in run.records]
    busiest = max((run.foreign_cpus for run in result.runs), default=0.0)
    facts = {**result.machine, "cores that others kept busy": f"{busiest:.2f}", "kind": result.name}
    body = [
        "<h1>rdmatensor and others</h1>",
        f"<p>Made by <code>{html.escape(result.command)}</code>. All peers took turns in one run; "
        "ratios count, times are this machine's.</p><dl>",
        *(
            f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(of))}</dd>"
            for name, of in facts.items()
        ),
        "</dl>",
        *(
            f'<p class="missing">{html.escape(line)}</p>'
            for line in dict.fromkeys(tables.missing(records))
        ),
    ]
    for topic in tables.TABLES:
        of_topic = tables.of_topic(records, topic)
        files = PICTURES[topic](of_topic, folder) if of_topic and topic in PICTURES else []
        if of_topic:
            body += [f"<h2>{topic}</h2>", *(f'<img src="{one}" alt="{one}">' for one in files)]
            body.append(f"<pre>{html.escape(tables.table_of(topic, records))}</pre>")
    page = folder / "index.html"
    page.write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>rdmatensor bench'
        f"</title><style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n",
        encoding="utf-8",
    )
    return page
