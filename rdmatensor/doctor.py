"""What this machine and this installation can do, and what is in the way: facts, not guesses.

Each line is a check that was really made now. The status of `rdmatensor doctor` is 1 if something
that every use needs does not work.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Literal, cast

from rdmatensor import config
from rdmatensor.errors import RdmaTensorError


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: "fail" stops everything, "warn" stops something, "ok" and "info" nothing."""

    level: Literal["ok", "info", "warn", "fail"]
    subject: str
    text: str


def examine() -> list[Finding]:
    """Make all checks; none of them raises."""
    found: list[Finding] = []
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _check_build,
        _check_torch,
        _check_settings,
        _check_transports,
        _check_limits,
    )
    for check in checks:
        try:
            found.extend(check())
        except Exception as error:  # noqa: BLE001 - a doctor that dies tells nothing
            subject = check.__name__.removeprefix("_check_")
            found.append(Finding("fail", subject, f"{type(error).__name__}: {error}"))
    return found


def _check_build() -> Iterator[Finding]:
    from rdmatensor._build_stamp import BUILD_TYPE, COMPILER, VERSION

    yield Finding(
        "ok",
        "version",
        f"{VERSION} ({BUILD_TYPE}, {COMPILER}), "
        f"Python {platform.python_version()}, Linux {platform.release()} {platform.machine()}",
    )
    from rdmatensor._ffi import ffi, lib

    version, abi = ffi.string(lib.rdt_version()).decode(), lib.rdt_abi_version()
    same = version == VERSION
    yield Finding(
        "ok" if same else "fail",
        "library",
        f"{version}, ABI {abi >> 16}.{abi & 0xFFFF}"
        + ("" if same else f": the package is {VERSION}; install it again"),
    )


def _check_torch() -> Iterator[Finding]:
    """Compare versions without importing torch."""
    from rdmatensor._build_stamp import TORCH_VERSION as built_for  # noqa: N811 - a constant there

    rebuild = "rebuild with `pip install --no-build-isolation --force-reinstall --no-deps .`"
    try:
        installed = metadata.version("torch")
    except metadata.PackageNotFoundError:
        yield Finding("info", "torch", "not installed: no backend, everything else works")
        return
    if built_for is None:
        yield Finding("warn", "torch", f"{installed}, but built without torch: {rebuild}")
    elif built_for.split("+")[0] != installed.split("+")[0]:
        yield Finding("warn", "torch", f"{installed}, but built for {built_for}: {rebuild}")
    elif importlib.util.find_spec("rdmatensor._c10d") is None:
        yield Finding("warn", "torch", f"{installed}, but the c10d module is missing: {rebuild}")
    else:
        yield Finding("ok", "torch", f"{installed}, as the backend was built for")


def _check_settings() -> Iterator[Finding]:
    try:
        settings = config.from_environment()
    except RdmaTensorError as error:
        yield Finding("fail", "settings", str(error))
        return
    default = config.Settings()
    changed = [
        f"{name}={getattr(settings, name)!r}"
        for name in config.Settings.__dataclass_fields__
        if name != "secret" and getattr(settings, name) != getattr(default, name)
    ]
    yield Finding("ok", "settings", ", ".join(changed) or "all defaults")


def _check_transports() -> Iterator[Finding]:
    from rdmatensor.context import Context

    try:
        settings = config.from_environment()
    except RdmaTensorError:
        yield Finding("info", "transports", "not tried: the settings come first")
        return
    # All of them are tried, also where one is forced.
    with Context(replace(settings, transport="auto")) as context:
        state = context.describe()
    transports = cast("dict[str, dict[str, object]]", state["transports"])
    for name, transport in transports.items():
        viable = bool(transport["is_viable"])
        if viable:
            yield Finding("ok", name, "can be used")
            continue
        text = f"cannot be used: {transport['reason']}"
        if name == settings.transport:
            yield Finding("fail", name, f"{text}; RDMATENSOR_TRANSPORT={name} forces it")
        elif name == settings.require:
            yield Finding(
                "warn", name, f"{text}; RDMATENSOR_REQUIRE={name} refuses peers on other hosts"
            )
        else:
            yield Finding("info", name, text)
    if not any(transport["is_viable"] for transport in transports.values()):
        yield Finding("fail", "transports", "none can be used")


def _check_limits() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    yield Finding("ok", "cores", f"{cores} of {os.cpu_count()} may be used")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A peer takes a side channel and some streams, see RDMATENSOR_TCP_STREAMS.
    yield Finding(
        "ok" if soft >= 1024 else "warn",
        "open files",
        f"limit {soft}" + ("" if soft >= 1024 else "; `ulimit -n 4096` gives room for peers"),
    )
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    shown = "unlimited" if locked == resource.RLIM_INFINITY else f"{locked >> 10} KiB"
    yield Finding("info", "locked memory", f"limit {shown}; only verbs would need it")


def report(findings: list[Finding]) -> str:
    """Return the findings as lines of text."""
    width = max(len(finding.subject) for finding in findings)
    return "\n".join(
        f"{finding.level:<5}{finding.subject:<{width + 2}}{finding.text}" for finding in findings
    )
