"""What another doctor sends: taken, or refused by the error that is documented, never another."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdmatensor import ProtocolError
from rdmatensor.doctor import Finding, pair_store, pairs

ROW = pairs.Row("a (1)", ("tcp",), (Finding("ok", "cpu", "fast"),), {1: pairs.Cell("tcp", 1.5)})
OTHER = pairs.Row("b (2)", ("tcp",), (), {0: pairs.Cell("tcp", 1.0, 1.0)})


def read_rows(first: bytes) -> list[pairs.Row] | None:
    """The rows of two ranks, the first of which told this; None: refused as documented."""
    try:
        return pairs.read_rows([first, OTHER.encode().encode()])
    except ProtocolError:
        return None


def check_use(rows: list[pairs.Row] | None) -> None:
    """What was taken can be judged and printed."""
    if rows is not None:
        said = [*map(str, pairs.judge(rows)), *pairs.matrix(rows)]
        assert all(line.encode() for line in said)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
words = scalars | st.sampled_from(["", "tcp", "ok", "broken", "1", "-1", "\ud800", "\x1b[2J"])
findings = st.lists(
    st.fixed_dictionaries({"level": words, "subject": words, "text": words}), max_size=2
)
cells = st.dictionaries(
    st.sampled_from(["0", "1", "1", "2", "-1", "x"]),
    st.dictionaries(
        st.sampled_from(["path", "small_us", "large_gb_s", "why", "error", "fix"]),
        words,
        max_size=6,
    ),
)
shaped = st.fixed_dictionaries(
    {
        "host": words,
        "viable": st.lists(words, max_size=3) | words,
        "findings": findings | words,
        "cells": cells | words,
    }
)


@settings(deadline=None)  # a loaded machine is no finding
@given(st.binary(max_size=300) | shaped.map(json.dumps).map(str.encode))
def test_a_row_from_the_network_is_refused_or_can_be_judged(text: bytes) -> None:
    check_use(read_rows(text))


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(0, 255))
def test_a_changed_byte_of_a_row_is_refused_or_can_be_judged(at: int, byte: int) -> None:
    text = bytearray(ROW.encode().encode())
    text[at % len(text)] = byte
    check_use(read_rows(bytes(text)))


def row_text(**changed: str) -> bytes:
    """JSON of a row, of which some parts are others; right where none is."""
    parts = {"host": '"a"', "viable": "[]", "findings": "[]", "cells": '{"1": {}}'}
    parts |= {"error": '""', "fix": '""'} | changed
    return ("{" + ", ".join(f'"{name}": {part}' for name, part in parts.items()) + "}").encode()


def test_the_least_row_is_taken() -> None:
    assert read_rows(row_text()) is not None
    assert read_rows(ROW.encode().encode()) == [ROW, OTHER]


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        row_text(host="1"),
        row_text(host='"\\ud800"'),
        row_text(viable='"tcp"'),
        row_text(viable="[1]"),
        row_text(cells='{"1": {"small_us": "fast"}}'),
        row_text(cells='{"1": {"small_us": 1%s}}' % ("0" * 400)),
        row_text(cells='{"1": {"small_us": "inf"}}'),
        row_text(cells='{"1": {"large_gb_s": NaN}}'),
        row_text(cells='{"1": {"error": 1}}'),
        row_text(error="1"),
        row_text(error='"down"'),
        row_text(fix="[]"),
        row_text(cells='{"7": {}}'),
        row_text(cells='{"1": {}, "0": {}}'),
        row_text(cells="{}"),
        row_text(findings='[{"level": "fine", "subject": "", "text": ""}]'),
        row_text(findings='[{"level": "ok", "subject": [], "text": ""}]'),
    ],
)
def test_a_row_that_cannot_be_used_is_refused(text: bytes) -> None:
    assert read_rows(text) is None


@settings(deadline=None)
@given(st.binary(max_size=200) | st.binary(max_size=70).map(bytes.hex).map(str.encode))
def test_an_address_from_the_network_is_a_region_or_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):  # random bytes have no region's check sum
        pairs.read_region(text)


# ---- The store of a pair ----


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.0005)


lines = st.binary(max_size=60) | st.builds(
    lambda key, value: f"{key.hex()}{value}\n".encode(),
    st.binary(max_size=8),
    st.just("") | st.binary(max_size=8).map(lambda value: f"={value.hex()}"),
)


@pytest.mark.filterwarnings("error")  # of a thread that dies, among them
@settings(deadline=None)
@given(st.lists(lines, max_size=6).map(b"".join))
def test_whatever_a_stranger_sends_the_store_ends_in_order(sent: bytes) -> None:
    ours, stranger = socket.socketpair()
    store = pair_store.PairStore(ours)
    with stranger:
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        wait_until(lambda: store._is_ended)
        for key in store._values:
            assert store.check([key])
            assert store.multi_get([key]) == [store.get(key)]
        with pytest.raises(RuntimeError, match="has ended, or is none"):
            store.check(["no line is so long" * 9])
        store.close()


def test_a_key_that_is_taken_back_after_the_look_is_an_error() -> None:
    here, there = map(pair_store.PairStore, socket.socketpair())
    there.set("key", "value")
    wait_until(lambda: here.check(["key"]))
    there.delete_key("key")
    wait_until(lambda: not here.check(["key"]))
    with pytest.raises(RuntimeError, match="took back 'key'"):
        here.get("key")
    with pytest.raises(RuntimeError, match="took back 'key'"):
        here.multi_get(["key"])
    here.close()
    there.close()
