"""Compiles the C++ module for a torch that this package has none for: once, into a cache folder.

The folder is `$XDG_CACHE_HOME/rdmatensor`, or `~/.cache/rdmatensor`. What a module depends on is
part of its name there. One process compiles, others of the host wait for it; a module appears in
the cache whole or not at all. What happens is said on standard error.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import os
import platform
import shutil
import stat
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch

import rdmatensor._build_stamp as build_stamp
import rdmatensor._rdmatensor_cffi as cffi_module
from rdmatensor._backend.compiler import (
    CompileError,
    Compiler,
    Module,
    find_compiler,
    what_is_missing,
    what_to_install,
)
from rdmatensor._backend.prebuilt import identity_of

_PACKAGE = Path(cffi_module.__file__).parent
_POLL_S = 0.2
_SAY_EVERY_S = 30.0
_WAIT_S = 1800.0  # for another process that compiles
_MAKING = "making-"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # some network file systems


def load(name: str) -> ModuleType:
    """Return the module for the torch that runs, from the cache; compile it if it is not there.

    Args:
        name: The module's name, without the package.

    Returns:
        The module, imported as `rdmatensor.<name>`.

    Raises:
        ImportError: A compiler is missing, or failed, or its result does not load.
    """
    module = _module(name)
    path = cache_folder() / _key(module) / (name + str(sysconfig.get_config_var("EXT_SUFFIX")))
    if not path.exists():
        _make(module, _compiler(), path)
    return _import(f"rdmatensor.{name}", path)


def _compiler() -> Compiler:
    missing, compiler = what_is_missing(), find_compiler()
    if missing is not None or compiler is None:
        other = ", or install one of those torch versions" if build_stamp.BACKENDS else ""
        raise ImportError(
            f"{_no_module(str(missing))}. To have it, {what_to_install()}{other}; what needs no "
            "torch.distributed backend works without"
        )
    return compiler


def _no_module(why: str) -> str:
    found = sorted({told.split()[0] for told in build_stamp.BACKENDS.values()})
    here = f"Python {sys.version_info[0]}.{sys.version_info[1]} and torch {torch.__version__}"
    has = f"those of torch {', '.join(found)}" if found else "none"
    return f"this copy of rdmatensor has no backend for {here} ({has}), and {why}"


def _module(name: str) -> Module:
    from torch.utils import cpp_extension

    sources = _PACKAGE / "_csrc"
    return Module(
        name=name,
        sources=sources,
        includes=(sources, _PACKAGE / "include"),
        foreign_includes=tuple(
            Path(one) for one in (*cpp_extension.include_paths(), sysconfig.get_path("include"))
        ),
        defines=(
            f"TORCH_EXTENSION_NAME={name}",
            "TORCH_API_INCLUDE_EXTENSION_H",
            f"_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        ),
        # Both are loaded before the module, always: it needs no path to them.
        library_folders=(_PACKAGE, *(Path(one) for one in cpp_extension.library_paths())),
        libraries=("rdmatensor", "torch", "torch_cpu", "c10", "torch_python"),
    )


def _key(module: Module) -> str:
    """Return the name of a folder for all that the module depends on."""
    digest = hashlib.sha256()
    # A folder may be shared by hosts whose C libraries differ.
    said = (build_stamp.VERSION, torch.__version__, identity_of(torch), *platform.libc_ver())
    for text in (*said, *module.defines, str(sysconfig.get_config_var("EXT_SUFFIX"))):
        digest.update(f"{text}\0".encode())
    headers = sorted((_PACKAGE / "include").glob("*.h"))
    for path in (*module.all_files(), *headers):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:20]


def cache_folder() -> Path:
    """Return the folder of the modules that were compiled; it is the user's own.

    Raises:
        ImportError: Others may write into it, so what lies there cannot be trusted.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(named or Path(os.environ.get("HOME", "/")) / ".cache") / "rdmatensor"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK)
    except OSError:
        usable = False
    if not usable:
        folder = Path(tempfile.gettempdir()) / f"rdmatensor-{os.geteuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        raise ImportError(
            f"{folder} is not a folder that only this user can write: rdmatensor keeps the backend "
            "that it compiles there; remove it, or set XDG_CACHE_HOME"
        )
    return folder


