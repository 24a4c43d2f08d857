"""Checks of plain arguments, so that an error names the wrong one instead of failing deep inside.

bool is refused where a number is expected: it is one by inheritance only, and is passed by mistake.
"""

from __future__ import annotations

import math
import operator
from numbers import Real

from rdmatensor.errors import RANK_UNKNOWN, InvalidArgumentError

# A year: longer waits are typing errors, and waiting forever is refused.
SECONDS_MAX = 365 * 86400.0
RANK_MAX = (1 << 31) - 1
U32_MAX = (1 << 32) - 1
U64_MAX = (1 << 64) - 1


def invalid(call: str, detail: str) -> InvalidArgumentError:
    """Make the exception for an argument that the Python side refuses."""
    return InvalidArgumentError("RDT_EINVAL", call, detail)


def seconds(value: object, call: str, name: str = "timeout_s") -> float:
    """Return a length of time in seconds, 0 to a year; accepts numpy's numbers."""
    is_plain = type(value) is float or type(value) is int  # abstract classes are slow to check
    if not is_plain and (isinstance(value, bool) or not isinstance(value, Real)):
        raise invalid(call, f"{name}={value!r} is a {type(value).__name__}, not a number")
    result = float(value)  # type: ignore[arg-type]  # checked above
    if not (math.isfinite(result) and 0 <= result <= SECONDS_MAX):
        raise invalid(call, f"{name}={value!r} is not from 0 to {SECONDS_MAX:.0f} seconds")
    return result


def timeout_s_of(timeout_s: float | None, default_s: float, call: str) -> float:
    """Return the length of a wait in seconds, checked; None takes the default."""
    return default_s if timeout_s is None else seconds(timeout_s, call)


def whole(value: object, call: str, name: str) -> int:
    """Return a whole number, such as a rank; accepts numpy's integers."""
    if type(value) is int:
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]  # the call itself checks it
    except TypeError:
        raise invalid(
            call, f"{name}={value!r} is a {type(value).__name__}, not a whole number"
        ) from None


def whole_in(value: object, most: int, call: str, name: str) -> int:
    """Return a whole number from 0 to most."""
    result = whole(value, call, name)
    if not 0 <= result <= most:
        bits = f" ({most.bit_length()} bits)" if most > 255 and most & (most + 1) == 0 else ""
        raise invalid(call, f"{name}={result} is not from 0 to {most}{bits}")
    return result


def rank_of(value: object, call: str) -> int:
    """Return a rank of a peer, or RANK_UNKNOWN."""
    rank = whole(value, call, "rank")
    if not RANK_UNKNOWN <= rank <= RANK_MAX:
        raise invalid(call, f"rank={rank} is not from {RANK_UNKNOWN} (unknown) to {RANK_MAX}")
    return rank


def text_bytes(value: object, call: str, name: str) -> bytes:
    """Return a text as the C library takes it: UTF-8 without NUL."""
    if not isinstance(value, str):
        raise invalid(call, f"{name}={value!r} is a {type(value).__name__}, not text")
    data = value.encode("utf-8", "surrogateescape")
    if b"\0" in data:
        raise invalid(call, f"{name}={value!r} has a NUL in it")
    return data


def raw_bytes(value: object, call: str, name: str, source: str) -> bytes:
    """Return a copy of bytes-like data; source: where such data comes from."""
    try:
        return bytes(memoryview(value))  # type: ignore[arg-type]  # the call itself checks it
    except TypeError:
        raise invalid(
            call, f"{name} is a {type(value).__name__}, not the bytes that {source} gives"
        ) from None
