"""Settings, and the only place that reads the environment.

VARIABLES is the whole list of RDMATENSOR_* variables; docs/settings.md has its table. An
unknown name is refused, because a misspelt setting without effect is worse than an error.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeGuard

from rdmatensor._native.arguments import SECONDS_MAX, invalid, seconds
from rdmatensor.errors import InvalidArgumentError
from rdmatensor.types import TransportName

PREFIX = "RDMATENSOR_"
# Names that belong to the project's own programs and tests; never read here.
FOREIGN_NAMES = frozenset(
    PREFIX + name for name in ("DEMO_RUN", "TEST_MEETINGS", "BENCH_PROGRAMS", "BENCH_NIXL_PYTHON")
)
# Variables that the C library reads and checks itself: of devices, as the right values depend on
# them, of collectives, and stand-ins for the host in tests. Listed here so that misspelt names are
# refused.
NATIVE_NAMES = (
    *(
        f"{PREFIX}VERBS_{name}"
        for name in (
            *("DEVICES", "GID_INDEX", "QPS", "LINKS", "MTU", "PKEY", "PKEY_INDEX"),
            *("TIMEOUT", "RETRY", "SL", "TC", "NOTIFY", "FLAG_UNSAFE"),
        )
    ),
    f"{PREFIX}ALGO",
    f"{PREFIX}COST_TABLE",
    f"{PREFIX}DETERMINISTIC",
    f"{PREFIX}TEST_HOST",
)

LogLevel = Literal["error", "warn", "info", "debug"]

_SECRET_BYTES_MAX = 4096
_STREAMS_MAX = 16  # the wire format's bound, see docs/wire.md


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. Fields have the defaults of an empty environment."""

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
    arena_mb: int = 64
    arena_max_mb: int | None = None
    tcp_streams: int | None = None
    hooks: bool = True
    adopt: bool = True
    plan: Literal["auto", "off"] = "auto"
    verify: Literal["off", "crc32c"] = "off"
    metrics_port: tuple[int, int] | None = None
    trace: str | None = None
    log: LogLevel = "warn"

    def __post_init__(self) -> None:
        """Check each field as its variable's value is checked; None means "not set"."""
        for name, field in self.__dataclass_fields__.items():
            value = getattr(self, name)
            if value is None and field.default is None:
                continue
            try:
                _CHECKS[name](value)
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


# ---- what a value must be; each raises ValueError with the reason --------------------------------


def _one_of(*allowed: str) -> Callable[[object], None]:
    def check(value: object) -> None:
        if value not in allowed:
            raise ValueError(f"it must be one of {', '.join(allowed)}")

    return check


def _check_seconds(value: object) -> None:
    try:
        is_above = seconds(value, "Settings") > 0
    except InvalidArgumentError:
        is_above = False
    if not is_above:
        raise ValueError(f"it must be a number above 0 and at most {SECONDS_MAX:.0f} seconds")


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _count_to(most: int) -> Callable[[object], None]:
    def check(value: object) -> None:
        if not (_is_whole(value) and 1 <= value <= most):
            raise ValueError(f"it must be a whole number from 1 to {most}")

    return check


