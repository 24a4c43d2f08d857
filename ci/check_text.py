"""Check that lines fit and that each file says what it is for. Usage: check_text.py FILE...

At most 100 columns, in comments and strings too, which formatters leave alone. A file opens with a
comment (Python: a docstring) that says more than the license; in a script, the line after
"#!" is it.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

COLUMNS = 100
# How many comments of a file are still longer: no more may come.
LONG_LINES_LEFT = {
    "csrc/c10d/works/completion_thread.hpp": 3,
    "csrc/c10d/rendezvous/rendezvous.cpp": 1,
    "csrc/c10d/sparse.cpp": 1,
    "csrc/c10d/tensors.hpp": 2,
    "csrc/c10d/works/work.cpp": 6,
    "csrc/c10d/works/work.hpp": 2,
}
C_SUFFIXES = frozenset({".c", ".h", ".cpp", ".hpp"})
HASH_SUFFIXES = frozenset({".sh", ".cmake"})
C_OPENING = re.compile(r"(?:\s*(?:/\*.*?\*/|//[^\n]*))*", re.DOTALL)
HASH_OPENING = re.compile(r"(?:#!.*\n)?((?:#.*\n?)*)")
LICENSE = re.compile(r"SPDX-License-Identifier:\s*\S+")
WORD = re.compile(r"[A-Za-z]{2}")


def is_checked(path: Path) -> bool:
    """Whether the rules are for this file."""
    is_cmake = path.name == "CMakeLists.txt"
    return is_cmake or path.suffix == ".py" or path.suffix in C_SUFFIXES | HASH_SUFFIXES


def opening(path: Path, text: str) -> str:
    """Return the comment or docstring that a file begins with."""
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(text)) or ""
    if path.suffix in C_SUFFIXES:
        found = C_OPENING.match(text)
        return found.group(0) if found else ""
    found = HASH_OPENING.match(text)
    return found.group(1) if found else ""


def problems(path: Path) -> list[str]:
    """Return one line for each rule that the file breaks."""
    text = path.read_text(encoding="utf-8")
    found = [
        f"{path}:{number}: {len(line)} columns, at most {COLUMNS}"
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > COLUMNS
    ]
    if len(found) <= LONG_LINES_LEFT.get(path.as_posix(), 0):
        found = []
    if text and not WORD.search(LICENSE.sub("", opening(path, text))):
        kind = "docstring" if path.suffix == ".py" else "comment"
        found.append(f"{path}:1: no opening {kind} that says what the file is for")
    return found


def main() -> int:
    """Command line: exit status 1 and the problems, if any."""
    paths = [Path(name) for name in sys.argv[1:]]
    found = [line for path in paths if is_checked(path) for line in problems(path)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
