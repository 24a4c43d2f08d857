"""What a value of a setting must be. Each check raises ValueError with the reason."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import TypeGuard

from rdmatensor._native.arguments import SECONDS_MAX, seconds
from rdmatensor.errors import InvalidArgumentError

SECRET_BYTES_MAX = 4096
_STREAMS_MAX = 16  # the wire format's bound, see wire.md
_MIB_MAX = 1 << 34  # 16 PiB: more than any machine has, far from overflow in bytes


def one_of(*allowed: str) -> Callable[[object], None]:
    """Return the check of a choice."""

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
    if not isinstance(value, bytes) or not 1 <= len(value) <= SECRET_BYTES_MAX:
        raise ValueError(f"a secret is bytes, 1 to {SECRET_BYTES_MAX} of them")


# By field of Settings.
CHECKS: dict[str, Callable[[object], None]] = {
    "transport": one_of("auto", "shm", "tcp", "verbs"),
    "require": one_of("auto", "tcp", "verbs"),
    "ifname": _check_text,
    "addr": _check_address,
    "ports": _check_ports,
    "loopback": _check_flag,
    "secret": _check_secret,
    "secret_source": one_of("environment", "file", "argument"),
    "timeout_s": _check_seconds,
    "peer_timeout_s": _check_seconds,
    "arena_mib": _count_to(_MIB_MAX),
    "arena_max_mib": _count_to(_MIB_MAX),
    "tcp_streams": _count_to(_STREAMS_MAX),
    "hooks": _check_flag,
    "adopt": _check_flag,
    "plan": one_of("auto", "off"),
    "verify": one_of("off", "crc32c"),
    "metrics_ports": _check_ports,
    "trace_dir": _check_text,
    "log_level": one_of("error", "warn", "info", "debug"),
}
