"""Checks of plain arguments, so that a wrong one is named and not met deep inside as another error.

bool is refused where a number belongs: it is one only by inheritance, and stands there by mistake.
"""

from __future__ import annotations

import math
import operator
from numbers import Real

from rdmatensor.errors import InvalidArgument

# A year: longer waits are a slip of the keyboard, and for ever is refused.
SECONDS_MAX = 365 * 86400.0


def invalid(call: str, detail: str) -> InvalidArgument:
    """Make the exception for an argument that is found wrong on the Python side."""
    return InvalidArgument("RDT_EINVAL", call, detail)


def seconds(value: object, call: str, name: str = "timeout_s") -> float:
    """Return a length of time in seconds, 0 to a year; numpy's numbers will do."""
    is_plain = type(value) is float or type(value) is int  # what an abstract class is slow to say
    if not is_plain and (isinstance(value, bool) or not isinstance(value, Real)):
        raise invalid(call, f"{name}={value!r} is a {type(value).__name__}, not a number")
    result = float(value)  # type: ignore[arg-type]  # which is what was found out above
    if not (math.isfinite(result) and 0 <= result <= SECONDS_MAX):
        raise invalid(call, f"{name}={value!r} is not from 0 to {SECONDS_MAX:.0f} seconds")
    return result


def timeout_s_of(timeout_s: float | None, default_s: float, call: str) -> float:
    """Return a wait's length in seconds, checked; None takes the default."""
    return default_s if timeout_s is None else seconds(timeout_s, call)


def whole(value: object, call: str, name: str) -> int:
    """Return a whole number, such as a rank; numpy's integers will do."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]  # which is what is found out here
    except TypeError:
        raise invalid(
            call, f"{name}={value!r} is a {type(value).__name__}, not a whole number"
        ) from None
