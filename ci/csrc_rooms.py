"""What the files of csrc/ define and use, read from their text.

The style puts a function's name at the start of a line, below its type, so that text is enough.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SOURCES = ("*.c", "*.h", "*.cpp", "*.hpp")
_NOISE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_FUNCTION = re.compile(r"^(rdti?_\w+)\(", re.MULTILINE)
_VARIABLE = re.compile(
    r"^(?!extern|static|typedef)[\w ]+ \**(rdti_\w+)(?:\[[^\]]*\])* =", re.MULTILINE
)
_ALGORITHM = re.compile(r"^RDTI_SCHEDULE_ALGORITHM\((\w+),", re.MULTILINE)
_NAME = re.compile(r"\brdti?_\w+\b")


@dataclass(eq=False)
class File:
    """A source file.

    room: its folder, from csrc/ on. code: its text without comments and strings.
    defines: its external functions and variables; none of a header. uses: those of other files.
    """

    path: Path
    room: str
    text: str
    code: str
    defines: frozenset[str]
    uses: set[str] = field(default_factory=set)


@dataclass
class Rooms:
    """All files of csrc/, and which of them defines a name."""

    files: list[File]
    owners: dict[str, File]

    def owner_of(self, name: str) -> File | None:
        return self.owners.get(name)


def read_rooms(csrc: Path) -> Rooms:
    """Read all files below csrc/, in a stable order."""
    paths = sorted(path for pattern in SOURCES for path in csrc.rglob(pattern))
    files = [_read(path, csrc) for path in paths]
    owners = {name: file for file in files for name in file.defines}
    for file in files:
        file.uses = {
            name
            for name in set(_NAME.findall(file.code)) - file.defines
            if name in owners and not (file.path.suffix == ".h" and _is_declared(file, name))
        }
    return Rooms(files, owners)


def report(problems: Callable[[Path], list[str]]) -> int:
    """Print the problems of the tree that the command line names; return the exit status."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    found = problems(root / "csrc")
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


def _read(path: Path, csrc: Path) -> File:
    text = path.read_text(encoding="utf-8")
    code = _NOISE.sub(" ", text)
    defines: set[str] = set()
    if path.suffix == ".c":
        defines = {*_FUNCTION.findall(code), *_VARIABLE.findall(code)}
        defines |= {f"rdti_{name}" for name in _ALGORITHM.findall(code)}
        defines -= _static(code)
    return File(path, str(path.parent.relative_to(csrc)), text, code, frozenset(defines))


def _static(code: str) -> set[str]:
    return set(re.findall(r"^static[^;{]*?\n(rdti?_\w+)\(", code, re.MULTILINE))


def _is_declared(file: File, name: str) -> bool:
    """Whether a header only declares a name, and no inline function of it uses it."""
    return re.search(rf"^(?!\s)[^\n]*\b{name}\b", file.code, re.MULTILINE) is not None
