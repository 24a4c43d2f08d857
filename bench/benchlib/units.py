"""Times and sizes for people."""

from __future__ import annotations


def time_text(ns: float) -> str:
    """Nanoseconds for people."""
    if ns < 1e3:
        return f"{ns:.0f} ns"
    if ns < 1e6:
        return f"{ns / 1e3:.2f} us"
    return f"{ns / 1e6:.2f} ms" if ns < 1e9 else f"{ns / 1e9:.2f} s"


def size_text(size_bytes: float) -> str:
    """Bytes for people, exact."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= scale and size_bytes % scale == 0:
            return f"{size_bytes / scale:g} {unit}"
    return f"{size_bytes:g} B"
