"""The exceptions, and that every status of C has one."""

from __future__ import annotations

import pickle

import pytest

import rdmatensor
from rdmatensor import errors
from rdmatensor._native.ffi import check, error_of, ffi, lib

STATUSES = {
    name: getattr(lib, name)
    for name in dir(lib)
    if name.startswith("RDT_E") and name != "RDT_ERROR_MESSAGE_BYTES"
}


def _filled(status: int, message: bytes = b"what happened", rank: int = 3) -> object:
    err = ffi.new("struct rdt_error *")
    err.status, err.peer_rank, err.message = status, rank, message
    return err


def test_statuses_are_all_known() -> None:
    assert len(STATUSES) == 20
    assert sorted(STATUSES.values()) == list(range(-20, 0))


@pytest.mark.parametrize("name", sorted(STATUSES))
def test_each_status_is_an_exception_that_tells_all(name: str) -> None:
    error = error_of(STATUSES[name], "the call", _filled(STATUSES[name]))
    assert (error.code, error.call, error.detail, error.rank) == (
        name, "the call", "what happened", 3
    )  # fmt: skip
    assert str(error) == f"what happened [the call: {name}]"
    assert type(error) is not errors.RdmaTensorError
    assert isinstance(error, errors.InternalError) == (name == "RDT_EINTERNAL")


def test_python_s_own_kinds_hold() -> None:
    assert issubclass(errors.InvalidArgumentError, ValueError)
    assert issubclass(errors.OutOfMemoryError, MemoryError)
    assert issubclass(errors.TransferTimeoutError, TimeoutError)
    for remote in (errors.ProtocolError, errors.AuthenticationError, errors.VersionMismatchError):
        assert issubclass(remote, errors.PeerError)
    local = [
        errors.InvalidArgumentError,
        errors.ClosedError,
        errors.DeviceError,
        errors.ForkedProcessError,
    ]
    assert not any(issubclass(cls, errors.PeerError) for cls in local)


def test_a_completion_error_has_its_codes() -> None:
    err = _filled(lib.RDT_EDEVICE)
    err.sys_errno, err.wc_status, err.vendor_err = 5, 12, 129  # type: ignore[attr-defined]
    error = error_of(lib.RDT_EDEVICE, "poll", err)
    assert isinstance(error, errors.CompletionError)
    assert (error.sys_errno, error.wc_status, error.vendor_err) == (5, 12, 129)


def test_what_another_call_left_is_not_taken_for_ours() -> None:
    error = error_of(lib.RDT_EPEER, "write", _filled(lib.RDT_ENOMEM, b"old news"))
    assert "old news" not in str(error)
    assert error.rank == errors.RANK_UNKNOWN


def test_unknown_statuses_are_internal_errors() -> None:
    assert isinstance(error_of(-77, "x", _filled(-77)), errors.InternalError)
    check(0, "nothing happens", _filled(lib.RDT_EPEER))


def test_the_name_of_the_c_call_is_not_said_beside_python_s() -> None:
    for head in ("slot_tx_put: ", "context_open: ", "write: ", "wait: "):
        error = error_of(lib.RDT_EINVAL, "put", _filled(lib.RDT_EINVAL, head.encode() + b"x: y"))
        assert str(error) == "x: y [put: RDT_EINVAL]"
    kept = error_of(lib.RDT_EINVAL, "put", _filled(lib.RDT_EINVAL, b"slot 's': nothing"))
    assert kept.detail == "slot 's': nothing"


def test_a_peer_that_is_not_there_may_be_of_an_earlier_run() -> None:
    text = b"rank 1 cannot be reached: it has exited, or a firewall lies between (x)"
    error = error_of(lib.RDT_EPEER, "wait_ready", _filled(lib.RDT_EPEER, text))
    assert "an earlier run left: use a fresh folder" in str(error)


def test_messages_that_are_not_utf8_do_not_hide_the_error() -> None:
    assert "\ufffd" in str(error_of(-6, "x", _filled(-6, b"rank \xff")))


@pytest.mark.parametrize(
    "cls", [errors.PeerError, errors.TransferTimeoutError, errors.OutOfMemoryError]
)
def test_exceptions_are_pickled_whole(cls: type[errors.RdmaTensorError]) -> None:
    error = cls("RDT_X", "call", "detail")
    error.rank = 5
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.rank) == (cls, str(error), 5)


def test_all_exceptions_share_one_base_and_end_in_error() -> None:
    found = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    assert all(issubclass(cls, errors.RdmaTensorError) for cls in found.values())
    assert [name for name in found if not name.endswith("Error")] == []
    assert set(found) <= set(rdmatensor.__all__)


def test_a_plan_mismatch_is_its_message() -> None:
    error = errors.PlanMismatchError("tensor a.weight differs")
    error.rank = 2
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.rank) == ("tensor a.weight differs", 2)
    assert isinstance(copy, RuntimeError)
