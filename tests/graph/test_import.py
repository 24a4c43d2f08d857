"""The package loads fast and alone: no torch, no rdmatensor, not even numpy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import graph_analysis

pytestmark = pytest.mark.timeout(60)

PACKAGE = Path(graph_analysis.__file__).parent


def _python(code: str) -> str:
    """Standard output of code in a fresh interpreter that sees this package."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    return done.stdout


def test_import_loads_neither_torch_nor_rdmatensor() -> None:
    code = (
        "import sys, graph_analysis, graph_analysis.__main__\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    loaded = set(_python(code).split())
    assert "graph_analysis" in loaded
    assert not loaded & {"torch", "rdmatensor", "numpy", "sympy", "cffi"}


def test_import_is_fast() -> None:
    """In CPU time, next to torch, which it must not import; 1/30 of it on an idle machine."""

    def cpu_s(module: str) -> float:
        code = (
            "import time; began = time.process_time()\n"
            f"import {module}\n"
            "print(time.process_time() - began)"
        )
        return float(_python(code))

    assert min(cpu_s("graph_analysis") for _ in range(3)) < cpu_s("torch") / 4


def test_without_torch_analyze_says_so() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import graph_analysis as g\n"
        "try:\n"
        "    g.analyze(None, (), strategy=g.DataParallel(2))\n"
        "except g.CaptureError as error:\n"
        "    print(error)"
    )
    assert "pip install torch" in _python(code)


def test_only_capture_imports_torch_and_nothing_imports_rdmatensor() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 10
    importers = set()
    for path in files:
        for node in _runtime_imports(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            roots = {name.partition(".")[0] for name in names}
            assert not roots & {"rdmatensor", "bench"}, path
            if "torch" in roots:
                importers.add(path.parent.name)
    assert importers == {"capture"}


def _runtime_imports(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """All imports but those that only the type checker sees."""
    found: list[ast.Import | ast.ImportFrom] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        found += _runtime_imports(node)
    return found
