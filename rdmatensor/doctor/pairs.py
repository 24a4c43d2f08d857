"""A real write between every two ranks of a job: path, latency and bandwidth as a matrix."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from rdmatensor.config import Settings
from rdmatensor.doctor.finding import Finding, Level, broken, ok, slower
from rdmatensor.doctor.loopback import DEADLINE_S, LARGE_BYTES, SMALL_BYTES, time_writes
from rdmatensor.errors import ProtocolError, RdmaTensorError
from rdmatensor.store import Store, wait_for

if TYPE_CHECKING:
    from rdmatensor.bootstrap import World
    from rdmatensor.memory import RemoteRegion
    from rdmatensor.types import Array

_JOB = "doctor"
_RANKS_OF_PATHS = {"tcp": 0, "verbs": 1, "shm": 2}


@dataclass(frozen=True, slots=True)
class Cell:
    """How one rank reaches another. error: why it does not; why: why by no better path."""

    path: str = "none"
    small_us: float = 0.0
    large_gb_s: float = 0.0
    why: str = ""
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return "fails"
        return f"{self.path} {self.small_us:.1f} {self.large_gb_s:.3g}"


@dataclass(frozen=True, slots=True)
class Row:
    """What one rank tells: its host, what is viable there, what is wrong there, its writes."""

    host: str
    viable: tuple[str, ...]
    findings: tuple[Finding, ...]
    cells: dict[int, Cell]

    def encode(self) -> str:
        """Return JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: bytes) -> Row:
        """Read what encode() wrote; ProtocolError for what is none, as another version's."""
        try:
            data = json.loads(text)
            _texts(data["host"], *data["viable"])
            if not isinstance(data["viable"], list):
                raise TypeError("no list")
            return Row(
                data["host"],
                tuple(data["viable"]),
                tuple(_finding(**finding) for finding in data["findings"]),
                {int(rank): _cell(**cell) for rank, cell in data["cells"].items()},
            )
        except (
            *(KeyError, TypeError, ValueError, AttributeError),
            *(OverflowError, RecursionError),  # a number, and lists in lists, without end
        ) as error:
            raise _refused(f"a rank's row cannot be read ({error!r})") from error


def _refused(what: str) -> ProtocolError:
    return ProtocolError("RDT_EPROTO", "doctor", f"{what}: are the versions the same?")


def _texts(*values: object) -> None:
    """Raise TypeError or ValueError for what is no text, or cannot be printed."""
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is no text")
        value.encode()


def _finding(level: Level, subject: str, text: str, fix: str = "") -> Finding:
    if level not in get_args(Level):
        raise ValueError(f"{level!r} is no level")
    _texts(subject, text, fix)
    return Finding(level, subject, text, fix)


def _cell(
    path: str = "none",
    small_us: float = 0.0,
    large_gb_s: float = 0.0,
    why: str = "",
    error: str = "",
) -> Cell:
    _texts(path, why, error)
    return Cell(path, float(small_us), float(large_gb_s), why, error)


def read_rows(texts: list[bytes]) -> list[Row]:
    """Read what every rank told, in rank order; ProtocolError for a row that is not of its job."""
    rows = [Row.decode(text) for text in texts]
    for rank, row in enumerate(rows):
        if row.cells.keys() != set(range(len(rows))) - {rank}:
            raise _refused(f"rank {rank} tells of writes to {sorted(row.cells)}, not to the others")
    return rows


def read_region(text: bytes) -> RemoteRegion:
    """Read the address of a rank's memory; ProtocolError for what is none."""
    from rdmatensor.memory import RemoteRegion

    try:
        data = bytes.fromhex(text.decode())
    except ValueError as error:
        raise _refused(f"a rank's address cannot be read ({error!r})") from error
    return RemoteRegion.decode(data)


