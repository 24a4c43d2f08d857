"""Docstrings of everything public: each parameter, result and exception, and an example that runs.

The modules that need torch have their examples run in tests/integration/test_examples.py.
"""

from __future__ import annotations

import ast
import asyncio
import doctest
import importlib
import pickle
import re
import select
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import rdmatensor
from rdmatensor import Context, Settings

FOLDER = Path(rdmatensor.__file__).parent
Function = ast.FunctionDef | ast.AsyncFunctionDef
SECTIONS = "Args|Attributes|Returns|Yields|Raises|Example|Ownership|Threads|Threads and processes"


def _tree(module: str) -> ast.Module:
    path = FOLDER.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _public_names() -> Iterator[tuple[str, str]]:
    """Yield (module, name) of all that the package and its public modules offer."""
    for home, names in rdmatensor._MODULES.items():
        yield from ((home, name) for name in names)
    for module in rdmatensor._MODULES_BY_NAME:
        tree = _tree(module)
        homes = {
            alias.name: str(node.module).removeprefix("rdmatensor.")
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            and str(node.module).startswith("rdmatensor")  # another package tests its own
            for alias in node.names
        }
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                yield from (
                    (homes.get(name, module), name) for name in ast.literal_eval(node.value)
                )


def _definitions() -> Iterator[tuple[str, ast.ClassDef | Function]]:
    """Yield the classes and functions of these names, and the public methods."""
    seen = set()
    for module, name in sorted(set(_public_names())):
        for node in _tree(module).body:
            if not isinstance(node, ast.ClassDef | Function) or node.name != name:
                continue
            if (module, name) not in seen:
                seen.add((module, name))
                yield f"{module}.{name}", node
            for part in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(part, Function) and not part.name.startswith("_"):
                    yield f"{module}.{name}.{part.name}", part


def _sections(node: ast.ClassDef | Function) -> dict[str, str]:
    """Return the sections of a docstring in Google's form, by name."""
    text = ast.get_docstring(node) or ""
    parts = re.split(rf"(?m)^({SECTIONS}):\n", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _parameters(node: Function) -> list[str]:
    args = node.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return [one.arg for one in every if one is not None and one.arg not in ("self", "cls")]


def _is_property(node: Function) -> bool:
    return any(ast.unparse(one).endswith("property") for one in node.decorator_list)


def problems(name: str, node: ast.ClassDef | Function) -> Iterator[str]:
    """Yield what the docstring of a public class or function lacks."""
    found, said = _sections(node), ast.get_docstring(node) or ""
    for section in re.findall(rf"(?m)^({SECTIONS}): ", said):
        yield f"{name} has its section {section} on one line, which no generator reads"
    if isinstance(node, ast.ClassDef) or _is_property(node):
        if not said:
            yield f"{name} has no docstring"
    elif node.name.endswith("_init"):  # its class says that it has the arguments of that method
        if f"{node.name.removesuffix('_init')}()" not in said:
            yield f"{name} does not name the method whose arguments it takes"
    else:
        documented = re.findall(r"(?m)^ {4}(\w+): \S", found.get("Args", ""))
        for parameter in set(_parameters(node)) - set(documented):
            yield f"{name} does not document {parameter}"
        for parameter in set(documented) - set(_parameters(node)):
            yield f"{name} documents {parameter}, which it does not have"
        returned = ast.unparse(node.returns) if node.returns is not None else "None"
        if returned != "None" and not {"Returns", "Yields"} & set(found):
            yield f"{name} does not say what it returns"
        if ">>> " not in found.get("Example", ""):
            yield f"{name} has no example"


def test_public_docstrings_are_complete() -> None:
    definitions = dict(_definitions())
    assert len(definitions) > 100
    found = [line for name, node in definitions.items() for line in problems(name, node)]
    assert found == []


def test_what_a_docstring_lacks_is_seen() -> None:
    (node,) = ast.parse(
        'def f(a, *, b=1):\n    """Do.\n\n    Args:\n        a: A.\n        c: C.\n    """\n'
    ).body
    assert isinstance(node, Function)
    assert list(problems("m.f", node)) == [
        "m.f does not document b", "m.f documents c, which it does not have", "m.f has no example",
    ]  # fmt: skip


# ---- examples ------------------------------------------------------------------------------------

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = sorted({*rdmatensor._MODULES, "cli", "metrics", "trace"})


def _examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in MODULES:
        module = importlib.import_module(f"rdmatensor.{name}")
        yield from (one for one in finder.find(module, module.__name__) if one.examples)


EXAMPLES = {one.name: one for one in _examples()}


@pytest.fixture
def names(tmp_path: Path) -> Iterator[dict[str, object]]:
    """The names of the examples: two connected contexts, and a job of one rank."""
    tmp_path.chmod(0o700)
    settings = Settings(transport="shm", loopback=True, arena_mib=1, secret=b"examples")
    with ExitStack() as stack:
        context, other = (stack.enter_context(Context(settings)) for _ in range(2))
        context.add_job(rank=0)
        other.add_job(rank=1)
        endpoint = stack.enter_context(context.connect(other.address, rank=1))
        peer = stack.enter_context(other.connect(context.address, rank=0))
        memory = other.zeros(64, "uint8")
        store = rdmatensor.FileStore(tmp_path / "job")
        world, _ = (
            stack.enter_context(rdmatensor.join(store, rank, 2, context=one, timeout_s=10))
            for rank, one in enumerate((context, other))
        )
        stack.enter_context(other.recv_slot("numbers", 3, src=peer))
        inbox = stack.enter_context(other.recv_slot("acts", 3, src=peer))
        sender = stack.enter_context(endpoint.send_slot("acts", 3))
        receiver = stack.enter_context(other.recv_slot("inbox", 3, src=peer))
        feed = stack.enter_context(endpoint.send_slot("inbox", 3))
        feed.put(np.array([1, 2, 3], np.float32)).wait()
        yield {
            **{name: getattr(rdmatensor, name) for name in rdmatensor.__all__},
            "np": np,
            "asyncio": asyncio,
            "pickle": pickle,
            "select": select,
            "rdmatensor": rdmatensor,
            "context": context,
            "other": other,
            "world": world,
            "endpoint": endpoint,
            "peer": peer,
            "remote": other.export(memory),
            "inbox": inbox,
            "sender": sender,
            "receiver": receiver,
            "folder": tmp_path / "kept",
            "group": stack.enter_context(world.group("examples", [0])),
        }


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples_run(
    name: str, names: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(str(names["folder"]))).mkdir(mode=0o700)
    example = EXAMPLES[name]
    example.globs = {**example.globs, **names}
    threads = threading.active_count()
    with capsys.disabled():
        result = doctest.DocTestRunner(optionflags=FLAGS).run(example)
    assert result.attempted > 0
    assert result.failed == 0
    assert threading.active_count() <= threads
