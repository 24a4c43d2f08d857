"""The Sphinx extension of this site: generated parts of pages, tables of results, pictures.

A page has `<!-- generated: NAME ... -->` where a part is made from the code (generated.py), and
`<!-- bench: FILE -->` ... `<!-- bench: end -->` where a table comes from bench/results
(bench.doc_tables). Both are filled when a page is read. Pictures are drawn before that.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import generated
import pictures
from docutils import nodes
from sphinx.application import Sphinx

from bench import doc_tables

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = ("Ownership", "Raises", "Shapes", "Threads", "Units", "Use")
_SHORT = re.compile(rf"^( *)({'|'.join(SECTIONS)}): +(\S.*)$")


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    del app, docname
    source[0] = generated.filled(doc_tables.written(source[0], ROOT))


def sections_apart(lines: list[str]) -> list[str]:
    """Return a docstring in which a section on one line (`Threads: any.`) is a head and a body."""
    found: list[str] = []
    for line in lines:
        short = _SHORT.match(line)
        if short:
            head = "Errors" if short[2] == "Raises" else short[2]  # not one error a line
            found += ["", f"{short[1]}{head}:", f"{short[1]}    {short[3]}"]
        else:
            found.append(line)
    return found


def with_literal_blocks(lines: list[str]) -> list[str]:
    """Return the docstring of a module with "::" before each indented block, which is code."""
    found: list[str] = []
    for number, line in enumerate(lines):
        begins = line.startswith("    ") and number > 1 and not lines[number - 1].strip()
        if begins and not re.search(r"^    |::$", lines[number - 2]):
            found += ["::", ""]
        found.append(line)
    return found


def escaped(line: str) -> str:
    """Return a line in which a lone star and a name that ends in _ are no markup."""
    line = re.sub(r"(?<![`:\w])`([^`]+)`(?![`_])", r"``\1``", line)  # napoleon keeps its colons
    line = re.sub(r"(?<![\w*`\\])\*(?=\w)(?![^*]*\*)", r"\\*", line)
    return re.sub(r"(?<![`\w])([A-Za-z]+_)(?=[^\w`]|$)", r"``\1``", line)


def _docstring(
    app: Sphinx, what: str, name: str, of: object, options: object, lines: list[str]
) -> None:
    del app, name, of, options
    if what == "module":
        lines[:] = with_literal_blocks(lines)
    lines[:] = [escaped(line) for line in sections_apart(lines)]
    if what in ("property", "attribute") and lines:
        lines[0] = lines[0].replace(": ", " - ", 1)  # napoleon takes what is before for a type


def _skips(
    app: Sphinx, what: str, name: str, of: object, skip: bool, options: object
) -> bool | None:
    """Leave out constructors of objects that only the library makes: they document no argument."""
    del app, what, skip, options
    if name != "__init__":
        return None
    owner = str(getattr(of, "__qualname__", "")).rpartition(".")[0]
    kind = getattr(sys.modules.get(str(getattr(of, "__module__", ""))), owner, None)
    if kind is None or dataclasses.is_dataclass(kind) or "Args:" in (kind.__doc__ or ""):
        return None
    return True


def _draw(app: Sphinx) -> None:
    pictures.draw_all(Path(app.srcdir) / "_static/pictures")


def _trim(app: Sphinx, document: nodes.document) -> None:
    """Remove the blank lines at the end of code, which a part of a program ends with."""
    del app
    for block in document.findall(nodes.literal_block):
        text = block.astext().rstrip()
        if block.rawsource == block.astext():  # else it has markup, and is not highlighted
            block.rawsource = text
            block[:] = [nodes.Text(text)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what fills pages."""
    app.connect("builder-inited", _draw)
    app.connect("source-read", _read)
    app.connect("doctree-read", _trim)
    app.connect("autodoc-skip-member", _skips)
    app.connect("autodoc-process-docstring", _docstring, priority=1)  # before napoleon's
    return {"parallel_read_safe": True, "parallel_write_safe": True}
