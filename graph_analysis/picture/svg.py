"""Small pieces of SVG, and the scales that the drawings share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from graph_analysis.ir import TensorClass

WIDTH = 1040
MARGIN_LEFT = 140
MARGIN_RIGHT = 22
# Estimates for the page's font; labels that do not fit are tooltips only.
CHARACTER_WIDTH = 6.2
LABEL_HEIGHT = 13

CLASS_COLOURS: dict[TensorClass, str] = {
    "static": "#3a6ea5",
    "bounded": "#d98218",
    "dynamic": "#b8323c",
}
INK = "#1f2933"
FAINT = "#8a94a0"
RULE = "#dfe4ea"
FORWARD = "#dbe7f3"
BACKWARD = "#f1e4d2"


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps [0, top] of some quantity to [start, stop] of the drawing."""

    top: float
    start: float
    stop: float

    def at(self, value: float) -> float:
        """The place of a value; an empty range maps to its start."""
        share = value / self.top if self.top > 0 else 0.0
        return self.start + share * (self.stop - self.start)


def x_scale(top: float) -> Scale:
    """The horizontal scale of a whole drawing."""
    return Scale(top, MARGIN_LEFT, WIDTH - MARGIN_RIGHT)


def number(value: float) -> str:
    """A coordinate, with as many digits as can be seen."""
    return f"{value:.1f}".removesuffix(".0")


def rect(
    box: tuple[float, float, float, float], fill: str, title: str = "", extra: str = ""
) -> str:
    """A rectangle x, y, width, height; the title is shown when the pointer rests on it."""
    x, y, width, height = (number(v) for v in box)
    shape = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}"{extra}'
    return f"{shape}><title>{escape(title)}</title></rect>" if title else f"{shape}/>"


def line(ends: tuple[float, float, float, float], stroke: str, extra: str = "") -> str:
    """A line from x, y to x, y."""
    x1, y1, x2, y2 = (number(v) for v in ends)
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{stroke}"{extra}/>'


def text(at: tuple[float, float], words: str, kind: str = "", anchor: str = "start") -> str:
    """Text whose baseline starts, is centred or ends at a point."""
    x, y = (number(v) for v in at)
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}"{style} text-anchor="{anchor}">{escape(words)}</text>'


def drawing(height: float, parts: Iterable[str], label: str) -> str:
    """A whole picture of the common width."""
    body = "\n".join(parts)
    size = f'viewBox="0 0 {WIDTH} {number(height)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
        f'aria-label="{escape(label, quote=True)}">\n{body}\n</svg>'
    )


def shortened(words: str, room: float) -> str:
    """The text if it fits, else its end after an ellipsis; empty if even that is too long."""
    most = int(room / CHARACTER_WIDTH)
    if len(words) <= most:
        return words
    return f"\u2026{words[1 - most :]}" if most >= 6 else ""


def ticks(top: float, count: int = 6) -> list[int]:
    """Round numbers from 0 to top, about `count` of them."""
    if top <= 0:
        return [0]
    step = 1
    for candidate in _steps():
        step = candidate
        if top / candidate <= count:
            break
    return list(range(0, int(top) + 1, step))


def _steps() -> Iterable[int]:
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


def free_label(taken: list[tuple[float, float]], start: float, width: float) -> bool:
    """Whether a label fits on a line next to the others; if so it is noted as taken."""
    if any(start < stop and begin < start + width for begin, stop in taken):
        return False
    taken.append((start, start + width))
    return True


def legend(at: tuple[float, float], entries: Sequence[tuple[str, str]]) -> list[str]:
    """Colours with their meaning, side by side."""
    x, y = at
    parts = []
    for fill, words in entries:
        parts.append(rect((x, y - 9, 10, 10), fill))
        parts.append(text((x + 15, y), words, "small"))
        x += 30 + len(words) * CHARACTER_WIDTH
    return parts
