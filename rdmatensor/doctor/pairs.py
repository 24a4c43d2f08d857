"""A real write between every two ranks of a job: path, latency and bandwidth as a matrix."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from rdmatensor import config
from rdmatensor.doctor.cures import REPORT, cure
from rdmatensor.doctor.finding import Finding, Level, PairFinding, broken, ok, slower
from rdmatensor.doctor.loopback import DEADLINE_S, LARGE_BYTES, SMALL_BYTES, time_writes
from rdmatensor.doctor.words import Words, refused
from rdmatensor.errors import RdmaTensorError
from rdmatensor.store import Store

# Imports in functions load numpy or the C library: what the doctor finds first does not need them.
if TYPE_CHECKING:
    from rdmatensor.memory import RemoteRegion
    from rdmatensor.types import Array

_RANKS_OF_PATHS = {"tcp": 0, "verbs": 1, "shm": 2}
_FIX_OF_BYTES = (
    "export RDMATENSOR_VERIFY=crc32c, by which a job stops at the first wrong byte; test memory "
    "and network card of both hosts"
)


@dataclass(frozen=True, slots=True)
class Cell:
    """How one rank reaches another. error: why it does not; why: the reason for no better path.

    fix: what fixes the error.
    """

    path: str = "none"
    small_us: float = 0.0
    large_gb_s: float = 0.0
    why: str = ""
    error: str = ""
    fix: str = ""

    def __str__(self) -> str:
        if self.error:
            return "fails"
        return f"{self.path} {self.small_us:.1f} {self.large_gb_s:.3g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One rank's report: its host, what is viable there, what is wrong there, its writes.

    error: why it does not take part; fix: what fixes that.
    """

    host: str
    viable: tuple[str, ...]
    findings: tuple[Finding, ...]
    cells: dict[int, Cell]
    error: str = ""
    fix: str = ""

    def encode(self) -> str:
        """Return JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: bytes) -> Row:
        """Read the result of encode(); ProtocolError for others, such as another version's."""
        try:
            data = json.loads(text)
            _texts(data["host"], *data["viable"], data["error"], data["fix"])
            if not isinstance(data["viable"], list):
                raise TypeError("no list")
            return Row(
                data["host"],
                tuple(data["viable"]),
                tuple(_finding(**finding) for finding in data["findings"]),
                {int(rank): _cell(**cell) for rank, cell in data["cells"].items()},
                data["error"],
                data["fix"],
            )
        except (
            *(KeyError, TypeError, ValueError, AttributeError),
            *(OverflowError, RecursionError),  # a number, or nested lists, without end
        ) as error:
            raise refused(f"a rank's row cannot be read ({error!r})") from error


def _texts(*values: object) -> None:
    """Raise TypeError or ValueError for a value that is not text, or cannot be printed."""
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is not text")
        value.encode()


def _finding(level: Level, subject: str, text: str, fix: str = "") -> Finding:
    if level not in get_args(Level):
        raise ValueError(f"{level!r} is not a level")
    _texts(subject, text, fix)
    return Finding(level, subject, text, fix)


def _cell(
    path: str = "none",
    small_us: float = 0.0,
    large_gb_s: float = 0.0,
    why: str = "",
    error: str = "",
    fix: str = "",
) -> Cell:
    _texts(path, why, error, fix)
    small_us, large_gb_s = float(small_us), float(large_gb_s)
    if not (math.isfinite(small_us) and math.isfinite(large_gb_s)):
        raise ValueError("no time, or no speed, is without end")
    return Cell(path, small_us, large_gb_s, why, error, fix)


def read_rows(texts: list[bytes]) -> list[Row]:
    """Read every rank's report, in rank order; ProtocolError for a row that is not of its job."""
    rows = [Row.decode(text) for text in texts]
    able = {rank for rank, row in enumerate(rows) if not row.error}
    for rank, row in enumerate(rows):
        if row.cells.keys() != (able - {rank} if rank in able else set()):
            raise refused(f"rank {rank} reports writes to {sorted(row.cells)}, not to the others")
    return rows


def read_region(text: bytes) -> RemoteRegion:
    """Read the address of a rank's memory; ProtocolError for anything else."""
    from rdmatensor.memory import RemoteRegion

    try:
        data = bytes.fromhex(text.decode())
    except ValueError as error:
        raise refused(f"a rank's address cannot be read ({error!r})") from error
    return RemoteRegion.decode(data)


@dataclass(frozen=True, slots=True)
class Hello:
    """A rank's message before the first write: why it does not take part, or how it is reached.

    has_secret: whether it has the job's secret from its settings, as all must, or none.
    """

    error: str = ""
    has_secret: bool = False
    address: str = ""
    region: str = ""

    def encode(self) -> str:
        """Return JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: bytes) -> Hello:
        """Read the result of encode(); ProtocolError for anything else."""
        try:
            hello = Hello(**json.loads(text))
            _texts(hello.error, hello.address, hello.region)
            bytes.fromhex(hello.address)
        except (TypeError, ValueError, RecursionError) as error:
            raise refused(f"a rank's first words cannot be read ({error!r})") from error
        return hello


def measure(
    store: Store,
    rank: int,
    size: int,
    findings: tuple[Finding, ...],
    *,
    timeout_s: float,
    met: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Write to every other rank, and return all ranks' rows; every rank of the job calls this.

    In each of size - 1 rounds every rank writes to one and is written to by one, all at once. A
    rank that cannot, for example by a wrong setting, reports why, and the others continue without
    it.
    findings: of this rank's machine, for the others. timeout_s: the longest wait for the others.
        met: called once all are there.
    Raises: RdmaTensorError (a rank did not come, or left).
    """
    with Words(store, rank, size, timeout_s) as words, ExitStack() as stack:
        trial, row = None, Row(host(), (), findings, {})
        try:
            trial = _Trial(stack, words, rank)
            hello = trial.hello()
        except RdmaTensorError as error:
            hello = Hello(error=str(error))
            row = replace(row, error=hello.error, fix=cure(error))
        told = words.exchange("hello", hello.encode())
        met()
        hellos = {other: Hello.decode(text) for other, text in told.items()}
        able = [other for other in hellos if not _fault(hellos[0], hellos[other])]
        if trial is not None and rank in able:
            row = replace(row, viable=trial.viable(), cells=trial.write_to_all(hellos, able))
        elif trial is not None:
            row = replace(row, error=_fault(hellos[0], hello), fix="set it for all, or for none")
        rows = words.exchange("row", row.encode())
        words.end()
    return read_rows(list(rows.values()))


