"""Check the budgets for files and functions. Usage: check_budgets.py FILE...

Lines of Python docstrings do not count: each public one has arguments, results, exceptions and an
example. A file or function over its budget may stay if a comment in it says why, with the words
"over budget:" - in the file's first 40 lines, or anywhere in the function or the 12 lines above it.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import lizard

EXCUSE = "over budget:"
FILE_HEAD_LINES = 40
COMMENT_ABOVE_LINES = 12  # room for a function's contract


@dataclass(frozen=True, slots=True)
class Budget:
    """Upper limits of one language."""

    file_lines: int
    function_lines: int
    parameters: int
    complexity: int | None = None  # None: ruff's to judge, which counts as the language's users do


C = Budget(file_lines=600, function_lines=60, parameters=8, complexity=12)
PYTHON = Budget(file_lines=400, function_lines=50, parameters=12)
BUDGETS = {".c": C, ".h": C, ".cpp": C, ".hpp": C, ".py": PYTHON}


def check_file(path: Path) -> list[str]:
    """Return one line for each limit that the file breaks without an excuse."""
    budget = BUDGETS[path.suffix]
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    prose = _docstring_lines(text) if path.suffix == ".py" else frozenset()
    found = []
    count = len(lines) - len(prose)
    if count > budget.file_lines and not _is_excused(lines[:FILE_HEAD_LINES]):
        found.append(f"{path}:1: {count} lines, at most {budget.file_lines}")
    if path.name in ("rdmatensor.h", "rdmatensor_group.h"):  # declarations only
        return found
    for function in lizard.analyze_file(str(path)).function_list:
        over = _function_problems(function, budget, prose)
        start = max(0, function.start_line - 1 - COMMENT_ABOVE_LINES)
        if over and not _is_excused(lines[start : function.end_line]):
            found.append(f"{path}:{function.start_line}: {function.name}: {', '.join(over)}")
    return found


def _is_excused(lines: list[str]) -> bool:
    return any(EXCUSE in line for line in lines)


def _docstring_lines(text: str) -> frozenset[int]:
    """Return the numbers of the lines of all docstrings, without the first one of each."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            prose = node.body[0]
            found.update(range(prose.lineno + 1, (prose.end_lineno or prose.lineno) + 1))
    return frozenset(found)


def _function_problems(
    function: lizard.FunctionInfo, budget: Budget, prose: frozenset[int]
) -> list[str]:
    own = range(function.start_line, function.end_line + 1)
    length = sum(line not in prose for line in own)
    # The error context is the last parameter of nearly every C function and counts for none.
    parameters = sum(name != "err" for name in function.parameters)
    limits = [
        (length, budget.function_lines, "lines"),
        (function.cyclomatic_complexity, budget.complexity, "paths (cyclomatic)"),
        (parameters, budget.parameters, "parameters other than err"),
    ]
    return [
        f"{value} {what}, at most {most}"
        for value, most, what in limits
        if most is not None and value > most
    ]


def main() -> int:
    """Command line: exit status 1 and the problems, if any."""
    paths = [Path(name) for name in sys.argv[1:]]
    found = [line for path in paths if path.suffix in BUDGETS for line in check_file(path)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
