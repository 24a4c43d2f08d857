"""README.md is one page; its links lead somewhere, and its first program is examples/hello.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PICTURES = ROOT / "docs/_static/pictures"
DRAWN = (ROOT / "docs/_ext/pictures.py").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def anchors_of(page: Path) -> set[str]:
    """Return the names that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


def is_there(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    if target.parent.resolve() == PICTURES:  # the build of the site draws them
        return f"def {target.stem}()" in DRAWN
    return target.is_file() and (not anchor or anchor in anchors_of(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not is_there(page, link)] == []


def test_a_link_to_a_heading_that_is_gone_is_found() -> None:
    page = "docs/reference/torch.md"
    assert is_there(ROOT / "README.md", f"{page}#support-matrix")
    assert not is_there(ROOT / "README.md", f"{page}#support")
    assert not is_there(ROOT / "README.md", "docs/torch.txt")


def test_it_is_one_page() -> None:
    assert len(README.splitlines()) <= 180
    assert len(README.split()) <= 1500


def test_the_first_screen_says_what_it_is() -> None:
    screen = README.split("## Quickstart", 1)[0]
    for word in ("PyTorch", "CPU tensors", "RDMA", "shared memory", "TCP", "alpha", "SoftRoCE"):
        assert word in screen, word


def test_the_first_program_is_the_example() -> None:
    program = README.split("```python\n", 1)[1].split("```", 1)[0]
    assert program == (ROOT / "examples/hello.py").read_text(encoding="utf-8")


def test_the_switch_of_all_side_effects_is_named() -> None:
    assert "**`RDMATENSOR_HOOKS=0` turns all of it off.**" in README
