"""Check that names of csrc/ say where they are. Usage: check_names.py [ROOT].

A static function of a source begins with the file's noun, as perf and gdb show no file: its stem,
or its folder and its stem, or what NOUNS says. No two sources have a static function of one name,
and no two files give one tag or one macro two meanings. Functions of headers are exempt, and so is
c10d, whose names have namespaces.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from csrc_rooms import report

NOUNS = {
    "collectives/arguments.c": "args",
    "collectives/board/operations.c": "board_op",
    "collectives/collective.c": "coll",
    "collectives/describe.c": "coll_describe",
    "collectives/persistent.c": "persistent_coll",
    "collectives/schedule/build.c": "builder",
    "collectives/schedule/run.c": "schedule",
    "collectives/team/hierarchical.c": "hier",
    "endpoint/operations.c": "endpoint_op",
    "message/rendezvous_receive.c": "rndv_receive",
    "message/rendezvous_send.c": "rndv_send",
    "slot/slot_sender.c": "sender",
    "transport/verbs/memory/memory.c": "verbs_memory",
    "transport/verbs/table.c": "verbs",
    "wire/endpoint/stream.c": "wire_stream",
    "wire/endpoint/verbs.c": "wire_verbs",
}
# What the sources that fill in a template, a loops.h, call its parts.
TEMPLATE = frozenset({"f16_widen", "f16_narrow", "ENCODE_VALUES", "TABLE"})
MOST_NOUNS = 25

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)")
# Its name comes directly before the first parenthesis; _Atomic() and the like are of a variable.
_STATIC = re.compile(r"^[ \t]*(?:\w+\s+)*?static\b[^;{}()=]*?\b(?!_[A-Z])(\w+)\(", re.MULTILINE)
# A macro of the source that makes functions: the first argument begins their names.
_MAKER = re.compile(r"^DEFINE_\w+\((\w+)", re.MULTILINE)
_TAG = re.compile(r"\b(?:struct|enum|union) (\w+)\s*(?=\{)")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:\\\n|[^\n])*)", re.MULTILINE)


def static_functions(code: str) -> list[str]:
    """Return the names of the static functions, each once; code has no comments."""
    code = _ATTRIBUTE.sub(" ", _MACRO.sub(" ", _STRING.sub('""', code)))
    return list(dict.fromkeys(_STATIC.findall(code) + _MAKER.findall(code)))


def nouns(name: str) -> list[str]:
    """Return what the static functions of this source of csrc/ may begin with."""
    path = Path(name)
    return [NOUNS[name]] if name in NOUNS else [path.stem, f"{path.parent.name}_{path.stem}"]


def has_noun(function: str, name: str) -> bool:
    return any(f"{function}_".startswith(f"{noun}_") for noun in nouns(name))


def meanings(code: str) -> Iterator[tuple[str, str]]:
    """Yield each tag and macro that a file defines, and its text."""
    for match in _TAG.finditer(code):
        yield match[1], _body(code, match.end())
    for match in _MACRO.finditer(code):
        yield match[1], " ".join(match[2].replace("\\\n", " ").split())


def _body(code: str, first: int) -> str:
    depth = 0
    for match in re.finditer(r"[{}]", code[first:]):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return " ".join(code[first : first + match.end()].split())
    return code[first:]


def problems(csrc: Path, known: Mapping[str, str] = NOUNS) -> list[str]:
    """Return one line for each name that breaks a rule, and for each noun of no file."""
    found = [f"{__file__}: there is no {name}" for name in known if not (csrc / name).exists()]
    if len(known) > MOST_NOUNS:
        found.append(f"{__file__}: {len(known)} nouns, at most {MOST_NOUNS}")
    functions: dict[str, list[str]] = defaultdict(list)
    texts: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(path for suffix in ("c", "h") for path in csrc.rglob(f"*.{suffix}")):
        name = path.relative_to(csrc).as_posix()
        code = _COMMENT.sub(" ", path.read_text(encoding="utf-8"))
        for word, text in meanings(code):
            texts[word][text].append(name)
        if path.suffix == ".c":
            for function in set(static_functions(code)) - TEMPLATE:
                functions[function].append(name)
    for function, names in sorted(functions.items()):
        found += [
            f"csrc/{name}: {function}() begins with none of {', '.join(nouns(name))}"
            for name in names
            if not has_noun(function, name)
        ]
        if len(names) > 1:
            found.append(f"{function}() is static in {', '.join(names)}")
    for word, by_text in sorted(texts.items()):
        files = sorted({name for names in by_text.values() for name in names})
        if len(by_text) > 1 and len(files) > 1 and word not in TEMPLATE:
            found.append(f"{word} has {len(by_text)} meanings in {', '.join(files)}")
    return found


if __name__ == "__main__":
    sys.exit(report(problems))
