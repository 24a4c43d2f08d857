"""A result as a page: pictures, tables, who was missing, and what machine it was."""

from __future__ import annotations

import html
from pathlib import Path

from bench.benchlib.record import Record, Result
from bench.suite import plots, tables

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; }
h1, h2 { line-height: 1.2; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
img { max-width: 100%; height: auto; display: block; }
figure { margin: 1.5rem 0; }
figcaption { color: #555; }
pre { overflow-x: auto; background: #f6f6f6; padding: .8rem; font-size: 12px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
dt { color: #555; }
dd { margin: 0; overflow-wrap: anywhere; }
.missing { background: #fff4e0; padding: .5rem 1rem; }
"""
_PX_PER_IN = 100
_TITLES = {
    "p2p": "Point to point",
    "collectives": "Collectives",
    "setup": "Set-up",
    "models": "Training steps",
    "convergence": "Loss over time",
    "copies": "The copy variant beside UCX",
    "scale": "Scale on paper",
    "busy": "A busy machine",
    "hosts": "Hosts with several ranks",
}


def write(result: Result, folder: Path) -> Path:
    """Write index.html and its pictures into a folder, which is made; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [record for run in result.runs for record in run.records]
    body = [
        "<h1>rdmatensor beside others</h1>",
        f"<p>Made by <code>{html.escape(result.command)}</code>. All contestants took turns in one "
        "run; ratios count, times are this machine's. Bands reach from the 10th to the 90th "
        "hundredth of the same samples that the median is of: all of a file, of ucx_perftest, "
        "which prints no more, the medians of its turns.</p>",
        *_machine(result),
        *[
            f'<p class="missing">{html.escape(line)}</p>'
            for line in dict.fromkeys(tables.missing(records))
        ],
    ]
    for topic in tables.TABLES:
        of_topic = tables.of_topic(records, topic)
        if of_topic:
            body += [f"<h2>{_TITLES[topic]}</h2>", *_pictures(topic, of_topic, folder)]
            body += [
                "<details><summary>All figures</summary>"
                f"<pre>{html.escape(tables.table_of(topic, records))}</pre></details>"
            ]
    page = folder / "index.html"
    page.write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>rdmatensor beside others</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n",
        encoding="utf-8",
    )
    return page


def _pictures(topic: str, records: list[Record], folder: Path) -> list[str]:
    return [
        f'<figure><img src="{html.escape(picture.file)}" alt="{html.escape(picture.caption)}" '
        f'width="{picture.width_in * _PX_PER_IN:.0f}">'
        f"<figcaption>{html.escape(picture.caption)}</figcaption></figure>"
        for picture in (plots.PICTURES[topic](records, folder) if topic in plots.PICTURES else [])
    ]


def _machine(result: Result) -> list[str]:
    busiest = max((run.foreign_cpus for run in result.runs), default=0.0)
    facts = {
        **result.machine,
        "cores that others kept busy": f"{busiest:.2f}",
        "kind": result.name,
    }
    return [
        "<dl>",
        *[
            f"<dt>{html.escape(name.replace('_', ' '))}</dt><dd>{html.escape(_words(value))}</dd>"
            for name, value in facts.items()
        ],
        "</dl>",
    ]


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
