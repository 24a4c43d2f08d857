"""The package: its versions, the torch that its backend was built for, and the settings."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Iterator
from importlib import metadata

from rdmatensor import config
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
    from rdmatensor._build_stamp import TORCH_VERSION as built_for  # noqa: N811 - a constant there

    try:
        installed = metadata.version("torch")
    except metadata.PackageNotFoundError:
        yield ok("torch", "not installed: no backend, everything else works")
        return
    if built_for is None:
        yield broken("torch", f"{installed}, but built without torch", _REBUILD)
    elif built_for.split("+")[0] != installed.split("+")[0]:
        yield broken("torch", f"{installed}, but built for {built_for}", _REBUILD)
    elif importlib.util.find_spec("rdmatensor._c10d") is None:
        yield broken("torch", f"{installed}, but the c10d module is missing", _REBUILD)
    else:
        yield ok("torch", f"{installed}, as the backend was built for")


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
