"""Check that prose uses the field's words. Usage: check_prose.py [--write] FILE...

Prose is a page's text, a comment, a docstring, a message in a string. prose_baseline.json has how
many findings a file may have: that number may only fall, and a file without one has none.
--write lowers the numbers to what there is, and never raises one. Exit status 1 where a file has
more than its number.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

BASELINE = Path(__file__).parent / "prose_baseline.json"
RULES: tuple[tuple[str, str], ...] = (
    (
        r"(?:^|[#.;:|,(] )[Ww]ho [a-z]+s\b",
        "name the actor: 'a process that ...', 'the caller'",
    ),
    (
        r"\b(?i:whoever|nobody|somebody|anybody)\b",
        "name the actor: 'no thread', 'a peer'",
    ),
    (r"\bbeside\b", "'compared with', 'next to' or 'in addition to'"),
    (r"\bbesides\b", "'also', 'in addition'"),
    (r"\bbehind (?:it|that|them|the last|a deadline)\b", "'after'"),
    (r"\bhangs? on\b", "'depends on'"),
    (
        r"\b(?:is|are|was|were|be|been) told\b",
        "'receives', 'is sent', 'is notified', 'is documented'",
    ),
    (r"\btells? (?:of|what|who|how|which|where)\b", "'reports', 'shows', 'describes'"),
    (r"\bborn\b|\bbirths?\b", "'allocated in', 'placed in'"),
    (r"\b(?:ours|theirs)\b", "'rdmatensor', 'the peer', or the product's name"),
    (r"\banew\b", "'again', or the verb with re-"),
    (r"\bfor good\b", "'permanently'"),
    (r"\bthe ordinary way\b", "'the fallback path', 'the default path'"),
    (r"\bas it comes\b", "'by default'"),
    (r"\brivals?\b|\bcontestants?\b", "'baseline', 'other libraries', or their names"),
    (r"\bis none of\b|\bis no [a-z]+\b", "'X is not a valid Y; expected ...'"),
    (r"\bstands where\b|\bbelongs? where\b", "'expected X, got Y'"),
    (r"\bnot known yet\b", "'not investigated', or leave the row out"),
    (r"\bgoes? by (?:way of|it|them|that)\b", "'uses', 'follows'"),
    (
        r"\b[Ww]hat (?:is|was|cannot|lies|arrives|leaves|comes|goes) [a-z ]+,? is\b",
        "name the thing",
    ),
    (
        r"\bmade(?: it)? (?:a|the) look\b|\blooks? (?:whether|who)\b",
        "'checks', 'inspects', 'polls'",
    ),
)
COMPILED = [(re.compile(pattern), advice) for pattern, advice in RULES]
FENCE = re.compile(r"^\s*```")
C_PROSE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
C_SUFFIXES = frozenset({".c", ".h", ".cpp", ".hpp"})


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the prose of a file, in pieces, each with the number of its line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in C_SUFFIXES:
        for match in C_PROSE.finditer(text):
            first = text.count("\n", 0, match.start()) + 1
            for number, line in enumerate(match[0].splitlines(), first):
                yield number, re.sub(r"^\s*/?\*+\s?", "", line)
    elif path.suffix == ".py":
        yield from _prose_of_python(text)
    else:
        yield from _prose_of_page(text)


def _prose_of_python(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for number, line in enumerate(node.value.splitlines(), node.lineno):
                yield number, line.strip()


def _prose_of_page(text: str) -> Iterator[tuple[int, str]]:
    in_code = in_generated = False
    for number, line in enumerate(text.splitlines(), 1):
        in_code ^= FENCE.match(line) is not None
        if line.startswith(("<!-- bench: ", "<!-- figures: ")):
            in_generated = "end" not in line
        if not in_code and not in_generated and not line.startswith("    "):
            yield number, re.sub(r"`[^`]*`", "``", line)


def findings(path: Path) -> list[str]:
    """Return a line for each place where a file's prose uses a word of the list."""
    return [
        f"{path}:{number}: {match[0].strip()!r}: {advice}"
        for number, line in prose_of(path)
        for pattern, advice in COMPILED
        for match in pattern.finditer(line)
    ]


def main() -> int:
    """Command line."""
    names = [name for name in sys.argv[1:] if name != "--write"]
    found = {name: findings(Path(name)) for name in names}
    known: dict[str, int] = json.loads(BASELINE.read_text(encoding="utf-8"))
    if "--write" in sys.argv:
        lowered = {name: min(len(lines), known.get(name, 0)) for name, lines in found.items()}
        counts = {name: count for name, count in sorted(lowered.items()) if count}
        BASELINE.write_text(json.dumps(counts, indent=0) + "\n", encoding="utf-8")
        return 0
    gone = [name for name in known if not (BASELINE.parents[1] / name).exists()]
    for name in gone:
        print(f"{BASELINE.name}: there is no {name}")
    bad = bool(gone)
    for name, lines in found.items():
        if len(lines) > known.get(name, 0):
            print(*lines, sep="\n")
            bad = True
        elif len(lines) < known.get(name, 0):
            print(f"{BASELINE.name}: {name} has {len(lines)}, not {known[name]}: lower the number")
            bad = True
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
