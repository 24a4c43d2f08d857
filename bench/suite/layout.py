"""Tables of text, and the mean of ratios."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def geometric(ratios: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def layout(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Lay cells out in columns; the first two to the left, figures to the right."""
    cells = [list(heads), *(list(line) for line in lines)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(heads))]
    rows = [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    rows.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(rows)
