"""Bytes that other ranks put into the store: taken, or refused by an error that names the rank.

What C decodes is fuzzed there, too (ci/fuzz.sh).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdmatensor import Context, PeerError, ProtocolError, RdmaTensorError, Settings
from rdmatensor._join.records import read_address, read_root


@pytest.fixture(scope="module")
def contexts() -> Iterator[tuple[Context, Context]]:
    with Context(Settings(loopback=True)) as ours, Context(Settings(loopback=True)) as theirs:
        ours.add_job("job", b"secret", rank=0)
        yield ours, theirs


@settings(deadline=None)  # a loaded machine is no finding
@given(st.binary(max_size=1100))
def test_random_bytes_are_no_address(contexts: tuple[Context, Context], data: bytes) -> None:
    ours, _ = contexts
    with pytest.raises(RdmaTensorError):
        ours.connect(data, job="job", rank=1)


@settings(deadline=None)
@given(st.integers(0, 8191), st.integers(1, 255))
def test_a_damaged_address_is_refused_or_leads_elsewhere(
    contexts: tuple[Context, Context], at: int, flip: int
) -> None:
    ours, theirs = contexts
    address = bytearray(theirs.address)
    address[at % len(address)] ^= flip
    with contextlib.suppress(RdmaTensorError):
        ours.connect(bytes(address), job="job", rank=1).close()


def judged(read: Callable[[], object]) -> tuple[object, PeerError | None]:
    """What was taken, or whose fault it is; anything else that is raised is a finding."""
    try:
        return read(), None
    except PeerError as error:
        return None, error


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_what_a_rank_stored_is_an_address_or_a_peer_s_fault(value: bytes) -> None:
    address, error = judged(lambda: read_address(3, value))
    assert isinstance(address, bytes) or error is not None
    assert error is None or (error.rank == 3 and "rank 3" in str(error))


fields = st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.lists(st.none())
hexadecimal = st.binary(min_size=8, max_size=32).map(bytes.hex)
roots = st.fixed_dictionaries(
    {"incarnation": fields | hexadecimal, "size": fields}, optional={"secret": fields | hexadecimal}
)


@settings(deadline=None)
@given(st.binary(max_size=60) | (fields | roots).map(lambda value: json.dumps(value).encode()))
def test_what_rank_0_stored_is_a_root_or_its_fault(value: bytes) -> None:
    root, error = judged(lambda: read_root(value))
    if error is not None:
        assert isinstance(error, ProtocolError)
        assert error.rank == 0
        assert "rank 0" in str(error)
        return
    assert isinstance(root, dict)
    assert len(bytes.fromhex(root["incarnation"])) == 8
    assert root.get("secret") is None or len(bytes.fromhex(root["secret"])) == 32


def test_a_true_root_is_taken() -> None:
    for secret in (None, "ab" * 32):
        root = {"incarnation": "0123456789abcdef", "size": 2, "secret": secret}
        assert read_root(json.dumps(root).encode()) == root
