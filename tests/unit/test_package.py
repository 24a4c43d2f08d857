"""The package as a whole: names, import time, and what it does without."""

from __future__ import annotations

import ast
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import rdmatensor

FOLDER = Path(rdmatensor.__file__).parent


def _run(code: str, *options: str, timeout: float = 60, **environment: str) -> str:
    """Run code in a fresh interpreter, away from the source tree."""
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(FOLDER.parent), **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_public_name_is_there_and_documented() -> None:
    for name in rdmatensor.__all__:
        value = getattr(rdmatensor, name)
        assert name == "__version__" or value.__doc__, name
    assert set(rdmatensor.__all__) <= set(dir(rdmatensor))
    with pytest.raises(AttributeError, match="no attribute 'Contxt'"):
        rdmatensor.Contxt  # noqa: B018


def test_modules_of_functions_need_no_import_of_their_own() -> None:
    code = "import rdmatensor; print(rdmatensor.torch.empty.__module__)"
    assert _run(code) == "rdmatensor.torch"
    code = "import rdmatensor; print(rdmatensor.metrics.values.__module__)"
    assert _run(code) == "rdmatensor.metrics"


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((FOLDER / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    declared = {
        (str(node.module).removeprefix("rdmatensor."), alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    modules = {("rdmatensor", name) for name in rdmatensor._MODULES_BY_NAME}
    assert declared == {(home, name) for name, home in rdmatensor._HOMES.items()} | modules


def test_import_is_fast_and_loads_nothing() -> None:
    code = (
        "import time, sys; before = set(sys.modules); start = time.process_time()\n"
        "import rdmatensor; took = time.process_time() - start; start = time.process_time()\n"
        "import asyncio, http.client; other = time.process_time() - start\n"
        "print(took / other, *({'numpy', 'torch', 'cffi'} & (set(sys.modules) - before)))"
    )
    answers = [_run(code).split() for _ in range(5)]
    assert all(len(answer) == 1 for answer in answers), answers
    assert statistics.median(float(answer[0]) for answer in answers) < 1


BLOCK = (
    "import sys\n"
    "class Block:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name.split('.')[0] in {'torch', 'ml_dtypes'}:\n"
    "            raise ImportError(f'{name} is blocked')\n"
    "sys.meta_path.insert(0, Block())\n"
)


def test_the_doctor_starts_fast() -> None:
    """Until its first line is read: processor time, to which others add little."""
    seconds = []
    for _ in range(7):
        with subprocess.Popen(
            [sys.executable, "-m", "rdmatensor", "doctor"],
            cwd="/",
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(FOLDER.parent)},
            stdout=subprocess.PIPE,
            text=True,
        ) as doctor:
            assert doctor.stdout is not None
            line = doctor.stdout.readline()
            stat = Path(f"/proc/{doctor.pid}/stat").read_text().rpartition(")")[2].split()
            doctor.kill()
        assert line.split()[1] == "version"
        seconds.append((int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"))
    assert min(seconds) < 0.3


@pytest.mark.parametrize("name", rdmatensor._MODULES_BY_NAME)
def test_modules_need_no_separate_import(name: str) -> None:
    assert _run(f"import rdmatensor; print(rdmatensor.{name}.__name__)") == f"rdmatensor.{name}"


def test_the_doctor_needs_no_torch_to_start() -> None:
    code = "import rdmatensor.cli, rdmatensor.doctor, sys; print('torch' in sys.modules)"
    assert _run(code).split() == ["False"]


def test_everything_but_the_backend_works_without_torch() -> None:
    code = BLOCK + (
        "import rdmatensor, numpy as np\n"
        "names = {*rdmatensor.__all__, *rdmatensor._MODULES_BY_NAME}\n"
        "for name in names - set(rdmatensor._OF_TORCH): getattr(rdmatensor, name)\n"
        "with rdmatensor.Context() as c, rdmatensor.Context() as d:\n"
        "    c.add_job(secret=b'x'); d.add_job(secret=b'x')\n"
        "    a = d.zeros(10)\n"
        "    with c.connect(d.address) as e:\n"
        "        e.write(np.ones(10, np.float32), d.export(a)).wait(10)\n"
        "    print(a.sum())\n"
    )
    assert _run(code, "-W", "error") == "10.0"


def test_the_doctor_works_without_torch() -> None:
    code = BLOCK + "from rdmatensor.cli import main; sys.exit(main(['doctor']))"
    answer = _run(code)
    assert "ok      version" in answer
    assert "shm" in answer


def test_a_package_that_was_not_built_says_how_to_build_it(tmp_path: Path) -> None:
    for path in FOLDER.rglob("*.py"):
        if path.name != "_build_stamp.py":
            copy = tmp_path / "rdmatensor" / path.relative_to(FOLDER)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text())
    code = "try: import rdmatensor._native.ffi\nexcept ImportError as error: print(error)\n"
    answer = _run(code, "-S", PYTHONPATH=str(tmp_path))  # without site: nothing is installed
    assert "pip install --no-build-isolation" in answer


def test_the_version_is_one() -> None:
    from rdmatensor._native.ffi import ffi, lib

    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'version = "{rdmatensor.__version__}"' in pyproject
    assert rdmatensor.__version__ == ffi.string(lib.rdt_version()).decode()


def test_commands() -> None:
    from rdmatensor import cli

    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == 2


def test_the_doctor_tells_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from rdmatensor import cli

    assert cli.main(["doctor", "--json"]) == 0
    findings = {
        found["subject"]: found for found in json.loads(capsys.readouterr().out)["findings"]
    }
    assert rdmatensor.__version__ in findings["version"]["text"]
    assert findings["shm"]["level"] == findings["tcp"]["level"] == "ok"
    assert "not used" in findings["verbs"]["text"]
    assert cli.main(["settings"]) == 0
    assert "RDMATENSOR_TIMEOUT_S=300\n" in capsys.readouterr().out


def test_the_doctor_fails_on_a_setting_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rdmatensor import cli

    monkeypatch.setenv("RDMATENSOR_TRANSPROT", "tcp")
    assert cli.main(["doctor"]) == 1
    assert "broken  settings" in capsys.readouterr().out
