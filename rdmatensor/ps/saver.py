"""Saving on a server: a thread writes the server's part, and server 0 makes the whole count."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rdmatensor._native.ffi import (
    OK,
    SLICE_NS,
    TIMED_OUT,
    CData,
    check,
    error_of,
    ffi,
    lib,
    new_error,
)
from rdmatensor.errors import (
    BusyError,
    CanceledError,
    ClosedError,
    InvalidArgumentError,
    RdmaTensorError,
    TransferTimeoutError,
)
from rdmatensor.ps.board import LOST, Board
from rdmatensor.ps.checkpoint import (
    MANIFEST,
    Checkpoint,
    PartWriter,
    device_error,
    read_manifest,
    write_manifest,
)
from rdmatensor.ps.part import Contents, Job, manifest_of, write_part

_LOOK_S, _TELL_S = 0.02, 0.5
NO_CLOCK = lib.RDT_PS_NO_CLOCK

log = logging.getLogger("rdmatensor.ps")


class Saver:
    """Saves the rows of one server.

    Threads:
        The server's calls come from one; writing has a thread of its own.
    """

    def __init__(
        self,
        handle: Callable[[str], CData],
        index: int,
        servers: int,
        workers: int,
        contents: Callable[[], Contents],
        board: Board,
        timeout_s: float,
        replicas: int = 0,
    ) -> None:
        self._replicas = replicas
        self._lost: dict[str, object] | None = None  # as of the last checkpoint's beginning
        self._handle, self._index, self._servers, self._workers = handle, index, servers, workers
        self._contents, self._board, self._timeout_s = contents, board, timeout_s
        self._job: Job | None = None
        self._full: tuple[Path, str] | None = None  # where, and which, the last one was
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._told_s = 0.0

    def calls(self) -> dict[str, Callable[[dict[str, object], int], dict[str, object]]]:
        """Return what workers may ask for."""
        return {
            "save": self._prepare,
            "save hold": self._hold,
            "save cut": self._cut,
            "save release": self._release,
            "save status": self._status,
        }

    # ---- from the preparation to the cut -------------------------------------------------------

    def _prepare(self, request: dict[str, object], worker: int) -> dict[str, object]:
        """Open the file, so that a wrong path fails before steps are held."""
        uid, folder = str(request["uid"]), Path(str(request["path"]))
        is_increment = request["incremental"] is True
        is_over = self._job is not None and self._job.state in ("done", "failed")
        if self._thread is not None and (is_over or self._index != 0 or self._has_lost()):
            self._thread.join(self._timeout_s)  # server 0, which is asked first, has ended its part
        if self._thread is not None and self._thread.is_alive():
            raise BusyError("RDT_EBUSY", "save", f"{self._name()} still saves another checkpoint")
        if is_increment and (self._full is None or self._full[0] != folder):
            last = "none" if self._full is None else f"the last one is {self._full[0]}"
            raise InvalidArgumentError(
                "RDT_EINVAL",
                "save",
                f"an increment needs a full checkpoint of this run in {folder}: {last}",
            )
        self._give_up()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = PartWriter(folder / f"{uid}.{self._index}.part")
        except OSError as error:
            raise device_error("save", error, folder) from None
        self._job = Job(uid, folder, is_increment, worker, file)
        self._lost = self._board.get(LOST) if self._replicas else None
        return {}

    def _hold(self, request: dict[str, object], worker: int) -> dict[str, object]:
        self._current(request)
        clocks, err = ffi.new("uint64_t[]", self._workers), new_error()
        check(lib.rdt_ps_server_hold(self._handle("save"), worker, clocks, err), "save", err)
        return {"clocks": [None if one == NO_CLOCK else one for one in clocks]}

    def _cut(self, request: dict[str, object], _worker: int) -> dict[str, object]:
        job, goals = self._current(request), request["clocks"]
        if not isinstance(goals, list) or len(goals) != self._workers:
            raise TypeError("clocks are a list, of one for each worker")
        clocks = ffi.new("uint64_t[]", [NO_CLOCK if one is None else one for one in goals])
        applied, err = ffi.new("uint64_t *"), new_error()
        deadline_s = time.monotonic() + self._timeout_s
        status = TIMED_OUT
        while status == TIMED_OUT and time.monotonic() < deadline_s and not self._is_stopping:
            status = lib.rdt_ps_server_cut(
                self._handle("save"), clocks, int(job.is_increment), SLICE_NS, applied, err
            )
        if status != OK:
            lib.rdt_ps_server_release(self._handle("save"))
            self._give_up()
            raise error_of(status, "save", err)
        job.clocks, job.applied = list(clocks), int(applied[0])
        job.contents, job.saved_at, job.state = self._contents(), time.time(), "writing"
        self._thread = threading.Thread(target=self._run, args=(job,), name="rdmatensor save")
        self._thread.start()
        return {}

    def _release(self, request: dict[str, object], _worker: int) -> dict[str, object]:
        job = self._job
        if job is not None and job.uid == request["uid"] and job.state == "prepared":
            lib.rdt_ps_server_release(self._handle("save"))
            self._give_up()
        return {}

    def _status(self, request: dict[str, object], _worker: int) -> dict[str, object]:
        job = self._job
        if job is None or job.uid != request["uid"]:
            raise InvalidArgumentError("RDT_EINVAL", "save", "a later checkpoint has begun")
        state = job.state  # the thread may change it
        if state == "failed":
            assert job.error is not None
            job.is_reported = True
            return {"state": "failed", "code": job.error.code, "text": job.error.detail[:500]}
        written, total = job.file.written, job.total
        for server in range(1, self._servers):
            note = self._board.get(self._note(job, server)) or {"written": 0, "total": 0}
            written, total = written + int(str(note["written"])), total + int(str(note["total"]))
        return {"state": state, "written": written, "total": total}

    def _current(self, request: dict[str, object]) -> Job:
        job = self._job
        if job is None or job.uid != request["uid"] or job.state != "prepared":
            raise BusyError("RDT_EBUSY", "save", f"{self._name()} saves for another worker")
        return job

    def _give_up(self) -> None:
        """Drop a checkpoint that was prepared, and not cut."""
        if self._job is not None and self._job.state == "prepared":
            self._job.file.remove()
            self._job = None

    def _name(self) -> str:
        return f"server {self._index}"

    def _note(self, job: Job, server: int) -> str:
        return f"save/{job.uid}/{server}"

    # ---- writing -------------------------------------------------------------------------------

    def _run(self, job: Job) -> None:
        try:
            write_part(job, self._handle, self._index, self._servers, lambda: self._look(job))
            job.state = "written"
            self._tell(job)
            if self._index == 0:
                self._finish(job)
            else:
                self._await(job, [0], "done")
        except OSError as error:
            more = "; the last checkpoint is intact"
            job.error = device_error("save", error, job.file.path, more)
        except RdmaTensorError as error:
            job.error = error
        except Exception as error:  # noqa: BLE001 - the thread's; finish() raises it
            job.error = RdmaTensorError("RDT_EINTERNAL", "save", f"{type(error).__name__}: {error}")
        if job.error is not None:
            log.error("%s has not saved %s: %s", self._name(), job.folder, job.error.detail)
            job.file.remove()
            job.file.path.with_suffix(".json").unlink(missing_ok=True)
        elif not job.is_increment:
            self._full = (job.folder, job.uid)
        lib.rdt_ps_server_end_cut(self._handle("save"), int(job.error is None))
        job.state = "done" if job.error is None else "failed"
        self._tell(job)

    def _look(self, job: Job) -> None:
        """End if the server ends; say how far it is, now and then."""
        self._check_open()
        if time.monotonic() - self._told_s > _TELL_S:
            self._tell(job)
            log.info("%s: %d of %d B", job.file.path, job.file.written, job.total)

    def _tell(self, job: Job) -> None:
        self._told_s = time.monotonic()
        text = None if job.error is None else [job.error.code, job.error.detail]
        note = {"state": job.state, "written": job.file.written, "total": job.total, "error": text}
        self._board.put(self._note(job, self._index), note)

    # ---- making it count -----------------------------------------------------------------------

    def _finish(self, job: Job) -> None:
        """Wait for the other servers' parts, and write the manifest."""
        self._await(job, range(1, self._servers), "written")
        path = job.file.path
        names = [path.with_name(f"{job.uid}.{one}.json") for one in range(self._servers)]
        parts = [json.loads(one.read_text(encoding="utf-8")) for one in names]
        old = read_manifest(job.folder) if (job.folder / MANIFEST).exists() else None
        manifest = manifest_of(job, parts, old, self._full)
        write_manifest(job.folder, manifest)
        for one in names:
            one.unlink(missing_ok=True)
        kept = {file["name"] for file in manifest["files"]}
        for file in old["files"] if old is not None else []:
            if file["name"] not in kept:
                (job.folder / file["name"]).unlink(missing_ok=True)
        note = {"path": str(job.folder), "saved_at": job.saved_at, "clocks": job.clocks}
        self._board.put("checkpoint", note)

    def _await(self, job: Job, servers: Sequence[int], state: str) -> None:
        """Wait until servers are so far; raises the error of one that has failed."""
        seen: dict[int, object] = {}
        since_s = time.monotonic()
        missing = list(servers)
        while missing:
            self._check_open()
            if self._has_lost():
                raise CanceledError("RDT_ECANCELED", "save", "a server has died: save again")
            for server in list(missing):
                note = self._board.get(self._note(job, server))
                if note != seen.get(server):
                    seen[server], since_s = note, time.monotonic()
                if note is not None and note["error"] is not None:
                    code, words = note["error"]
                    raise _again(code, words if server == 0 else f"server {server}: {words}")
                if note is not None and note["state"] == state:
                    missing.remove(server)
            if missing and time.monotonic() - since_s > self._timeout_s:
                raise TransferTimeoutError(
                    "RDT_ETIMEDOUT",
                    "save",
                    f"server {missing[0]} has saved nothing for {self._timeout_s:.0f} s",
                )
            if missing:
                time.sleep(_LOOK_S)

    def _check_open(self) -> None:
        if self._is_stopping:
            raise ClosedError("RDT_ECLOSED", "save", f"{self._name()} was closed meanwhile")

    def _has_lost(self) -> bool:
        """Return whether a server has died since the checkpoint was begun, as workers noted."""
        return self._replicas > 0 and self._board.get(LOST) != self._lost

    # ---- the end -------------------------------------------------------------------------------

    def describe(self) -> dict[str, object] | None:
        """Return the state of the last checkpoint, or None."""
        job = self._job
        if job is None:
            return None
        state = {"path": str(job.folder), "state": job.state, "is_increment": job.is_increment}
        return {**state, "written_bytes": job.file.written, "total_bytes": job.total}

    def finish(self) -> None:
        """Wait for a checkpoint that is being saved; raises its error, if no worker has asked."""
        self._give_up()
        if self._thread is not None:
            self._thread.join()
        job = self._job
        if self._index == 0 and job is not None and job.error is not None and not job.is_reported:
            job.is_reported = True
            raise job.error

    def close(self) -> None:
        """Give up what is being saved; idempotent."""
        self._is_stopping = True
        self._give_up()
        if self._thread is not None:
            self._thread.join()


def _again(code: str, detail: str) -> RdmaTensorError:
    """Make the exception that another server has raised."""
    error = error_of(getattr(lib, code), "save", new_error())
    error.detail = detail
    error.args = (error.code, error.call, error.detail)
    return error


def restored_note(checkpoint: Checkpoint) -> dict[str, object]:
    """Return what workers say of a checkpoint that the servers began with."""
    return {
        "path": str(checkpoint.path),
        "saved_at": checkpoint.saved_at,
        "clocks": checkpoint.clocks,
    }
