"""The backend that is compiled on the user's machine: once, whole or not at all, and in words."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from rdmatensor import _build_stamp
from rdmatensor._backend import compiler, extension, on_demand, prebuilt

SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))
SOURCE = """
#include <Python.h>

int answer();

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "tiny", nullptr, -1, nullptr,
                                 nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC
PyInit_tiny()
{
    PyObject *module = PyModule_Create(&definition);
    PyModule_AddIntConstant(module, "answer", answer());
    return module;
}
"""


class FakeCompiler(compiler.Compiler):
    """Takes a while, and makes a file, or fails."""

    def __init__(self, failure: str | None = None) -> None:
        super().__init__(("fake",))
        self.failure = failure
        self.calls = 0

    def make(self, module: compiler.Module, work: Path, say: Callable[[str], None]) -> Path:
        say("at work")
        self.calls += 1
        time.sleep(0.5)
        if self.failure is not None:
            raise compiler.CompileError(self.failure)
        made = work / f"{module.name}.so"
        made.write_text("made")
        return made


@pytest.fixture
def module(tmp_path: Path) -> compiler.Module:
    sources = tmp_path / "sources"
    (sources / "deeper").mkdir(parents=True)
    (sources / "tiny.cpp").write_text(SOURCE)
    (sources / "other.cpp").write_text('#include "deeper/answer.cpp"\n')
    (sources / "deeper" / "answer.cpp").write_text("int answer() { return int(sizeof(int)); }\n")
    python = Path(sysconfig.get_path("include"))
    return compiler.Module("tiny", sources, (sources,), foreign_includes=(python,))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rdmatensor"


def at_once(count: int, call: Callable[[], object]) -> list[object]:
    """Call it in so many threads; return what each returned or raised."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except ImportError as error:
            found.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("2.13.0+cpu", "_c10d_torch2_13_0"),
        ("2.13.0", "_c10d_torch2_13_0"),
        ("2.14.1+cu130", "_c10d_torch2_14_1"),
        ("2.15.0.dev20261001+cpu", "_c10d_torch2_15_0_dev20261001_cpu"),
        ("2.15.0a0+git1234567", "_c10d_torch2_15_0a0_git1234567"),
    ],
)
def test_builds_of_a_release_share_a_module(version: str, name: str) -> None:
    assert prebuilt.module_name(version) == name


