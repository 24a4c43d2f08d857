"""The package: its versions, the torch that its backend was built for, and the settings."""

from __future__ import annotations

import importlib.util
import platform
import re
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from rdmatensor import config
from rdmatensor._backend.compiler import what_is_missing, what_to_install
from rdmatensor._backend.prebuilt import module_name, release_of
from rdmatensor.doctor.finding import Finding, broken, ok
from rdmatensor.errors import RdmaTensorError

_REBUILD = (
    "pip install --no-build-isolation --no-deps --force-reinstall --no-cache-dir rdmatensor, or "
    "`.` for it in its source folder"
)


def check_build() -> Iterator[Finding]:
    """Whether package and library are from one build."""
    # Imported here: a build that is missing is a finding, not the end of the doctor.
    from rdmatensor._build_stamp import BUILD_TYPE, COMPILER, VERSION

    yield ok(
        "version",
        f"{VERSION} ({BUILD_TYPE}, {COMPILER}), "
        f"Python {platform.python_version()}, Linux {platform.release()} {platform.machine()}",
    )
    from rdmatensor._native.ffi import ffi, lib

    version, abi = ffi.string(lib.rdt_version()).decode(), lib.rdt_abi_version()
    text = f"{version}, ABI {abi >> 16}.{abi & 0xFFFF}"
    if version == VERSION:
        yield ok("library", text)
    else:
        yield broken("library", f"{text}: the package is {VERSION}", _REBUILD)


def check_torch() -> Iterator[Finding]:
    """Compare versions that pip and the build left on the disk, without importing torch."""
    from rdmatensor._build_stamp import BACKENDS

    try:
        installed = metadata.version("torch")
    except metadata.PackageNotFoundError:
        yield ok("torch", "not installed: no backend, everything else works")
        return
    name = module_name(installed)
    built_for = BACKENDS.get(name + str(sysconfig.get_config_var("EXT_SUFFIX")), "")
    # The backend is loaded into a torch of the same commit only. Its ABI is known by importing it.
    if not built_for.startswith(f"{release_of(installed)} commit {_commit()} "):
        yield _without_module(installed, BACKENDS)
    elif importlib.util.find_spec(f"rdmatensor.{name}") is None:
        yield broken("torch", f"{installed}, but the file of its backend is missing", _REBUILD)
    else:
        yield ok("torch", f"{installed}, as the backend was built for")


def _commit() -> str:
    """Return the commit of the torch that is installed, from its file; "" if it does not say."""
    file = Path(str(metadata.distribution("torch").locate_file("torch/version.py")))
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    told = re.search(r"^git_version = '(\w+)'$", text, re.MULTILINE)
    return told[1] if told is not None else ""


def _without_module(installed: str, backends: dict[str, str]) -> Finding:
    found = sorted({told.split()[0] for told in backends.values()})
    built = f"the backend was built for {', '.join(found)}" if found else "built without torch"
    missing = what_is_missing()
    if missing is None:
        return ok("torch", f"{installed}; {built}: it is compiled for this one at its first use")
    return broken("torch", f"{installed}, but {built}, and {missing}", what_to_install())


def check_settings() -> Iterator[Finding]:
    """The settings, or what is wrong with them."""
    try:
        settings = config.from_environment()
    except RdmaTensorError as error:
        yield broken("settings", str(error), "rdmatensor settings lists all, with their forms")
        return
    default = config.Settings()
    changed = [
        f"{name}={getattr(settings, name)!r}"
        for name in config.Settings.__dataclass_fields__
        if name != "secret" and getattr(settings, name) != getattr(default, name)
    ]
    changed += [f"{name}={value!r}" for name, value in sorted(config.native_values().items())]
    yield ok("settings", ", ".join(changed) or "all defaults")
