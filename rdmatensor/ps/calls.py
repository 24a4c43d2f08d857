"""Calls between a worker and the program that runs a server: JSON, whose fields a peer chose."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rdmatensor._native.arguments import U32_MAX, U64_MAX
from rdmatensor.errors import ProtocolError, RdmaTensorError
from rdmatensor.memory import RemoteRegion

Kind = Callable[[object], Any]
"""Reads one field; raises ValueError or TypeError for a wrong one."""


def number(value: object) -> int:
    """Read a number of a table, queue or model."""
    if type(value) is not int or not 0 <= value <= U32_MAX:
        raise ValueError("no number of 32 bits")
    return value


def flag(value: object) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise TypeError("neither true nor false")
    return value


def text(value: object) -> str:
    """Read a text."""
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def clocks(value: object) -> list[int | None]:
    """Read the steps of each worker; None: it is gone."""
    if not isinstance(value, list) or any(
        one is not None and (type(one) is not int or not 0 <= one < U64_MAX) for one in value
    ):
        raise TypeError("no list of clocks")
    return value


def region(value: object) -> RemoteRegion:
    """Read the address of memory, in hexadecimal."""
    if not isinstance(value, str):
        raise TypeError("no text")
    return RemoteRegion.decode(bytes.fromhex(value))


def parse_call(message: bytes) -> dict[str, object]:
    """Read a call or an answer: an object, and "data" if bytes follow it.

    Raises:
        ValueError: It is something else.
        TypeError: The same.
    """
    head, _, tail = message.partition(b"\n")
    found = json.loads(head)
    if not isinstance(found, dict):
        raise TypeError(f"{str(found)[:100]!r} is not an object")
    return {**found, "data": tail} if tail else found


def parse_answer(
    data: bytes, call: str, server: int, rank: int, /, **kinds: Kind
) -> dict[str, Any]:
    """Read a server's answer; its fields named by kinds are there and of these kinds.

    Raises:
        ProtocolError: The server sent something else; the error names it.
    """
    key = "the whole"
    try:
        answer = parse_call(data)
        for key, kind in kinds.items():
            answer[key] = kind(answer[key])
    except (KeyError, TypeError, ValueError, RecursionError, RdmaTensorError) as error:
        wrong = ProtocolError(
            "RDT_EPROTO",
            call,
            f"server {server} answered {call!r} with {data[:100]!r}: {key}: {error}",
        )
        wrong.rank = rank
        raise wrong from error
    return answer
