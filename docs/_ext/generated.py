"""Parts of pages that are generated from the code, as MyST text.

`<!-- generated: NAME WORD... -->` on a line of its own is replaced by PARTS[NAME](WORD...).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import json
import os
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from unittest import mock

import c_header

from rdmatensor import errors, metrics, state
from rdmatensor._config import variables

ROOT = Path(__file__).resolve().parents[2]
MATRIX = ROOT / "docs/reference/support_matrix.json"
_MARK = re.compile(r"^<!-- generated: (?P<name>[a-z-]+)(?P<words>(?: [^ >]+)*) -->$", re.MULTILINE)
_PAGE = re.compile(r"\(?docs/([\w/-]+)\.md\)?")


def filled(page: str) -> str:
    """Return a page with its generated parts. Raises KeyError for a part that does not exist."""
    return _MARK.sub(lambda match: PARTS[match["name"]](*match["words"].split()), page)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# ---- settings ------------------------------------------------------------------------------------


def _settings(which: str) -> str:
    """Return the table of the settings of a kind: own, collectives or rdma."""
    kinds = {
        "own": variables.VARIABLES,
        "collectives": [one for one in variables.NATIVE_VARIABLES if not _is_of_rdma(one)],
        "rdma": [one for one in variables.NATIVE_VARIABLES if _is_of_rdma(one)],
    }
    rows = []
    for variable in kinds[which]:
        meaning = _PAGE.sub(lambda match: f"({{doc}}`/{match[1]}`)", variable.meaning)
        name = f"`{variable.full_name}`"
        rows.append([name, variable.kind, variable.form, variable.default, variable.scope, meaning])
    return table(["variable", "type", "form", "default", "scope", "meaning"], rows)


def _is_of_rdma(variable: variables.Variable) -> bool:
    return variable.name.startswith("VERBS_")


# ---- metrics and errors --------------------------------------------------------------------------


def _metrics() -> str:
    rows = []
    for name, meaning in metrics._MEANINGS.items():
        kind = metrics.Sample(metrics._in_seconds(name), "counter", meaning, 0).full_name
        rows.append([f"`{kind}`", meaning])
    for name in metrics._DEVICE_COUNTERS:
        meaning = f"{name.replace('_', ' ')} of an RDMA port, by all processes of the host"
        rows.append([f"`rdmatensor_device_{name}_total{{device,port}}`", meaning])
    return table(["counter", "meaning"], rows)


def _gauges() -> str:
    nothing = {"arena": _Zero(), "regions": _Zero()}
    rows = [
        [f"`{sample.full_name}`", sample.meaning]
        for sample in metrics._of_memory(nothing)  # type: ignore[arg-type]  # any number will do
    ]
    return table(["metric", "meaning"], rows)


def _ps_metrics() -> str:
    from rdmatensor.ps import report

    rows = [[f"`{one.full_name}`", one.meaning] for one in report.samples_from(_nothing(report))]
    return table(["metric", "meaning"], rows)


def _nothing(report: ModuleType) -> dict[str, object]:
    return {**dict.fromkeys(report.KINDS, 0), "staleness": [0]}


class _Zero(dict[str, int]):
    """A description in which every number is zero."""

    def __missing__(self, name: str) -> int:
        return 0


def _exceptions() -> str:
    from rdmatensor._native import ffi

    codes: dict[type, list[str]] = {}
    for code, kind in _classes_by_status(ffi).items():
        codes.setdefault(kind, []).append(code)
    rows = []
    for name, kind in vars(errors).items():
        if (
            inspect.isclass(kind)
            and issubclass(kind, Exception)
            and kind.__module__ == errors.__name__
        ):
            said = (inspect.getdoc(kind) or "").partition("\n\n")[0]
            bases = ", ".join(base.__name__ for base in kind.__bases__)
            shown = ", ".join(f"`{code}`" for code in codes.get(kind, []))
            rows.append([f"{{py:exc}}`~rdmatensor.errors.{name}`", bases, shown, said])
    return table(["exception", "bases", "code of C", "raised when"], rows)


def _classes_by_status(ffi: ModuleType) -> dict[str, type]:
    """Return the class that each status of C becomes."""
    header = (ROOT / "csrc/include/rdmatensor.h").read_text(encoding="utf-8")
    return {
        name: type(ffi.error_of(int(number), "docs", ffi.new_error()))
        for name, number in re.findall(r"\b(RDT_E[A-Z]+) = (-\d+)", header)
    }


# ---- what describe() returns ---------------------------------------------------------------------


def _states() -> str:
    """Return each dictionary of rdmatensor.state: what it is, and its keys with their types."""
    parts = []
    for name, kind in vars(state).items():
        if name.startswith("_") or not typing.is_typeddict(kind):
            continue
        said = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
        keys = [[f"`{key}`", f"`{_type_of(hint)}`"] for key, hint in _hints(kind).items()]
        target = (
            f"```{{eval-rst}}\n.. py:class:: rdmatensor.state.{name}\n   :no-contents-entry:\n```"
        )
        prose = "\n\n".join(part.replace("*", "\\*") for part in said)
        parts.append(f"## {name}\n\n{target}\n\n{prose}\n\n{table(['key', 'type'], keys)}")
    return "\n\n".join(parts)


def _hints(kind: type) -> dict[str, object]:
    return typing.get_type_hints(kind)


def _type_of(hint: object) -> str:
    shown = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    return re.sub(r"\b(?:typing|rdmatensor\.state)\.", "", shown)


# ---- C, command lines ----------------------------------------------------------------------------


def _header(path: str) -> str:
    return c_header.page_of((ROOT / path).read_text(encoding="utf-8"))


def parsers_of(command: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the parser of a command, and those of its sub-commands, with their names."""
    made: list[argparse.ArgumentParser] = []

    def seen(parser: argparse.ArgumentParser, *_: object, **__: object) -> argparse.Namespace:
        made.append(parser)
        raise _SeenError

    module, _, words = command.partition(":")
    main = importlib.import_module(module).main
    with (
        mock.patch.object(argparse.ArgumentParser, "parse_args", seen),
        contextlib.suppress(_SeenError),
    ):
        main(words.split(",") if words else ["--help"])
    parser = made[0]
    yield parser.prog, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from ((f"{parser.prog} {name}", one) for name, one in action.choices.items())


class _SeenError(Exception):
    """A program has made its parser."""


def _command(command: str, *skipped: str) -> str:
    parts = []
    with mock.patch.dict(os.environ, {"COLUMNS": "90"}):
        for name, parser in parsers_of(command):
            if name.split()[-1] not in skipped:
                with io.StringIO() as text:
                    parser.print_help(text)
                    parts.append(f"### `{name}`\n\n```text\n{text.getvalue().rstrip()}\n```")
    return "\n\n".join(parts)


# ---- torch.distributed ---------------------------------------------------------------------------


def _matrix() -> str:
    """Return the table of support_matrix.json, which tests/docs compares with what works."""
    matrix = json.loads(MATRIX.read_text(encoding="utf-8"))
    columns = matrix["columns"]
    rows = [
        [f"`{name}`", *(cells[column] for column in columns)]
        for name, cells in matrix["rows"].items()
    ]
    return table(["operation", *columns], rows)


PARTS: dict[str, Callable[..., str]] = {
    "settings": _settings,
    "metrics": _metrics,
    "gauges": _gauges,
    "ps-metrics": _ps_metrics,
    "exceptions": _exceptions,
    "c-header": _header,
    "command": _command,
    "matrix": _matrix,
    "states": _states,
}
