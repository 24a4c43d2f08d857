"""The page of a result: well-formed, with its pictures, and as a browser shows it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from matplotlib.figure import Figure

from bench.benchlib.machine import ROOT
from bench.benchlib.record import Record, Result, Run, load
from bench.suite import page, plots, samples
from bench.suite.peers import OURS

_VOID = {"meta", "img"}
_LOOK = """<script>onload = () => {
  const widths = [...document.images].map(one => one.naturalWidth);
  const fits = document.documentElement.scrollWidth <= innerWidth;
  document.title = `${widths.every(one => one > 0)} ${widths.length} ${fits}`;
}</script>"""


class _Page(HTMLParser):
    """Notes what is open, and each picture; a tag that closes another one fails."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.pictures: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.pictures.append(dict(attrs))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of kept messages."""
    kept = load(ROOT / "bench" / "results" / "p2p.json")
    records = [
        one
        for one in kept.quietest.records
        if one.get("timed") == samples.HALF and one.get("transport") == "shm"
    ]
    missing: Record = {"topic": "p2p", "peer": "<x> & y", "missing": "so", "get": ""}
    result = Result(kept.name, kept.command, kept.machine, [Run([*records, missing], 0.0, 1.0)])
    return page.write(result, tmp_path_factory.mktemp("page"))


def test_all_tags_are_closed_and_each_picture_is_there_and_described(written: Path) -> None:
    words = written.read_text(encoding="utf-8")
    parser = _Page()
    parser.feed(words)
    assert not parser.open
    assert words.startswith("<!doctype html>")
    assert "&lt;x&gt; &amp; y" in words
    assert len(parser.pictures) == 2
    for picture in parser.pictures:
        assert (written.parent / str(picture["src"])).stat().st_size > 0
        assert picture["alt"]


def test_a_browser_shows_all_pictures_and_nothing_too_wide(written: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium")
    looked_at = written.with_name("looked_at.html")
    looked_at.write_text(written.read_text(encoding="utf-8") + _LOOK, encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,2000"]
    profile = f"--user-data-dir={written.parent / 'profile'}"
    done = subprocess.run(
        [browser, *flags, profile, "--dump-dom", looked_at.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert "<title>true 2 true</title>" in done.stdout


def test_a_legend_of_long_names_is_not_cut(tmp_path: Path) -> None:
    figure = Figure(figsize=(plots.WIDTH_IN, 3), layout="constrained")
    axes = figure.subplots()
    for place in range(6):
        axes.plot([0, 1], label=f"{OURS}, with a name of many words, {place}")
    plots.save(figure, tmp_path / "kept.png")
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 6
    assert legend.get_window_extent().width <= figure.bbox.width
