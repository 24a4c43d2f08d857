"""Settings, and the only place that reads the environment.

The variables are listed in rdmatensor/_config/variables.py. An unknown name is refused, because a
misspelt setting without effect is worse than an error.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from rdmatensor._config.checks import CHECKS, SECRET_BYTES_MAX
from rdmatensor._config.variables import (
    NATIVE_NAMES,
    NATIVE_VARIABLES,
    PREFIX,
    VARIABLES,
    Variable,
)
from rdmatensor._native.arguments import invalid
from rdmatensor.errors import InvalidArgumentError
from rdmatensor.types import TransportName

# Names that belong to the project's own programs and tests; never read here.
FOREIGN_NAMES = frozenset(
    PREFIX + name for name in ("DEMO_RUN", "TEST_MEETINGS", "BENCH_PROGRAMS", "BENCH_NIXL_PYTHON")
)

LogLevel = Literal["error", "warn", "info", "debug"]


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a context. Each field has the default of an empty environment.

    `rdmatensor settings` and settings.md say what each means: a field has the name of its
    variable in lower case, without the prefix ``RDMATENSOR_``.

    Raises:
        InvalidArgumentError: A field has a wrong value; the message names it.

    Example:
        >>> Settings(transport="tcp", arena_mib=256).timeout_s
        300.0
    """

    transport: TransportName = "auto"
    require: TransportName = "auto"
    ifname: str | None = None
    addr: str | None = None
    ports: tuple[int, int] | None = None
    loopback: bool = False
    secret: bytes | None = None
    secret_source: Literal["environment", "file", "argument"] | None = None
    timeout_s: float = 300.0
    peer_timeout_s: float = 10.0
    arena_mib: int = 64
    arena_max_mib: int | None = None
    tcp_streams: int | None = None
    hooks: bool = True
    adopt: bool = True
    plan: Literal["auto", "off"] = "auto"
    verify: Literal["off", "crc32c"] = "off"
    metrics_ports: tuple[int, int] | None = None
    trace_dir: str | None = None
    log_level: LogLevel = "warn"

    def __post_init__(self) -> None:
        """Check each field as its variable's value is checked; None means "not set"."""
        for name, field in self.__dataclass_fields__.items():
            value = getattr(self, name)
            if value is None and field.default is None:
                continue
            try:
                CHECKS[name](value)
            except ValueError as error:
                shown = "(not shown)" if name == "secret" else repr(value)
                raise invalid("Settings", f"{name}={shown}: {error}") from None

    def __repr__(self) -> str:
        """Without the secret, which would end up in logs."""
        shown = (
            f"{name}={getattr(self, name)!r}"
            for name in self.__dataclass_fields__
            if name != "secret"
        )
        return f"Settings({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class Options:
    """Settings in code for `init_process_group("rdmatensor", pg_options=Options(...))`.

    A field that is given replaces its environment variable; None leaves it. The fields are those of
    Settings. They apply to the process: its first group opens the context, and a later group must
    have the same values.

    Example:
        >>> options = Options(timeout_s=60, arena_mib=256)
        >>> import torch.distributed as dist  # doctest: +SKIP
        >>> dist.init_process_group("rdmatensor", pg_options=options)  # doctest: +SKIP
    """

    transport: TransportName | None = None
    require: TransportName | None = None
    ifname: str | None = None
    addr: str | None = None
    ports: tuple[int, int] | None = None
    loopback: bool | None = None
    secret: bytes | None = None
    timeout_s: float | None = None
    peer_timeout_s: float | None = None
    arena_mib: int | None = None
    arena_max_mib: int | None = None
    tcp_streams: int | None = None
    hooks: bool | None = None
    adopt: bool | None = None
    plan: Literal["auto", "off"] | None = None
    verify: Literal["off", "crc32c"] | None = None
    metrics_ports: tuple[int, int] | None = None
    trace_dir: str | None = None
    log_level: LogLevel | None = None

    def __post_init__(self) -> None:
        """Check what is given."""
        Settings(**self._given())  # type: ignore[arg-type]  # it checks the types itself

    def __repr__(self) -> str:
        """Without the secret, and what is given only."""
        given = self._given()
        shown = (f"{name}={value!r}" for name, value in given.items() if name != "secret")
        return f"Options({', '.join(shown)})"

    def _check_match(self, settings: Settings) -> None:
        """Raise InvalidArgumentError if a field that is given has another value in settings."""
        for name, value in self._given().items():
            found = getattr(settings, name)
            is_narrower = name == "loopback" and found is True  # all ranks share the host
            if found != value and not is_narrower:
                shown = "" if name == "secret" else f": {found!r}, not {value!r}"
                raise invalid(
                    "Options",
                    f"the process's context is open with another {name}{shown}; give the options "
                    f"to the first group of the process, or set {PREFIX}{name.upper()} before "
                    "anything opens the context",
                )

    def _given(self) -> dict[str, object]:
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None}