def _fault(first: Hello, hello: Hello) -> str:
    """Return why a rank does not take part; empty: it does."""
    if hello.error or first.error or hello.has_secret == first.has_secret:
        return hello.error
    has, lacks = ("rank 0", "this rank") if first.has_secret else ("this rank", "rank 0")
    return f"{has} has RDMATENSOR_SECRET or RDMATENSOR_SECRET_FILE set, and {lacks} has not"


def _pattern(rank: int) -> Array:
    """Return what a rank writes: bytes that differ from the previous rank's."""
    import numpy as np

    return ((np.arange(LARGE_BYTES) + rank) % 251).astype("uint8")


class _Trial:
    """One rank's context, its source data, and the memory that the others write to.

    Ownership: the stack closes all of it. Raises: RdmaTensorError (a setting, memory).
    """

    def __init__(self, stack: ExitStack, words: Words, rank: int) -> None:
        from rdmatensor.context import Context

        settings = config.from_environment()
        self._words, self._rank, self._has_secret = words, rank, settings.secret is not None
        self._context = stack.enter_context(
            Context(replace(settings, metrics_ports=None, trace_dir=None, plan="off"))
        )
        self._context.add_job(words.job, settings.secret or words.secret, rank=rank)
        self._source, self._target = (self._context.zeros(LARGE_BYTES, "uint8") for _ in range(2))
        self._source[:] = _pattern(rank)
        self._region = self._context.export(self._target)

    def hello(self) -> Hello:
        """Return what the others need to write to this rank."""
        address, region = self._context.address.hex(), self._region.encode().hex()
        return Hello(has_secret=self._has_secret, address=address, region=region)

    def viable(self) -> tuple[str, ...]:
        """Return the transports that can be used here."""
        transports = cast("dict[str, dict[str, object]]", self._context.describe()["transports"])
        return tuple(name for name, found in transports.items() if found["is_viable"])

    def write_to_all(self, hellos: dict[int, Hello], able: list[int]) -> dict[int, Cell]:
        """Write to each of the ranks that take part, and check what each of them wrote here."""
        import numpy as np

        place, cells = able.index(self._rank), {}
        for shift in range(1, len(able)):
            other, writer = (able[(place + way) % len(able)] for way in (shift, -shift))
            cell = self._write(other, hellos[other])
            self._words.exchange(f"round {shift}", "", able)
            is_right = np.array_equal(self._target, _pattern(writer))
            seen = self._words.exchange(f"bytes {shift}", "" if is_right else "others", able)
            if seen[other] and not cell.error:
                cell = Cell(error="other bytes arrived than were written", fix=_FIX_OF_BYTES)
            cells[other] = cell
        return cells

    def _write(self, other: int, hello: Hello) -> Cell:
        region = read_region(hello.region.encode())
        try:
            endpoint = self._context.connect(
                bytes.fromhex(hello.address), job=self._words.job, rank=other
            )
            endpoint.wait_ready(DEADLINE_S)
            small_s, large_s = time_writes(endpoint, self._source, region)
            path = endpoint.transport
        except RdmaTensorError as error:
            return Cell(error=str(error), fix=cure(error))
        endpoints = cast("list[dict[str, object]]", self._context.describe()["endpoints"])
        why = [str(found["why_not_better"]) for found in endpoints if found["rank"] == other]
        return Cell(path, 1e6 * small_s, LARGE_BYTES / large_s / 1e9, "; ".join(filter(None, why)))


def host() -> str:
    """Return a name of this host that differs from other hosts of the same name."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
    return f"{socket.gethostname()} ({boot_id[:8]})"


def told_of(found: Finding, rank: int | str, host: str) -> Finding:
    """Return a finding marked with the machine that it is about."""
    return replace(found, text=f"{found.text} (rank {rank}, {host})")


def judge(rows: list[Row], told: int | None = None) -> Iterator[Finding]:
    """Yield a finding for each pair, and what is not ok on the ranks' machines except `told`'s."""
    for rank, row in enumerate(rows):
        for found in row.findings if rank != told else ():
            yield told_of(found, rank, row.host)
    for rank, row in enumerate(rows):
        if row.error:
            text = f"{row.host} takes no part: {row.error}"
            yield broken(f"rank {rank}", text, row.fix or REPORT)
        for other, cell in sorted(row.cells.items()):
            found = _judge_cell(f"{rank} to {other}", cell, row, rows[other])
            yield PairFinding(
                **asdict(found),
                rank=rank,
                peer=other,
                host=row.host,
                peer_host=rows[other].host,
                path=cell.path,
                small_us=None if cell.error else cell.small_us,
                large_gb_s=None if cell.error else cell.large_gb_s,
            )


def _judge_cell(subject: str, cell: Cell, row: Row, other: Row) -> Finding:
    if cell.error:
        return broken(subject, cell.error, cell.fix or REPORT)
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
