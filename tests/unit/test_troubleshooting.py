"""complaints.md answers each complaint in one row, with tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEST = re.compile(r"`([\w/.]+)`: `(\w+)`")
ROWS = re.findall(
    r"(?m)^\| \*\*(\d+)\. [^|]* \| [^|]* \| (`[^|]*`) \|$",
    (ROOT / "docs/developer/complaints.md").read_text(encoding="utf-8"),
)


def test_each_complaint_has_its_row() -> None:
    assert [int(number) for number, _ in ROWS] == list(range(1, 21))


def test_the_tests_that_are_named_exist() -> None:
    for number, cell in ROWS:
        named = TEST.findall(cell)
        assert "; ".join(f"`{file}`: `{name}`" for file, name in named) == cell, number
        for file, name in named:
            source = (ROOT / file).read_text(encoding="utf-8")
            found = re.search(rf"\bdef {name}\(|\bTEST(?:_TIMEOUT)?\({name}\b", source)
            assert found, (file, name)