def from_environment(
    environment: Mapping[str, str] | None = None, options: Options | None = None
) -> Settings:
    """Read the settings.

    Args:
        environment: None reads the process's.
        options: What it has replaces the variables of the same names.

    Returns:
        The settings.

    Raises:
        InvalidArgumentError: A RDMATENSOR_* name is unknown; the message has the nearest one that
            exists. Or a value does not parse; the message has its form.

    Example:
        >>> from_environment({"RDMATENSOR_TIMEOUT_S": "7.5"}).timeout_s
        7.5
    """
    source = os.environ if environment is None else environment
    known = {variable.full_name: variable for variable in VARIABLES}
    found: dict[str, object] = {}
    for name in sorted(source):
        if not name.startswith(PREFIX) or name in FOREIGN_NAMES or name in NATIVE_NAMES:
            continue
        if name not in known:
            raise _unknown(name, [*known, *NATIVE_NAMES])
        if source[name] != "":  # an empty variable counts as unset
            found[str(known[name].field)] = _parse(known[name], source[name])
    _take_secret(found)
    given = {} if options is None else options._given()
    if "secret" in given:
        given["secret_source"] = "argument"
    return Settings(**{**found, **given})  # type: ignore[arg-type]  # it checks the types itself


def native_values(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return those variables that are set and that the C library reads and checks itself."""
    source = os.environ if environment is None else environment
    return {name: source[name] for name in NATIVE_NAMES if source.get(name)}


def check_native(environment: Mapping[str, str] | None = None) -> None:
    """Check the variables of the C library by their form, without a context.

    Raises InvalidArgumentError as from_environment() does. The devices have the last word: a value
    of the right form may name one that is not there.
    """
    values = native_values(environment)
    for variable in NATIVE_VARIABLES:
        if variable.full_name in values:
            _parse(variable, values[variable.full_name])


def _parse(variable: Variable, text: str) -> object:
    try:
        value = variable.parse(text)
        if variable.field in CHECKS:
            CHECKS[variable.field](value)
        return value
    except ValueError as error:
        shown = "(not shown)" if variable.name == "SECRET" else repr(text)
        raise invalid(
            "settings",
            f"{variable.full_name}={shown}: {error}; it is written as: {variable.form}",
        ) from None


def _unknown(name: str, known: list[str]) -> InvalidArgumentError:
    # Without the prefix, which would make all names look alike.
    words = [full_name.removeprefix(PREFIX) for full_name in known]
    near = difflib.get_close_matches(name.removeprefix(PREFIX), words, n=1, cutoff=0.6)
    hint = f"did you mean {PREFIX}{near[0]}?" if near else f"known are {', '.join(known)}"
    return invalid("settings", f"{name} is not a setting of rdmatensor; {hint}")


def _take_secret(found: dict[str, object]) -> None:
    """Turn SECRET and SECRET_FILE into the secret and where it came from."""
    path = found.pop("secret_file", None)
    if path is not None and "secret" in found:
        raise invalid(
            "settings", "RDMATENSOR_SECRET and RDMATENSOR_SECRET_FILE are both set; unset one"
        )
    if "secret" in found:
        found["secret_source"] = "environment"
    if path is not None:
        found["secret"] = read_secret(Path(str(path)))
        found["secret_source"] = "file"


def read_secret(path: Path) -> bytes:
    """Return the content of a secret file without its last line break."""
    try:
        with path.open("rb") as file:
            secret = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise invalid("settings", f"RDMATENSOR_SECRET_FILE={path}: {error.strerror}") from error
    secret = secret.removesuffix(b"\n").removesuffix(b"\r")
    if not 1 <= len(secret) <= SECRET_BYTES_MAX:
        raise invalid(
            "settings",
            f"RDMATENSOR_SECRET_FILE={path}: a secret has 1 to {SECRET_BYTES_MAX} bytes",
        )
    return secret
