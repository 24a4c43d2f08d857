"""The checks of ci/ find what they are for: each is shown a small tree that breaks one rule."""

from __future__ import annotations

import importlib.util
import subprocess
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


sys.path.insert(0, str(CI))  # the checks share csrc_rooms.py
layers = load("check_layers")
rooms = load("check_rooms")
names = load("check_names")
prose = load("check_prose")
budgets = load("check_budgets")
text = load("check_text")


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
        ("api/context.c", '"transport/transport.h"', None),
        ("progress/engine.c", '"memory/arena.h"', "progress must not know memory"),
        ("slot/slot.c", '"group/group.h"', "slot must not know group"),
        ("collectives/team/team.c", '"group/group.h"', "collectives/team must not know group"),
        ("c10d/backend.cpp", "<torch/csrc/utils/pybind.h>", None),
        ("api/context.c", "<Python.h>", "csrc/c10d only"),
        ("include/rdmatensor.h", "<stdbool.h>", "stddef.h and stdint.h only"),
        ("odd/new.c", "<stdlib.h>", "not a layer"),
    ],
)
def test_layers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    include: str,
    complaint: str | None,
) -> None:
    source = tmp_path / path
    source.parent.mkdir(parents=True)
    source.write_text(f"/* a comment */\n#include {include}\n")
    monkeypatch.setattr(layers, "BREACHES", {})
    found = layers.problems(tmp_path)
    if complaint is None:
        assert found == []
    else:
        (line,) = found
        assert complaint in line
        assert str(source) in line


CALLER = "static int\nfirst(void)\n{\n    return rdti_used() + rdt_public();\n}\n"
OWNER = "int\nrdti_used(void)\n{\n    return 1;\n}\nint\nrdt_public(void)\n{\n    return 2;\n}\n"


@pytest.mark.parametrize(
    ("caller", "owner", "used"),
    [
        ("base/a.c", "wire/b.c", ["rdt_public", "rdti_used"]),
        ("wire/a.c", "base/b.c", []),
        ("collectives/team/a.c", "group/b.c", ["rdti_used"]),  # it is on the public header
    ],
)
def test_calls_against_the_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caller: str, owner: str, used: list[str]
) -> None:
    for name, content in ((caller, CALLER), (owner, OWNER)):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(layers, "BREACHES", {})
    found = layers.problems(tmp_path)
    assert [line.split("uses ")[1].split("()")[0] for line in found] == used
    arrow = (str(Path(caller).parent), str(Path(owner).parent))
    monkeypatch.setattr(layers, "BREACHES", {arrow: (0, len(used))})
    assert layers.problems(tmp_path) == []
    monkeypatch.setattr(layers, "BREACHES", {arrow: (0, len(used) + 1)})
    (stale,) = layers.problems(tmp_path)
    assert "lower the number" in stale


def test_rooms(tmp_path: Path) -> None:
    room = tmp_path / "slot"
    room.mkdir()
    count = rooms.LIMITS["circle"] + 1
    for i in range(count):
        body = f"    rdti_{(i + 1) % count}();\n"
        (room / f"f{i}.c").write_text(f"void\nrdti_{i}(void)\n{{\n{body}}}\n")
    (line,) = rooms.problems(tmp_path, {})
    assert line == f"csrc/slot: {count} circle, at most {count - 1}"
    assert rooms.problems(tmp_path, {("slot", "circle"): count}) == []
    (stale,) = rooms.problems(tmp_path, {("slot", "circle"): count + 1})
    assert "lower the number" in stale


@pytest.mark.parametrize(
    ("sources", "complaints"),
    [
        ({"slot/slot.c": "static int\nslot_fill(void)\n{\n}\n"}, []),
        ({"slot/fetch.c": "static int\nslot_fetch_fill(void)\n{\n}\n"}, []),
        ({"slot/slot.c": "/* static int fill(void) */\nint\nrdti_fill(void)\n{\n}\n"}, []),
        ({"slot/slot.c": "static int\nfill(void)\n{\n}\n"}, ["fill() begins with none of slot"]),
        (
            {"slot/slot.c": "__attribute__((noinline)) static int\nslots(void)\n{\n}\n"},
            ["slots() begins with none of slot"],
        ),
        (
            dict.fromkeys(("slot/slot.c", "slot/fetch.c"), "static int\nslot_fetch_fill(void);\n"),
            ["slot_fetch_fill() is static in slot/fetch.c, slot/slot.c"],
        ),
        ({"a/a.h": "struct a {\n    int b;\n};\n", "b/b.c": "struct a { int b; };\n"}, []),
        (
            {"a/a.h": "struct a {\n    int b;\n};\n", "b/b.c": "enum a { C };\n"},
            ["a has 2 meanings in a/a.h, b/b.c"],
        ),
        (
            {"a/a.h": "#define A 1\n", "b/b.h": "#define A \\\n    2 /* two */\n"},
            ["A has 2 meanings in a/a.h, b/b.h"],
        ),
    ],
)
def test_names(tmp_path: Path, sources: dict[str, str], complaints: list[str]) -> None:
    for name, code in sources.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)
    lines = names.problems(tmp_path, {})
    assert len(lines) == len(complaints)
    assert all(wanted in line for wanted, line in zip(complaints, lines, strict=True))


