"""Generated parts of pages have all of the code: every setting, metric, error, call and option."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import c_header
import generated
import pytest

import rdmatensor
from rdmatensor import errors, metrics
from rdmatensor._config import variables
from rdmatensor.ps import report

ROOT = Path(__file__).resolve().parents[2]
HEADERS = [f"csrc/include/{name}.h" for name in ("rdmatensor", "rdmatensor_ext", "rdmatensor_ps")]


def page(name: str) -> str:
    return generated.filled((ROOT / "docs" / name).read_text(encoding="utf-8"))


def test_an_unknown_part_is_an_error() -> None:
    with pytest.raises(KeyError):
        generated.filled("<!-- generated: nothing -->")
    assert generated.filled("text `<!-- generated: nothing -->`") != ""


def test_every_setting_has_its_type_default_and_scope() -> None:
    rows = [line.strip("| ").split(" | ") for line in page("reference/settings.md").splitlines()]
    found = {row[0]: row[1:] for row in rows if len(row) == 6}
    known = [*variables.VARIABLES, *variables.NATIVE_VARIABLES]
    assert len(known) > 30
    for one in known:
        kind, form, default, scope, meaning = found.pop(f"`{one.full_name}`")
        assert (kind, form, default, scope) == (one.kind, one.form, one.default, one.scope)
        assert meaning, one.name
    assert set(found) == {"variable", "---"}


def test_every_metric_is_on_its_page() -> None:
    text = page("reference/metrics.md")
    for name in metrics._MEANINGS:
        assert f"rdmatensor_{metrics._in_seconds(name)}_total`" in text, name
    for name in report.KINDS:
        assert f"`rdmatensor_ps_{name.removesuffix('_s')}" in text, name


def test_every_exception_has_its_code() -> None:
    text = page("reference/python/errors.md")
    header = (ROOT / HEADERS[0]).read_text(encoding="utf-8")
    for code in re.findall(r"\b(RDT_E[A-Z]+) = -\d+", header):
        assert f"`{code}`" in text, code
    named = set(re.findall(r"~rdmatensor\.errors\.(\w+)", text))
    assert named >= {name for name in dir(errors) if name.endswith("Error")}


@pytest.mark.parametrize("name", HEADERS)
def test_every_call_of_a_header_is_in_the_reference(name: str) -> None:
    header = (ROOT / name).read_text(encoding="utf-8")
    text = c_header.page_of(header)
    shown = set(re.findall(r"^:::\{c:function\} .*?\b(rdt_\w+)\(", text, re.MULTILINE))
    assert len(shown) > 5
    assert shown == c_header.functions_of(header)
    for macro in re.findall(r"^#define (RDT_[A-Z]\w+) ", header.split("#endif\n\n", 3)[-1], re.M):
        assert macro in text, macro


MADE_UP = """#ifdef __cplusplus
extern "C" {
#endif

/* ---- Things ---- */
/* One thing. */
struct rdt_thing {
    int size; /* of it */
    /* before: */
    int other;
};
/*
 * Make a thing with rdt_size().
 *   RDT_EINVAL size is
 *   negative   RDT_ENOMEM no room
 */
RDT_API RDT_NODISCARD rdt_status rdt_make(struct rdt_thing *out);
typedef enum rdt_kind { RDT_A = 1, RDT_B /* the last */ } rdt_kind;
#ifdef __cplusplus
}
#endif
"""


def test_the_header_of_a_made_up_library_is_read_whole() -> None:
    assert c_header.page_of(MADE_UP).splitlines() == [
        "## Things",
        "",
        ":::{c:struct} rdt_thing",
        "",
        "One thing.",
        "",
        "| member | meaning |",
        "|---|---|",
        "| `int size` | of it |",
        "| `int other` | before: |",
        ":::",
        "",
        ":::{c:function} rdt_status rdt_make(struct rdt_thing *out)",
        "",
        "Make a thing with {c:func}`rdt_size`.",
        "",
        "- `RDT_EINVAL` size is negative",
        "- `RDT_ENOMEM` no room",
        ":::",
        "",
        ":::{c:enum} rdt_kind",
        "",
        "",
        "",
        "| value | meaning |",
        "|---|---|",
        "| `RDT_A = 1` |  |",
        "| `RDT_B` | the last |",
        ":::",
    ]


def test_every_option_of_a_command_is_shown() -> None:
    text = page("reference/commands.md")
    for words in ("rdmatensor doctor", "rdmatensor settings", "--listen", "--strategy", "--quick"):
        assert words in text, words


def test_every_public_name_of_python_is_in_the_reference() -> None:
    pages = (ROOT / "docs/reference/python").glob("*.md")
    text = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    shown = set(re.findall(r"auto(?:class|function|exception):: [\w.]*\.(\w+)", text))
    whole = set(re.findall(r"automodule:: rdmatensor\.(\w+)\n   :members:\n", text))
    for names in re.findall(r":members: (\w[\w, ]*)", text):
        shown |= set(names.split(", "))
    for name in whole:
        shown |= set(vars(importlib.import_module(f"rdmatensor.{name}")))
    assert {name for name in rdmatensor.__all__ if name != "__version__"} - shown == set()
    modules = set(re.findall(r"auto\w+:: rdmatensor\.(\w+)", text))
    assert set(rdmatensor._MODULES_BY_NAME) - modules == set()
