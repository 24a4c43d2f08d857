"""What a server does for a driver: a queue that grows."""

from __future__ import annotations

from collections.abc import Callable

from rdmatensor._native.ffi import CData, check, ffi, lib, new_error


class Feed:
    """The queue of a driver's batches on one server, which is not part of checkpoints."""

    def __init__(self, handle: Callable[[str], CData]) -> None:
        self._handle = handle
        self._number = 0

    def calls(self) -> dict[str, Callable[[dict[str, object], int], dict[str, object]]]:
        """Return what workers and the driver may ask for."""
        return {"feed": self._open, "feed more": self._extend, "observe": self._observe}

    def _open(self, _request: dict[str, object], _worker: int) -> dict[str, object]:
        if self._number == 0:
            number, err = ffi.new("uint32_t *"), new_error()
            status = lib.rdt_ps_server_add_queue(
                self._handle("drive"), lib.RDT_PS_CHUNKS_OPEN, number, err
            )
            check(status, "drive", err)
            self._number = int(number[0])
        return {"id": self._number}

    def _extend(self, request: dict[str, object], _worker: int) -> dict[str, object]:
        chunks, err = request["chunks"], new_error()
        if type(chunks) is not int or not 0 <= chunks <= 1 << 28:
            raise ValueError(f"{chunks!r} is not a number of batches")
        status = lib.rdt_ps_server_extend_queue(
            self._handle("drive"), self._number, chunks, int(request["last"] is True), err
        )
        check(status, "drive", err)
        return {}

    def _observe(self, _request: dict[str, object], worker: int) -> dict[str, object]:
        err = new_error()
        check(lib.rdt_ps_server_observe(self._handle("drive"), worker, err), "drive", err)
        return {}