def test_a_module_is_compiled_once_and_then_found(
    module: compiler.Module, cache: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(on_demand, "_module", lambda _name: module)

    assert on_demand.load("tiny").answer == 4
    said = capfd.readouterr().err
    assert "compiling it with" in said
    assert "2 of 2 files compiled" in said
    assert [path.name for path in cache.glob("*/*")] == [f"tiny{SUFFIX}"]

    monkeypatch.setenv("PATH", "")  # no compiler: what is there needs none
    assert on_demand.load("tiny").answer == 4
    assert capfd.readouterr().err == ""


def test_bytecode_of_another_compiler_is_not_read(
    module: compiler.Module, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (module.sources / "other.cpp").unlink()
    source, made = tmp_path / "answer.cpp", tmp_path / "answer.o"
    source.write_text("int answer() { return 5; }\n")
    flags = ("-c", "-fPIC", "-flto", "-ffat-lto-objects")
    subprocess.run(["gcc", *flags, str(source), "-o", str(made)], check=True, timeout=60)
    (section,) = re.findall(
        r"\.gnu\.lto_\.lto\.\w+",
        subprocess.check_output(["objdump", "-h", "-w", str(made)], text=True, timeout=60),
    )
    version = tmp_path / "version"
    dump = ["objcopy", f"--dump-section={section}={version}", str(made)]
    subprocess.run(dump, check=True, timeout=60)
    told = version.read_bytes()
    version.write_bytes(bytes([told[0] + 1]) + told[1:])
    renew = ["objcopy", f"--update-section={section}={version}", str(made)]
    subprocess.run(renew, check=True, timeout=60)
    archive = ["ar", "rcs", str(module.sources / "libanswer.a"), str(made)]
    subprocess.run(archive, check=True, timeout=60)
    monkeypatch.setattr(on_demand, "_module", lambda _name: module)
    monkeypatch.setenv("CXX", "g++")
    assert on_demand.load("tiny").answer == 5


def test_other_sources_are_another_module(
    module: compiler.Module, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand, "_module", lambda _name: module)
    on_demand.load("tiny")
    (module.sources / "deeper" / "answer.cpp").write_text("int answer() { return 7; }\n")
    assert on_demand.load("tiny").answer == 7
    assert len(list(cache.glob("*/*"))) == 2


def test_what_does_not_compile_is_said_with_the_first_error(
    module: compiler.Module, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand, "_module", lambda _name: module)
    (module.sources / "deeper" / "answer.cpp").write_text("int answer() { return absent; }\n")
    with pytest.raises(ImportError, match=r"does not compile for torch .*absent.*") as caught:
        on_demand.load("tiny")
    (log,) = cache.glob("*.failed.log")
    assert str(log) in str(caught.value)
    assert "answer.cpp" in log.read_text()
    assert not list(cache.glob("making-*"))
    assert not list(cache.glob("*/*"))


def test_one_compiles_while_the_others_wait(module: compiler.Module, cache: Path) -> None:
    on_demand.cache_folder()
    fake, path = FakeCompiler(), cache / "key" / f"tiny{SUFFIX}"
    assert at_once(4, lambda: on_demand._make(module, fake, path)) == [None] * 4
    assert fake.calls == 1
    assert path.read_text() == "made"


def test_those_that_waited_share_the_failure(module: compiler.Module, cache: Path) -> None:
    on_demand.cache_folder()
    fake, path = FakeCompiler("g++\nerror: no such type"), cache / "key" / f"tiny{SUFFIX}"
    said = at_once(4, lambda: on_demand._make(module, fake, path))
    assert fake.calls == 1
    assert len(set(said)) == 1
    assert "error: no such type" in str(said[0])

    fake.failure = None  # a later process tries again
    assert at_once(1, lambda: on_demand._make(module, fake, path)) == [None]
    assert fake.calls == 2


def test_a_folder_that_others_write_is_refused(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with pytest.raises(ImportError, match="only this user can write"):
        on_demand.cache_folder()


def test_without_a_cache_the_temporary_folder_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
    folder = on_demand.cache_folder()
    assert folder.parent == tmp_path / "tmp"
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("backends", "has", "end"),
    [
        (
            {"_c10d_torch2_0_1.so": "2.0.1 commit x"},
            r"\(those of torch 2\.0\.1\)",
            "-dev), or install one of those torch versions;",
        ),
        ({}, r"\(none\)", "-dev);"),
    ],
)
def test_without_a_compiler_the_error_says_what_to_install(
    backends: dict[str, str], has: str, end: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extension, "_loaded", None)
    monkeypatch.setattr(_build_stamp, "BACKENDS", backends)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ImportError, match=rf"{has}.*apt-get install g\+\+ python3") as caught:
        extension.load_extension()
    assert end in str(caught.value)


def test_a_module_of_another_commit_is_not_loaded(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = dict.fromkeys(_build_stamp.BACKENDS, "2.13.0 commit 0000000 cxx11abi 1")
    monkeypatch.setattr(extension, "_loaded", None)
    monkeypatch.setattr(_build_stamp, "BACKENDS", other)
    monkeypatch.setattr(on_demand, "load", lambda name: name)
    assert str(extension.load_extension()).startswith("_c10d_torch")


def test_a_torch_that_is_too_old_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "_loaded", None)
    monkeypatch.setattr("torch.__version__", "2.10.1+cpu")
    with pytest.raises(ImportError, match=r"2\.10\.1.*too old.*2\.11"):
        extension.load_extension()


@pytest.mark.parametrize("kind", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_each_compiles_and_one_module_stays(
    kind: int, module: compiler.Module, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(_file: object, _operation: int) -> None:
        raise OSError(kind, "none here")

    on_demand.cache_folder()
    monkeypatch.setattr("fcntl.flock", flock)
    fake, path = FakeCompiler(), cache / "key" / f"tiny{SUFFIX}"
    assert at_once(3, lambda: on_demand._make(module, fake, path)) == [None] * 3
    assert path.read_text() == "made"
    assert not list(cache.glob("making-*"))


def test_what_a_killed_process_left_is_removed(module: compiler.Module, cache: Path) -> None:
    on_demand.cache_folder()
    (cache / "making-key-x").mkdir()
    (cache / "making-other-x").mkdir()  # another module, which may be at work
    on_demand._make(module, FakeCompiler(), cache / "key" / f"tiny{SUFFIX}")
    assert [path.name for path in cache.glob("making-*")] == ["making-other-x"]


def test_a_failure_is_known_by_its_log_and_not_by_a_clock(
    module: compiler.Module, cache: Path
) -> None:
    on_demand.cache_folder()
    failed = cache / "key.failed.log"
    failed.write_text("error: an old one")
    in_an_hour_s = time.time() + 3600  # the file server's clock
    os.utime(failed, (in_an_hour_s, in_an_hour_s))
    on_demand._make(module, FakeCompiler(), cache / "key" / f"tiny{SUFFIX}")


def test_a_wait_for_another_process_has_an_end(
    module: compiler.Module, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_demand.cache_folder()
    monkeypatch.setattr(on_demand, "_WAIT_S", 0.3)
    path = cache / "key" / f"tiny{SUFFIX}"
    with (
        on_demand._locked(cache / "key.lock"),
        pytest.raises(ImportError, match=r"another process has held .*key\.lock"),
    ):
        on_demand._make(module, FakeCompiler(), path)


def test_a_file_that_fails_ends_the_parts_of_the_others(tmp_path: Path) -> None:
    """A compiler is a driver whose parts do the work: they must end, too."""
    (tmp_path / "work").mkdir()
    for name in ("slow", "wrong"):
        (tmp_path / f"{name}.cpp").write_text("")
    driver = tmp_path / "driver"
    driver.write_text(
        f'#!/bin/sh\ncase "$*" in *wrong.cpp*)\n'
        f"    while [ ! -e {tmp_path}/part ]; do sleep 0.05; done; exit 1;;\nesac\n"
        f"sleep 300 & echo $! > {tmp_path}/part.new; mv {tmp_path}/part.new {tmp_path}/part; wait\n"
    )
    driver.chmod(0o755)
    made = compiler.Module("tiny", tmp_path, ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "_files_at_once", lambda: 2)
        with pytest.raises(compiler.CompileError):
            compiler.Compiler((str(driver),)).make(made, tmp_path / "work", lambda _text: None)
    part = Path("/proc", (tmp_path / "part").read_text().strip(), "stat")
    end_s = time.monotonic() + 10
    while part.exists() and part.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["absent", "fails", "hangs", "has no format"])
def test_the_compiler_that_is_named_is_said_not_to_run(
    kind: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "mine"
    if kind != "absent":
        named.write_text(
            {"fails": "#!/bin/sh\nexit 1\n", "hangs": "#!/bin/sh\nexec sleep 9\n"}.get(kind, "\0")
        )
        named.chmod(0o755)
    monkeypatch.setattr(compiler, "_VERSION_S", 0.3)
    monkeypatch.setenv("CXX", str(named))
    with pytest.raises(ImportError, match=r"\$CXX, '.*mine', does not run"):
        on_demand.load("tiny")


def test_an_error_of_the_system_is_an_import_error(module: compiler.Module, cache: Path) -> None:
    class Full(FakeCompiler):
        def make(self, *_: object) -> Path:
            raise OSError(errno.ENOSPC, "No space left on device")

    on_demand.cache_folder()
    with pytest.raises(ImportError, match=r"cannot be compiled with fake.*No space left"):
        on_demand._make(module, Full(), cache / "key" / f"tiny{SUFFIX}")


@pytest.mark.parametrize(("limit_gib", "count"), [("2", 1), ("4", 2), ("max", 3)])
def test_as_many_files_at_once_as_fit_the_group_s_memory(
    limit_gib: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = limit_gib if limit_gib == "max" else str(int(limit_gib) << 30)
    texts = {
        "proc/meminfo": "MemAvailable:   6291456 kB",
        "proc/self/mountinfo": "1 2 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup rw",
        "proc/self/cgroup": "0::/",
        "sys/fs/cgroup/memory.max": limit,
    }
    monkeypatch.setattr(compiler.cgroup.RootFiles, "text", lambda _self, path: texts.get(path))
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(8)))
    assert compiler._files_at_once() == count
