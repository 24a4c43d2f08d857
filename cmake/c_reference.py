"""Make the reference of the C interface from the comments of rdmatensor.h.

Usage: c_reference.py man|markdown HEADER VERSION [--out FILE]
A section of the header, or of one that it includes, is a section here. Each declaration stands with
the comment above it, or, where several follow one comment, together with the others. Only the
standard library is needed.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_SECTION = re.compile(r"^/\* -{4} (?P<title>.+?) -{4,} \*/$")
_OURS = re.compile(r"SPDX|over budget")  # lines that concern no user
_SKIPPED = re.compile(
    r"^#(?!define )|^#define (RDMATENSOR_H|RDT_API|RDT_NODISCARD)\b|^extern \"C\"|^}$"
)


@dataclass
class Item:
    """Declarations and what the comment above them says of them."""

    comment: str
    code: list[str] = field(default_factory=list)


@dataclass
class Section:
    """A section of the header."""

    title: str
    items: list[Item] = field(default_factory=list)


def comment_text(lines: list[str]) -> str:
    """Return a comment without its marks."""
    bare = [re.sub(r"^\s*(/\*|\*/|\* ?)", "", line) for line in lines]
    bare[-1] = re.sub(r"\s*\*/\s*$", "", bare[-1])
    bare[0] = bare[0].strip()
    return textwrap.dedent("\n".join(bare)).strip("\n")


def sections_of(text: str) -> tuple[str, list[Section]]:
    """Return the comment at the header's head, and its sections."""
    lines = iter(text.splitlines())
    head = comment_text(_block(next(lines), lines))
    head = "\n".join(line for line in head.splitlines() if not _OURS.match(line)).strip()
    sections: list[Section] = []
    is_apart = False  # an empty line stands before this one
    for line in lines:
        found = _SECTION.match(line)
        if found:
            sections.append(Section(found["title"]))
        elif sections and line.startswith("/*"):
            sections[-1].items.append(Item(comment_text(_block(line, lines))))
        elif sections and line and not _SKIPPED.match(line):
            if is_apart or not sections[-1].items:
                sections[-1].items.append(Item(""))
            sections[-1].items[-1].code += _declaration(line, lines)
        is_apart = not line
    return head, sections


def _block(line: str, lines: Iterator[str]) -> list[str]:
    """Return the lines of the comment that begins with this one."""
    found = [line]
    while "*/" not in found[-1]:
        found.append(next(lines))
    return found


def _declaration(line: str, lines: Iterator[str]) -> list[str]:
    """Return the lines of the declaration or macro that begins with this one."""
    found = [line]
    if line.startswith("#define"):
        while found[-1].endswith("\\"):
            found.append(next(lines))
        return found
    while not (_is_balanced(found) and found[-1].split("/*")[0].rstrip().endswith(";")):
        found.append(next(lines))
    return found


def _is_balanced(lines: list[str]) -> bool:
    text = re.sub(r"/\*.*?\*/", "", "\n".join(lines), flags=re.DOTALL)
    return text.count("{") == text.count("}") and text.count("(") == text.count(")")


def plain(code: list[str]) -> str:
    """Return declarations without the attributes that do not concern a caller."""
    text = "\n".join(code)
    indented = re.sub(r"RDT_API (RDT_NODISCARD )?", "", text)
    # Arguments that stood below the parenthesis still do.
    lines, shift = [], 0
    for before, after in zip(text.splitlines(), indented.splitlines(), strict=True):
        if before != after:
            shift = len(before) - len(after)
            lines.append(after)
        else:
            spaces = len(after) - len(after.lstrip())
            lines.append(after[shift:] if after.startswith(" " * 20) and spaces > shift else after)
    return "\n".join(lines)


def markdown(head: str, sections: list[Section], version: str) -> str:
    """Return the reference as Markdown."""
    parts = [f"# rdmatensor.h {version}", f"```text\n{head}\n```"]
    for section in sections:
        parts.append(f"## {section.title}")
        for item in section.items:
            parts += [f"```c\n{plain(item.code)}\n```"] if item.code else []
            parts += [f"```text\n{item.comment}\n```"] if item.comment else []
    return "\n\n".join(parts) + "\n"


def man(head: str, sections: list[Section], version: str) -> str:
    """Return the reference as a man page."""
    lines = [
        f'.TH RDMATENSOR 3 "" "rdmatensor {version}"',
        ".SH NAME",
        "rdmatensor \\- zero-copy transport of CPU tensors over RDMA, shared memory or TCP",
        ".SH SYNOPSIS",
        ".B #include <rdmatensor.h>",
        ".PP",
        "Link with \\fI\\-lrdmatensor\\fP, or by pkg-config or CMake: package \\fIrdmatensor\\fP.",
        ".SH DESCRIPTION",
        *_verbatim(head),
    ]
    for section in sections:
        lines.append(f".SH {section.title.upper()}")
        for item in section.items:
            lines += [".PP", *_bold(plain(item.code))] if item.code else [".PP"]
            if item.comment:
                lines += [".RS 4", *_verbatim(item.comment), ".RE"]
    return "\n".join(lines) + "\n"


def _escaped(line: str) -> str:
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line


def _verbatim(text: str) -> list[str]:
    return [".nf", *(_escaped(line) for line in text.splitlines()), ".fi"]


def _bold(code: str) -> list[str]:
    return [".nf", ".ft B", *(_escaped(line) for line in code.splitlines()), ".ft R", ".fi"]


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("form", choices=("man", "markdown"))
    parser.add_argument("header", type=Path)
    parser.add_argument("version")
    parser.add_argument("--out", type=Path, help="default: standard output")
    arguments = parser.parse_args()
    head, sections = sections_of(arguments.header.read_text(encoding="utf-8"))
    for name in re.findall(r'^#include "(\w+\.h)"$', arguments.header.read_text(), re.MULTILINE):
        sections += sections_of(arguments.header.with_name(name).read_text(encoding="utf-8"))[1]
    text = {"man": man, "markdown": markdown}[arguments.form](head, sections, arguments.version)
    if arguments.out is not None:
        arguments.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