def measure(
    store: Store, rank: int, size: int, settings: Settings, findings: tuple[Finding, ...]
) -> list[Row]:
    """Write to every other rank, and return all ranks' rows; every rank of the job calls this.

    In each of size - 1 rounds every rank writes to one and is written to by one, all at once.
    findings: of this rank's machine, for the others to hear of.
    Raises: RdmaTensorError (a rank did not come, or left).
    """
    import numpy as np

    from rdmatensor.bootstrap import join
    from rdmatensor.context import Context

    with (
        Context(replace(settings, metrics_port=None, plan="off")) as context,
        join(store, rank, size, job=_JOB, context=context) as world,
    ):
        source, target = (context.zeros(LARGE_BYTES, "uint8") for _ in range(2))
        source[:] = np.arange(LARGE_BYTES) % 251
        mine = context.export(target)
        regions = _exchange(world, store, "region", mine.encode().hex())
        cells = {}
        for shift in range(1, size):
            other = (rank + shift) % size
            cells[other] = _write(world, other, source, read_region(regions[other]))
            _exchange(world, store, f"round {shift}", "")
        transports = cast("dict[str, dict[str, object]]", context.describe()["transports"])
        viable = tuple(name for name, found in transports.items() if found["is_viable"])
        row = Row(_host(), viable, findings, cells)
        rows = _exchange(world, store, "row", row.encode())
        _exchange(world, store, "end", "")
    return read_rows(rows)


def _host() -> str:
    """Name this host so that two of one name are told apart."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return f"{socket.gethostname()} ({boot_id[:8]})"


def _exchange(world: World, store: Store, what: str, mine: str) -> list[bytes]:
    """Return every rank's word, in rank order; waits for all."""
    keys = {f"{world.job}/{what}/{rank}": f"rank {rank}" for rank in range(world.size)}
    store.set(f"{world.job}/{what}/{world.rank}", mine)
    wait_for(store, keys, world.context.settings.timeout_s, "doctor")
    return list(store.multi_get(list(keys)))


def _write(world: World, other: int, source: Array, region: RemoteRegion) -> Cell:
    try:
        endpoint = world[other]
        endpoint.wait_ready(DEADLINE_S)
        small_s, large_s = time_writes(endpoint, source, region)
        path = endpoint.transport
    except RdmaTensorError as error:
        return Cell(error=str(error))
    endpoints = cast("list[dict[str, object]]", world.describe()["endpoints"])
    why = [str(found["why_not_better"]) for found in endpoints if found["rank"] == other]
    return Cell(path, 1e6 * small_s, LARGE_BYTES / large_s / 1e9, "; ".join(filter(None, why)))


def judge(rows: list[Row], told: int | None = None) -> Iterator[Finding]:
    """Yield a finding for each pair, and what is not ok on the ranks' machines but `told`'s."""
    for rank, row in enumerate(rows):
        for found in row.findings if rank != told else ():
            text = f"{found.text} (rank {rank}, {row.host})"
            yield replace(found, text=text)
    for rank, row in enumerate(rows):
        for other, cell in sorted(row.cells.items()):
            yield _judge_cell(f"{rank} to {other}", cell, row, rows[other])


def _judge_cell(subject: str, cell: Cell, row: Row, other: Row) -> Finding:
    if cell.error:
        return broken(subject, cell.error, "see the error; `rdmatensor doctor` on both hosts")
    text = (
        f"{cell.path}; a write of {SMALL_BYTES} B {cell.small_us:.1f} us, of 1 MiB "
        f"{cell.large_gb_s:.3g} GB/s"
    )
    common = set(row.viable) & set(other.viable) & _RANKS_OF_PATHS.keys()
    if row.host != other.host:
        common.discard("shm")
    best = max(common, key=lambda name: _RANKS_OF_PATHS[name], default=cell.path)
    if _RANKS_OF_PATHS.get(cell.path, -1) < _RANKS_OF_PATHS.get(best, -1):
        why = cell.why or "this path is forced, or not said why"
        return slower(
            subject, f"{text}; both have {best}: {why}", "see the reason; RDMATENSOR_TRANSPORT"
        )
    return ok(subject, text)


def matrix(rows: list[Row]) -> Iterator[str]:
    """Yield the matrix as lines."""
    yield f"row writes to column: path, us for {SMALL_BYTES} B, GB/s for 1 MiB"
    lines = [["", *(str(rank) for rank in range(len(rows)))]]
    for rank, row in enumerate(rows):
        cells = [str(row.cells[other]) if other in row.cells else "-" for other in range(len(rows))]
        lines.append([f"{rank} {row.host}", *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        words = (word.ljust(width) for word, width in zip(line, widths, strict=True))
        yield "  ".join(words).rstrip()
