"""SECURITY.md names tests that exist and states numbers that the code has."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def named_files() -> list[str]:
    """Return the paths in the text; one without a folder lies next to the one before it."""
    found: list[str] = []
    for name in re.findall(r"`([\w/.]+\.(?:c|py|md|h))`", DOC):
        folder = Path(found[-1]).parent if found and "/" not in name else Path()
        found.append(str(folder / name))
    return found


def test_named_files_exist() -> None:
    assert len(named_files()) > 8
    assert [name for name in named_files() if not (ROOT / name).is_file()] == []


def test_links_exist() -> None:
    links = re.findall(r"\]\(([\w/.]+)\)", DOC)
    assert links
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_the_number_of_unfinished_handshakes_is_the_codes() -> None:
    header = (ROOT / "csrc/connect/handshake.h").read_text(encoding="utf-8")
    number = re.search(r"#define RDTI_HANDSHAKES_MAX (\d+)", header)
    assert number is not None
    assert f"At most {number.group(1)} unfinished handshakes" in DOC


def test_named_settings_exist() -> None:
    config = (ROOT / "rdmatensor/_config/variables.py").read_text(encoding="utf-8")
    names = set(re.findall(r"`RDMATENSOR_(\w+)`", DOC))
    assert names
    assert [
        name for name in names if f'Variable("{name}"' not in config.replace("\n        ", "")
    ] == []


def test_no_assertion_of_the_decoders_depends_on_bytes() -> None:
    function = re.compile(r"^(\w*decode\w*)\(.*?^}", flags=re.MULTILINE | re.DOTALL)
    decoders = [
        found
        for path in sorted((ROOT / "csrc/wire").rglob("*.c"))
        for found in function.finditer(path.read_text(encoding="utf-8"))
    ]
    assert len(decoders) > 10
    assert [found[1] for found in decoders if "assert(" in found[0]] == []