def test_a_noun_of_no_file_is_seen(tmp_path: Path) -> None:
    (line,) = names.problems(tmp_path, {"slot/gone.c": "gone"})
    assert line.endswith(" slot/gone.c")


def c_function(lines: int, *, parameters: str = "void", comment: str = "") -> str:
    body = "    x++;\n" * (lines - 4)
    return f"{comment}\nstatic void\nwork({parameters})\n{{\n{body}}}\n"


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("fits.c", c_function(58), None),
        ("long.c", c_function(90), "lines, at most 60"),
        ("excused.c", c_function(90, comment="/* over budget: a state table. */"), None),
        ("file.c", "int x;\n" * 601, "601 lines, at most 600"),
        ("file.py", "x = 1\n" * 401, "401 lines, at most 400"),
        ("excused.py", "# over budget: a table of facts.\n" + "x = 1\n" * 401, None),
        ("function.py", "def f():\n" + "    x = 1\n" * 60, "lines, at most 50"),
        ("prose.py", 'def f():\n    """Do.\n' + "    it\n" * 500 + '    """\n    return 1\n', None),
        (
            "text.py",
            'def f():\n    return """Do.\n' + "it\n" * 60 + '    """\n',
            "lines, at most 50",
        ),
        ("wide.c", c_function(9, parameters=", ".join(f"int p{i}" for i in range(9))), "9 param"),
        (
            "wide_but_err.c",
            c_function(9, parameters=", ".join(f"int p{i}" for i in range(8)) + ", int *err"),
            None,
        ),
        ("paths.c", c_function(9).replace("x++;", "if (x && y || z && x) x++;"), "cyclomatic"),
    ],
)
def test_budgets(tmp_path: Path, name: str, content: str, complaint: str | None) -> None:
    path = tmp_path / name
    path.write_text(content)
    found = budgets.check_file(path)
    if complaint is None:
        assert found == []
    else:
        (line,) = found
        assert complaint in line


@pytest.mark.parametrize(
    ("name", "content", "count"),
    [
        ("comment.c", "/* It is\n * told. */\nint told;\n", 0),
        ("comment.c", "/* It is told. */\nint x; // whoever\n", 2),
        ("message.c", 'const char *born = "it was born";\n', 1),
        ("docstring.py", '"""Nobody waits."""\n\nnobody = 1  # who waits here\n', 2),
        ("docstring.py", '"""It asks nobody."""\n\nnobody = 1  # x: who waits\n', 2),
        ("page.md", "It is told.\n\n```\nit is told\n```\n\n    it is told\n\n`is told`\n", 1),
    ],
)
def test_prose(tmp_path: Path, name: str, content: str, count: int) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    assert len(prose.findings(path)) == count


OPEN_C = "/* SPDX-License-Identifier: Apache-2.0\n * What it is for. */\n"


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("good.c", OPEN_C + "int x;\n", None),
        ("line_comment.cpp", "// What it is for.\n#include <a>\n", None),
        (
            "license.h",
            "/* SPDX-License-Identifier: Apache-2.0 */\n#pragma once\n",
            "no opening com",
        ),
        ("late.c", "int x;\n/* What it is for. */\n", "no opening comment"),
        ("full.c", OPEN_C + "/*" + " " * 96 + "*/\n", None),
        ("long.c", OPEN_C + "/*" + " " * 97 + "*/\n", "long.c:3: 101 columns, at most 100"),
        ("umlauts.py", '"""Ums."""\n\nX = "' + "\u00e4" * 94 + '"\n', None),
        ("long.py", '"""Ums."""\n\nX = "' + "a" * 95 + '"\n', "long.py:3: 101 columns"),
        ("good.py", '"""What it is for."""\n', None),
        ("empty.py", "", None),
        ("bare.py", "# a comment is no docstring\nX = 1\n", "no opening docstring"),
        ("good.sh", "#!/usr/bin/env bash\n# What it is for.\n", None),
        ("bare.sh", "#!/usr/bin/env bash\nset -e\n", "no opening comment"),
        ("bare.cmake", "set(x y)\n", "no opening comment"),
        ("CMakeLists.txt", "project(x)\n", "no opening comment"),
    ],
)
def test_text(tmp_path: Path, name: str, content: str, complaint: str | None) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    assert text.is_checked(path)
    found = text.problems(path)
    if complaint is None:
        assert found == []
    else:
        (line,) = found
        assert complaint in line


