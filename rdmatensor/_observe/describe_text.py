"""The result of describe(), as lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard, cast

_INDENT = "  "
_UNITS = ("KiB", "MiB", "GiB", "TiB")
_STEP = 1024
# A list of plain values, or a mapping of them, is one line up to this length.
_LINE_CHARS = 110


def text_of(state: Mapping[str, object]) -> str:
    """Return the state as indented lines: sizes with units, an empty value as "none".

    Accepts any mapping of texts to numbers, texts, booleans, None, and lists and mappings of these.
    The arena's placement is one line.
    """
    arena = state.get("arena")
    if isinstance(arena, Mapping) and "placement" in arena:
        state = {**state, "arena": {**arena, "placement": _placement(arena["placement"])}}
    return "\n".join(_lines(state, 0))


def _placement(told: Mapping[str, object]) -> str:
    """Return the nodes of the arena's pages, and those of the usable CPUs."""
    if told["reason"]:
        return str(told["reason"])
    node_bytes = cast("Mapping[str, int]", told["node_bytes"])
    cpu_nodes = cast("Sequence[int]", told["cpu_nodes"])
    parts = ", ".join(f"{size_text(count)} on node {node}" for node, count in node_bytes.items())
    nodes = ", ".join(str(node) for node in cpu_nodes) or "none"
    line = f"{parts or 'no page yet'} (usable CPUs: node{'s' * (len(cpu_nodes) > 1)} {nodes})"
    far_bytes = cast("int", told["far_bytes"])
    return f"{line}; {size_text(far_bytes)} on a node without any of these" if far_bytes else line


def _lines(state: Mapping[str, object], depth: int) -> list[str]:
    lines: list[str] = []
    for key, value in state.items():
        name = _INDENT * depth + _name(key)
        line = _one_line(key, value)
        if line is not None and len(name) + len(line) + 2 <= _LINE_CHARS:
            lines.append(f"{name}: {line}")
        elif isinstance(value, Mapping):
            lines += [f"{name}:", *_lines(value, depth + 1)]
        elif _is_list(value):
            lines += [f"{name}:", *_items(key, value, depth + 1)]
        else:  # too long, but nothing to break
            lines.append(f"{name}: {line}")
    return lines


def _items(key: str, values: Sequence[object], depth: int) -> list[str]:
    """Return each value on its own line, or, if it is a mapping, as a block after a dash."""
    lines: list[str] = []
    for value in values:
        line = _one_line(key, value)
        if isinstance(value, Mapping) and (line is None or len(line) > _LINE_CHARS):
            block = _lines(value, depth + 1)
            lines += [_INDENT * depth + "- " + block[0].strip(), *block[1:]] if block else []
        elif line is None and _is_list(value):
            lines += [_INDENT * depth + "-", *_items(key, value, depth + 1)]
        else:
            lines.append(_INDENT * depth + f"- {line}")
    return lines


def _one_line(key: str, value: object) -> str | None:
    """Return it as one line, or None if it is nested too deeply for that."""
    if isinstance(value, Mapping):
        parts = [(name, _scalar(name, part)) for name, part in value.items()]
        if any(part is None for _, part in parts):
            return None
        return ", ".join(f"{_name(name)} {part}" for name, part in parts) or "none"
    if _is_list(value):
        items = [_scalar(key, part) for part in value]
        return None if None in items else ", ".join(str(item) for item in items) or "none"
    return _scalar(key, value)


def _scalar(key: str, value: object) -> str | None:
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(key, value)
    if isinstance(value, Mapping) or _is_list(value):
        return "none" if not value else None
    return str(value)


def _number(key: str, value: float) -> str:
    if key.endswith("_bytes"):
        return size_text(value)
    text = f"{value:g}" if isinstance(value, float) else str(value)
    for unit in ("ms", "us", "ns", "s"):
        if key.endswith(f"_{unit}"):
            return f"{text} {unit}"
    return text


def size_text(count: float) -> str:
    """Return bytes with a unit, of which 1024 are the next."""
    if count < _STEP:
        return f"{count:g} B"
    for unit in _UNITS:
        count /= _STEP
        if count < _STEP or unit == _UNITS[-1]:
            break
    return f"{count:.4g} {unit}"


def _name(key: str) -> str:
    for suffix in ("_bytes", "_ms", "_us", "_ns", "_s"):
        key = key.removesuffix(suffix)
    return key.removeprefix("is_").replace("_", " ")


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
