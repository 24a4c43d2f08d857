"""CITATION.cff names the version and licence of pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def field(file_name: str, pattern: str) -> str:
    found = re.search(pattern, (ROOT / file_name).read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, f"{file_name} has no {pattern}"
    return found[1]


def test_the_citation_is_of_this_version() -> None:
    assert field("CITATION.cff", r"^version: (\S+)$") == field(
        "pyproject.toml", r'^version = "([^"]+)"$'
    )
    assert field("CITATION.cff", r"^license: (\S+)$") == field(
        "pyproject.toml", r'^license = "([^"]+)"$'
    )
