"""Bytes as people write them."""

from __future__ import annotations

import re

from rdmatensor._native.arguments import invalid, whole

_POWERS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def bytes_of(size: int | str, call: str, name: str) -> int:
    """Return a number of bytes, from 0: a whole number, or a text such as "2GiB" or "500 MB"."""
    if not isinstance(size, str):
        found = whole(size, call, name)
        if found < 0:
            raise invalid(call, f"{name}={size!r} is negative")
        return found
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B\s*", size)
    if match is None:
        raise invalid(call, f'{name}={size!r} is not a size: write "2GiB", "500MB" or a number')
    number, prefix, binary = match.groups()
    if binary and not prefix:
        raise invalid(call, f'{name}={size!r} is not a size: write "2GiB", "500MB" or a number')
    unit = 1 << _POWERS[prefix] if binary else _DECIMAL[prefix]
    return int(float(number) * unit)


def shown(size: int) -> str:
    """Return bytes as a text of at most four digits."""
    value, sign = float(abs(size)), "-" if size < 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return (
        f"{sign}{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{sign}{value:.1f} {unit}"
    )


def shown_ms(time_ns: int) -> str:
    """Return a time in milliseconds."""
    return f"{time_ns / 1e6:.1f} ms"