def test_text_of_other_files_is_not_looked_at() -> None:
    assert not any(text.is_checked(Path(name)) for name in ("README.md", "a.json", "LICENSE"))


def junit(*programs: str) -> str:
    return f"<testsuite>{''.join(programs)}</testsuite>"


def program(name: str, status: str, output: str) -> str:
    failure = '<failure message=""/>' if status == "fail" else ""
    escaped = output.replace("<", "&lt;")
    return (
        f'<testcase name="{name}" status="{status}" time="0.1">{failure}'
        f"<system-out>{escaped}</system-out></testcase>"
    )


GOOD = program("base_good", "run", "ok   works (0.1 ms)\ntests: 1 passed, 0 failed, 0 skipped\n")
BAD = program(
    "base_bad",
    "fail",
    "noise of one that works\nok   works (0.1 ms)\n"
    "bad_test.c:7: x is 1, want 2\nFAIL breaks (0.2 ms)\n"
    "ok   works_too (0.1 ms)\nstuck: not done after 20 s\nFAIL stuck (20000.0 ms)\n"
    "tests: 2 passed, 2 failed, 0 skipped\n",
)
CRASHED = program("base_crashed", "fail", "ok   works (0.1 ms)\nERROR: LeakSanitizer: lost\n")


def summary_of(tmp_path: Path, document: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "junit.xml"
    path.write_text(document, encoding="utf-8")
    command = [sys.executable, str(CI / "ctest_summary.py"), "dev", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_summary_of_what_passed_is_two_lines(tmp_path: Path) -> None:
    done = summary_of(tmp_path, junit(GOOD))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "C tests, dev: 1 ok, 0 bad, 0 skipped in 1 programs"
    assert len(done.stdout.splitlines()) == 2


def test_summary_shows_the_ends_that_a_sweep_tried_and_what_grew(tmp_path: Path) -> None:
    sweep = program(
        "integration_sweep",
        "run",
        "  sweep: 16 points\n  other words\n  steady: no kind left more\n"
        "ok   ends (0.1 ms)\ntests: 1 passed, 0 failed, 0 skipped\n",
    )
    lines = summary_of(tmp_path, junit(GOOD, sweep)).stdout.splitlines()
    assert lines[2:] == ["  sweep: 16 points", "  steady: no kind left more"]


def test_summary_shows_what_each_failure_said_and_nothing_else(tmp_path: Path) -> None:
    done = summary_of(tmp_path, junit(GOOD, BAD, CRASHED))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    first = lines.index("FAILED base_bad")
    assert lines[first + 1 : first + 5] == [
        "bad_test.c:7: x is 1, want 2",
        "FAIL breaks (0.2 ms)",
        "stuck: not done after 20 s",
        "FAIL stuck (20000.0 ms)",
    ]
    crashed = lines.index("FAILED base_crashed")
    assert lines[crashed + 1] == "ERROR: LeakSanitizer: lost"
    assert "noise of one that works" not in lines
    assert "C tests, dev: 3 ok, 2 bad, 0 skipped in 3 programs" in lines


def test_summary_of_a_long_report_has_its_beginning(tmp_path: Path) -> None:
    report = "".join(f"frame {number}\n" for number in range(100))
    bad = program("base_long", "fail", f"{report}FAIL breaks (0.2 ms)\n")
    lines = summary_of(tmp_path, junit(bad)).stdout.splitlines()
    assert "frame 0" in lines
    assert "frame 99" not in lines
    assert "... 60 lines more" in lines
    assert "FAIL breaks (0.2 ms)" in lines


def test_summary_of_nothing_is_no_success(tmp_path: Path) -> None:
    assert summary_of(tmp_path, junit()).returncode == 1
