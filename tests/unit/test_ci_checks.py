"""The checks of ci/ find what they are for: each is shown a small tree that breaks one rule."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

CI = Path(__file__).parents[2] / "ci"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, CI / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


layers = load("check_layers")
budgets = load("check_budgets")


@pytest.mark.parametrize(
    ("path", "include", "complaint"),
    [
        ("base/error.c", '"rdmatensor.h"', None),
        ("base/error.c", "<stdlib.h>", None),
        ("base/error.c", '"wire/hello.h"', "base must not know wire"),
        ("wire/hello.c", '"base/error.h"', None),
        ("wire/hello.c", '"hello.h"', "not written from csrc/"),
        ("wire/hello.c", '"../base/error.h"', "not written from csrc/"),
        ("transport/tcp/conn.c", '"transport/transport.h"', None),
        ("transport/tcp/conn.c", '"transport/shm/ring.h"', "must not know transport/shm"),
        ("transport/tcp/conn.c", "<infiniband/verbs.h>", "csrc/transport/verbs only"),
        ("core/context.c", '"transport/transport.h"', None),
        ("core/context.c", '"api/api.h"', "core must not know api"),
        ("collectives/ring.c", '"core/group.h"', "collectives must not know core"),
        ("c10d/backend.cpp", "<torch/csrc/utils/pybind.h>", None),
        ("core/context.c", "<Python.h>", "csrc/c10d only"),
        ("include/rdmatensor.h", "<stdbool.h>", "stddef.h and stdint.h only"),
        ("odd/new.c", "<stdlib.h>", "not a layer"),
    ],
)
def test_layers(tmp_path: Path, path: str, include: str, complaint: str | None) -> None:
    source = tmp_path / path
    source.parent.mkdir(parents=True)
    source.write_text(f"/* a comment */\n#include {include}\n")
    found = layers.problems(tmp_path)
    if complaint is None:
        assert found == []
    else:
        (line,) = found
        assert complaint in line
        assert str(source) in line


def c_function(lines: int, *, parameters: str = "void", comment: str = "") -> str:
    body = "    x++;\n" * (lines - 4)
    return f"{comment}\nstatic void\nwork({parameters})\n{{\n{body}}}\n"


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("fits.c", c_function(58), None),
        ("long.c", c_function(90), "lines, at most 60"),
        ("excused.c", c_function(90, comment="/* over budget: a state table. */"), None),
        ("file.c", "int x;\n" * 601, "601 lines, at most 600"),
        ("file.py", "x = 1\n" * 401, "401 lines, at most 400"),
        ("excused.py", "# over budget: a table of facts.\n" + "x = 1\n" * 401, None),
        ("function.py", "def f():\n" + "    x = 1\n" * 60, "lines, at most 50"),
        ("wide.c", c_function(9, parameters=", ".join(f"int p{i}" for i in range(9))), "9 param"),
        (
            "wide_but_err.c",
            c_function(9, parameters=", ".join(f"int p{i}" for i in range(8)) + ", int *err"),
            None,
        ),
        ("paths.c", c_function(9).replace("x++;", "if (x && y || z && x) x++;"), "cyclomatic"),
    ],
)
def test_budgets(tmp_path: Path, name: str, text: str, complaint: str | None) -> None:
    path = tmp_path / name
    path.write_text(text)
    found = budgets.check_file(path)
    if complaint is None:
        assert found == []
    else:
        (line,) = found
        assert complaint in line
