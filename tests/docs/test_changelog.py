"""The changelog has at most 60 lines for a version, and its fragments are of a known form."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TYPES = ("added", "changed", "deprecated", "removed", "fixed", "security")


def test_a_version_has_at_most_60_lines() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.split(r"^## ", text, flags=re.MULTILINE)
    assert len(versions) > 1
    assert [len(one.splitlines()) for one in versions if len(one.splitlines()) > 60] == []


def test_a_fragment_is_one_sentence_of_a_type() -> None:
    for path in sorted((ROOT / "changes").glob("*.md")):
        assert re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(TYPES)})\.md", path.name)
        assert len(path.read_text(encoding="utf-8").strip().splitlines()) == 1, path.name
