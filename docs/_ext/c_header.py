"""The C reference as MyST text: declarations of a public header, with the comments before them.

Sections of the header become headings. A function, a struct, a typedef of an opaque handle and a
macro become objects of Sphinx's C domain; an enum becomes a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SECTION = re.compile(r"-{3,} (.+?) -{3,}")
_PIECE = re.compile(
    r"/\*(?P<comment>.*?)\*/[ \t]*(?P<rest>\n?)"
    r"|^#(?P<directive>(?:[^\n\\]|\\\n|\\.)*)$"
    r"|(?P<code>[A-Za-z][^;{]*(?:\{(?:/\*.*?\*/|[^}])*\}[^;]*)?;)",
    re.DOTALL | re.MULTILINE,
)
_COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)
_ERRORS = re.compile(r"\s{2,}(?=RDT_E[A-Z]+\b)")
_MARKS = re.compile(r"\bRDT_API\b|\bRDT_NODISCARD\b")
_CALL = re.compile(r"(?<![\w`])(rdt_\w+)\(\)")
_CONSTANT = re.compile(r"(?<![\w`])((?:RDT|RDMATENSOR)_\w+\*?)(?!\w)")


@dataclass(frozen=True, slots=True)
class Item:
    """A declaration, or a section if code is empty. comment: what stands before it."""

    code: str
    comment: str


def items_of(header: str) -> Iterator[Item]:
    """Yield the sections and declarations of a header, in their order."""
    body = header.split('extern "C" {\n#endif\n', 1)[1].rsplit("#ifdef __cplusplus", 1)[0]
    comment = ""
    for piece in _PIECE.finditer(body):
        if piece["comment"] is not None:
            section = _SECTION.search(piece["comment"])
            if section:
                yield Item("", section[1])
            comment = "" if section else _plain(piece["comment"])
        elif piece["directive"] is not None:
            if piece["directive"].startswith("define "):
                yield Item("#" + piece["directive"], comment)
                comment = ""
        else:
            yield Item(piece["code"], comment)
            comment = ""


def functions_of(header: str) -> set[str]:
    """Return the names of all functions that a header declares, found without the parser."""
    return set(re.findall(r"^RDT_API [^;]*?\b(rdt_\w+)\(", header, re.MULTILINE))


def page_of(header: str) -> str:
    """Return the reference of a header."""
    calls = functions_of(header)
    return "\n\n".join(_shown(item, calls) for item in items_of(header)) + "\n"


def _plain(comment: str) -> str:
    """Return the text of a comment; the indentation after the star stays."""
    lines = [re.sub(r"^\s*\* ?", "", line) for line in comment.strip().splitlines()]
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def _prose(comment: str) -> str:
    """Return a comment as Markdown: the indented lists of errors become bullets."""
    parts: list[str] = []
    text: list[str] = []
    errors: list[str] = []
    for line in [*comment.splitlines(), ""]:
        if errors and line and not line.startswith("  ") and re.match(r"[A-Z][a-z]", line):
            parts.append(_bullets(errors))
            errors = []
        if errors or re.match(r"\s{2,}RDT_E", line):
            errors.append("  " + line.strip() if errors else line)
        else:
            text.append(line.strip())
        if errors and len(text):
            parts.append(" ".join(text).strip())
            text = []
    parts.append(_bullets(errors) if errors else " ".join(text).strip())
    return "\n\n".join(_linked(part) for part in parts if part)


def _bullets(lines: list[str]) -> str:
    """Return each error of a list with its reason as a bullet."""
    joined = lines[0]
    for line in lines[1:]:
        joined += ("   " if re.match(r"\s*RDT_E", line) else " ") + line.strip()
    entries = [one for one in _ERRORS.split("   " + joined.strip()) if one.strip()]
    return "\n".join(f"- {' '.join(one.split())}" for one in entries)


def _linked(text: str) -> str:
    text = re.sub(r"([<>*])", r"\\\1", text)
    text = _CONSTANT.sub(lambda match: f"`{match[1]}`", text)
    return _CALL.sub(lambda match: f"{{c:func}}`{match[1]}`", text)


def _shown(item: Item, calls: set[str]) -> str:
    if not item.code:
        return f"## {item.comment}"
    if item.code.startswith("#define "):
        name, _, value = item.code.removeprefix("#define ").partition(" ")
        value = " ".join(value.replace("\\\n", " ").split())
        said = f"Value: `{value}`." if value and len(value) < 60 else ""
        return _object("macro", name, f"{said} {_prose(item.comment)}".strip())
    code = " ".join(_MARKS.sub("", _COMMENT.sub("", item.code)).split()).rstrip(";")
    if item.code.startswith(("struct ", "enum", "typedef enum", "union ")):
        return _compound(item, code, calls)
    if item.code.startswith("typedef "):
        pointer = re.search(r"\(\*(\w+)\)", code)
        said = _prose(item.comment) or "Opaque handle."
        if pointer:
            return _object("type", pointer[1], f"`{code}`\n\n{said}")
        return _object("type", code.split()[-1], said)
    return _object("function", code, _prose(item.comment))


def _object(kind: str, signature: str, text: str) -> str:
    return f":::{{c:{kind}}} {signature}\n\n{text}\n:::"


def _compound(item: Item, code: str, calls: set[str]) -> str:
    """Return a struct or an enum with a table of its members.

    Sphinx has one space of names: a struct with the name of a call has no entry.
    """
    inner = item.code[item.code.index("{") + 1 : item.code.rindex("}")]
    separator = "," if "enum" in item.code.split("{")[0] else ";"
    members = [(name, " ".join(_prose(said).split())) for name, said in _members(inner, separator)]
    word = "member" if separator == ";" else "value"
    if any(said for _, said in members):
        rows = [f"| `{name}` | {said.replace('|', chr(92) + '|')} |" for name, said in members]
        table = "\n".join([f"| {word} | meaning |\n|---|---|", *rows])
    else:
        table = "\n".join([f"| {word} |\n|---|", *(f"| `{name}` |" for name, _ in members)])
    name = code.split("{")[0].split()
    tag = code.rsplit("}", 1)[1].strip() or (name[-1] if len(name) > 1 else "")
    said = _prose(item.comment)
    if not tag or tag == "enum":
        return f"{said}\n\n{table}".strip()
    kind = "enum" if separator == "," else "struct"
    if tag in calls:
        return f"**`{kind} {tag}`**\n\n{said}\n\n{table}"
    return f":::{{c:{kind}}} {tag}\n\n{said}\n\n{table}\n:::"


def _members(inner: str, separator: str) -> Iterator[tuple[str, str]]:
    """Yield each member with its comments: those before it, and that of the rest of its line."""
    before = ""
    for piece in re.finditer(
        rf"/\*(?P<own>.*?)\*/|(?P<code>[^{separator}/\s][^{separator}/]*)(?:{separator}|(?=/\*)|\Z)"
        rf"(?:[ \t]*/\*(?P<after>.*?)\*/)?",
        inner,
        re.DOTALL,
    ):
        if piece["own"] is not None:
            before = _plain(piece["own"])
            continue
        code = " ".join(piece["code"].split())
        if code:
            yield code, f"{before} {_plain(piece['after'] or '')}".strip()
            before = ""
