"""ci/wheel_check.py refuses a package whose shared objects need what a user may not have."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[2] / "ci" / "wheel_check.py"
C10D = "_c10d_torch2_13_0.cpython-311-x86_64-linux-gnu.so"
CFFI = "_rdmatensor_cffi.abi3.so"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wheel_check", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


wheel_check = load()


def build(path: Path, *needed: Path) -> Path:
    """Make a shared object that is called as its file is, and needs the others and libc."""
    path.parent.mkdir(exist_ok=True)
    words = ["gcc", "-shared", "-fPIC", "-x", "c", "/dev/null", f"-Wl,-soname,{path.name}"]
    libraries = ["-x", "none", "-Wl,--no-as-needed", *map(str, needed), "-o", str(path)]
    subprocess.run([*words, *libraries], check=True, timeout=30)
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared objects by the names of those of a wheel, with what they may need."""
    folder = tmp_path_factory.mktemp("good") / "rdmatensor"
    library = build(folder / "librdmatensor.so")
    build(folder / CFFI, library)
    torch = [build(folder.parent / "torch" / name) for name in ("libtorch_cpu.so", "libc10.so")]
    build(folder / C10D, library, *torch)
    return folder


@pytest.fixture
def package(good: Path, tmp_path: Path) -> Path:
    """The same for one test to change."""
    return Path(shutil.copytree(good, tmp_path / "rdmatensor"))


def test_what_a_wheel_of_ours_needs_is_on_the_lists(package: Path) -> None:
    wheel_check.check_needed(package)
    assert wheel_check.needed_by(package / CFFI) == ["librdmatensor.so", "libc.so.6"]


@pytest.mark.parametrize(
    ("where", "planted"),
    [
        ("librdmatensor.so", "libibverbs.so.1"),
        (CFFI, "libibverbs.so.1"),
        (C10D, "libibverbs.so.1"),
        (C10D, "libpython3.11.so.1.0"),
        ("librdmatensor.so", "libstdc++.so.6"),
        ("librdmatensor.so", "libtorch_cpu.so"),
        (CFFI, "libc10.so"),
        ("nested.so", "libcuda.so.1"),
    ],
)
def test_a_planted_need_is_refused_by_name(
    package: Path, tmp_path: Path, where: str, planted: str
) -> None:
    build(package / where, build(tmp_path / "beside" / planted))
    words = f"{where} needs {planted}, which is not on the list"
    with pytest.raises(AssertionError, match=re.escape(words)):
        wheel_check.check_needed(package)


def test_a_package_without_its_library_is_refused(package: Path) -> None:
    (package / "librdmatensor.so").unlink()
    with pytest.raises(AssertionError, match="no librdmatensor"):
        wheel_check.check_needed(package)


def test_a_file_that_is_no_shared_object_is_refused(package: Path) -> None:
    (package / "other.so").write_text("words", encoding="utf-8")
    with pytest.raises((AssertionError, subprocess.CalledProcessError)):
        wheel_check.check_needed(package)