def _make(module: Module, compiler: Compiler, path: Path) -> None:
    """Compile the module to `path`, or wait for the process that does."""
    failed = path.parent.with_suffix(".failed.log")
    failed_before = _state_of(failed)
    with _locked(path.parent.with_suffix(".lock")) as is_alone:
        if path.exists():
            return
        # The same failure again, for each rank of a host, would take minutes each time.
        if _state_of(failed) not in (None, failed_before):
            raise ImportError(_failed(failed))
        if is_alone:
            _remove_leftovers(path.parent.parent, path.parent.name)
        try:
            _compile(module, compiler, path)
        except CompileError as error:
            failed.unlink(missing_ok=True)
            failed.write_text(str(error), encoding="utf-8")
            raise ImportError(_failed(failed)) from None
        except OSError as error:
            raise ImportError(
                f"rdmatensor's backend for torch {torch.__version__} cannot be compiled with "
                f"{compiler.words} into {path.parent}: {error}"
            ) from error


def _compile(module: Module, compiler: Compiler, path: Path) -> None:
    began_s = time.monotonic()
    folder = path.parent
    work = Path(tempfile.mkdtemp(prefix=f"{_MAKING}{folder.name}-", dir=folder.parent))
    try:
        _say(
            f"this package lacks a backend for torch {torch.__version__}: compiling it "
            f"with {compiler.words} into {folder}, once, which takes minutes"
        )
        made = compiler.make(module, work, _say)
        done = work / "done"
        done.mkdir()
        made.rename(done / path.name)
        try:
            done.rename(folder)
        except OSError:
            if not path.exists():  # made meanwhile, where no lock held this process back
                raise
        _say(f"compiled in {time.monotonic() - began_s:.0f} s")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _remove_leftovers(cache: Path, key: str) -> None:
    """Remove what processes that were killed left of this module; the lock is held."""
    for old in cache.glob(f"{_MAKING}{key}-*"):
        shutil.rmtree(old, ignore_errors=True)


def _state_of(file: Path) -> tuple[int, int] | None:
    """Return what changes whenever the file is written; None if it is absent."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _failed(log: Path) -> str:
    first = next(
        (line for line in log.read_text(encoding="utf-8").splitlines() if "error" in line.lower()),
        "it said nothing of an error",
    )
    return (
        f"rdmatensor's backend does not compile for torch {torch.__version__}: {first.strip()} "
        f"(all of it: {log}). That torch may be newer than this rdmatensor: upgrade rdmatensor, or "
        "install an older torch; what needs no torch.distributed backend works without"
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold the lock, which the kernel takes from a process that ends; False: there are no locks.

    ImportError if another process holds it for too long.
    """
    began_s = time.monotonic()
    with path.open("w") as file:
        said_s = began_s - _SAY_EVERY_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_alone = True
                break
            except BlockingIOError:
                now_s = time.monotonic()
                if now_s - began_s >= _WAIT_S:
                    raise ImportError(
                        f"another process has held {path} for {_WAIT_S:.0f} s, to compile "
                        "rdmatensor's backend: end it, and start again"
                    ) from None
                if now_s - said_s >= _SAY_EVERY_S:
                    said_s = now_s
                    _say("another process compiles the backend: waiting for it")
                time.sleep(_POLL_S)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                is_alone = False  # each process compiles, and one's module stays
                break
        yield is_alone


def _import(full_name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(full_name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported as a module")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise ImportError(
            f"the backend that was compiled does not load: {error}; remove {path.parent}, and "
            "the next use compiles it again"
        ) from error
    sys.modules[full_name] = module
    return module


def _say(text: str) -> None:
    print(f"rdmatensor: {text}", file=sys.stderr, flush=True)