def _check_flag(value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError("it must be True or False")


def _check_ports(value: object) -> None:
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(map(_is_whole, value))
    if not (is_pair and 1 <= value[0] <= value[1] <= 65535):  # type: ignore[index]  # a pair
        raise ValueError("it must be two numbers FROM and TO with 1 <= FROM <= TO <= 65535")


def _check_address(value: object) -> None:
    if not isinstance(value, str):
        raise ValueError("it must be text")
    ipaddress.ip_address(value)


def _check_text(value: object) -> None:
    if not isinstance(value, str) or value.strip() != value or not value.isprintable():
        raise ValueError("it must be text without spaces around it, in characters that print")
    if not value:
        raise ValueError("it is empty")


def _check_secret(value: object) -> None:
    if not isinstance(value, bytes) or not 1 <= len(value) <= _SECRET_BYTES_MAX:
        raise ValueError(f"a secret is bytes, 1 to {_SECRET_BYTES_MAX} of them")


_MB_MAX = 1 << 34  # 16 PiB in MiB: more than any machine has, far from overflow in bytes

_CHECKS: dict[str, Callable[[object], None]] = {
    "transport": _one_of("auto", "shm", "tcp", "verbs"),
    "require": _one_of("auto", "tcp", "verbs"),
    "ifname": _check_text,
    "addr": _check_address,
    "ports": _check_ports,
    "loopback": _check_flag,
    "secret": _check_secret,
    "secret_source": _one_of("environment", "file", "argument"),
    "timeout_s": _check_seconds,
    "peer_timeout_s": _check_seconds,
    "arena_mb": _count_to(_MB_MAX),
    "arena_max_mb": _count_to(_MB_MAX),
    "tcp_streams": _count_to(_STREAMS_MAX),
    "hooks": _check_flag,
    "adopt": _check_flag,
    "plan": _one_of("auto", "off"),
    "verify": _one_of("off", "crc32c"),
    "metrics_port": _check_ports,
    "trace": _check_text,
    "log": _one_of("error", "warn", "info", "debug"),
}


# ---- texts of variables --------------------------------------------------------------------------


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("it must be 0 or 1")
    return text == "1"


def _ports(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    return (int(first), int(last if dash else first))


def _address(text: str) -> str:
    return str(ipaddress.ip_address(text))


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: RDMATENSOR_<name> sets the field of that name in Settings."""

    name: str
    form: str
    meaning: str
    parse: Callable[[str], object]

    @property
    def full_name(self) -> str:
        """The name in the environment."""
        return PREFIX + self.name

    @property
    def field(self) -> str:
        """The field of Settings; SECRET_FILE has none of its own."""
        return {"TIMEOUT": "timeout_s"}.get(self.name, self.name.lower())


VARIABLES = (
    Variable(
        "TRANSPORT",
        "auto, shm, tcp or verbs",
        "the path of every pair of processes; `auto` takes the best that a probe proved",
        str.lower,
    ),
    Variable(
        "REQUIRE",
        "auto, tcp or verbs",
        "a floor for pairs on different hosts: fail instead of falling back below it",
        str.lower,
    ),
    Variable("IFNAME", "eth0", "listen on the addresses of this interface only", str),
    Variable("ADDR", "10.0.0.1", "listen on and advertise this numeric address", _address),
    Variable(
        "PORTS",
        "20000-20100",
        "listening ports, both ends included: each process takes one that is free, so the range "
        "needs one for every process on a host",
        _ports,
    ),
    Variable("LOOPBACK", "0 or 1", "1: listen on 127.0.0.1 and ::1 only", _flag),
    Variable("SECRET", "text", "what the members of a job must know to be let in", str.encode),
    Variable("SECRET_FILE", "path", "a file with the secret; its last line break is dropped", str),
    Variable("TIMEOUT", "seconds", "the deadline of every wait that is not given one", float),
    Variable(
        "PEER_TIMEOUT_S",
        "seconds",
        "silence of a peer's progress thread after which it counts as dead",
        float,
    ),
    Variable("ARENA_MB", "MiB", "the arena grows in pieces of at least this", int),
    Variable(
        "ARENA_MAX_MB",
        "MiB",
        "the arena never exceeds this; unset: bound by RAM and the memory cgroup",
        int,
    ),
    Variable("TCP_STREAMS", "count", "sockets per peer for large payloads", int),
    Variable(
        "HOOKS",
        "0 or 1",
        "0: making a group changes nothing else in the process: as `RDMATENSOR_ADOPT=0` and "
        "`RDMATENSOR_PLAN=off`, and no function of torch is wrapped "
        "(docs/torch.md)",
        _flag,
    ),
    Variable(
        "ADOPT",
        "0 or 1",
        "0: DistributedDataParallel's buckets stay in torch's own memory, and are copied; "
        "malloc keeps its limits",
        _flag,
    ),
    Variable(
        "PLAN",
        "auto or off",
        "`auto`: each rank records its operations and finds the step that repeats, for "
        "`describe()` and `rdmatensor.plan.recorded()`; `off`: nothing is recorded",
        str.lower,
    ),
    Variable(
        "VERIFY",
        "off or crc32c",
        "`crc32c`: payload is summed where it leaves and compared where it arrives, on every path, "
        "the same on all ranks (docs/verify.md)",
        str.lower,
    ),
    Variable(
        "METRICS_PORT",
        "9400-9407",
        "counters for Prometheus on 127.0.0.1, at the first of these ports that is free: one for "
        "every process on a host; unset: none",
        _ports,
    ),
    Variable(
        "TRACE",
        "path",
        "a folder into which each process writes its last transfers, for a trace viewer, when its "
        "context is closed",
        str,
    ),
    Variable(
        "LOG",
        "error, warn, info or debug",
        "lines up to this level go to standard error",
        str.lower,
    ),
)


def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings; environment defaults to the process's.

    Raises InvalidArgumentError for an unknown RDMATENSOR_* name, with the nearest one that exists,
    and for a value that does not parse, with its expected form.
    """
    source = os.environ if environment is None else environment
    known = {variable.full_name: variable for variable in VARIABLES}
    fields: dict[str, object] = {}
    for name in sorted(source):
        if not name.startswith(PREFIX) or name in FOREIGN_NAMES or name in NATIVE_NAMES:
            continue
        if name not in known:
            raise _unknown(name, [*known, *NATIVE_NAMES])
        if source[name] != "":  # an empty variable counts as unset
            fields[known[name].field] = _parse(known[name], source[name])
    _take_secret(fields)
    settings = Settings()
    values = {name: getattr(settings, name) for name in Settings.__dataclass_fields__}
    return Settings(**{**values, **fields})


def native_values(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return those variables that are set and that the C library reads and checks itself."""
    source = os.environ if environment is None else environment
    return {name: source[name] for name in NATIVE_NAMES if source.get(name)}


def _parse(variable: Variable, text: str) -> object:
    try:
        value = variable.parse(text)
        if variable.field in _CHECKS:
            _CHECKS[variable.field](value)
        return value
    except ValueError as error:
        shown = "(not shown)" if variable.name == "SECRET" else repr(text)
        raise InvalidArgumentError(
            "RDT_EINVAL",
            "settings",
            f"{variable.full_name}={shown}: {error}; it is written as: {variable.form}",
        ) from None


def _unknown(name: str, known: list[str]) -> InvalidArgumentError:
    # Without the prefix, which would make all names look alike.
    words = [full_name.removeprefix(PREFIX) for full_name in known]
    near = difflib.get_close_matches(name.removeprefix(PREFIX), words, n=1, cutoff=0.6)
    hint = f"did you mean {PREFIX}{near[0]}?" if near else f"known are {', '.join(known)}"
    return InvalidArgumentError(
        "RDT_EINVAL", "settings", f"{name} is not a setting of rdmatensor; {hint}"
    )


def _take_secret(fields: dict[str, object]) -> None:
    """Turn SECRET and SECRET_FILE into the secret and where it came from."""
    path = fields.pop("secret_file", None)
    if path is not None and "secret" in fields:
        raise InvalidArgumentError(
            "RDT_EINVAL",
            "settings",
            "RDMATENSOR_SECRET and RDMATENSOR_SECRET_FILE are both set; unset one",
        )
    if "secret" in fields:
        fields["secret_source"] = "environment"
    if path is not None:
        fields["secret"] = read_secret(Path(str(path)))
        fields["secret_source"] = "file"


def read_secret(path: Path) -> bytes:
    """Return the content of a secret file without its last line break."""
    try:
        with path.open("rb") as file:
            secret = file.read(_SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidArgumentError(
            "RDT_EINVAL", "settings", f"RDMATENSOR_SECRET_FILE={path}: {error.strerror}"
        ) from error
    secret = secret.removesuffix(b"\n").removesuffix(b"\r")
    if not 1 <= len(secret) <= _SECRET_BYTES_MAX:
        raise InvalidArgumentError(
            "RDT_EINVAL",
            "settings",
            f"RDMATENSOR_SECRET_FILE={path}: a secret has 1 to {_SECRET_BYTES_MAX} bytes",
        )
    return secret
