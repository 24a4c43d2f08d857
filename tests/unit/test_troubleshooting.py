"""docs/troubleshooting.md answers each complaint in one row, with a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"(?m)^\| \*\*(\d+)\. .*\| `([\w/.]+)`: `(\w+)` \|$",
    (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"),
)


def test_each_complaint_has_its_row() -> None:
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 21))


def test_the_tests_that_are_named_exist() -> None:
    for _, file, name in ROWS:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"\bdef {name}\(|\bTEST(?:_TIMEOUT)?\({name}\b", source), (file, name)
