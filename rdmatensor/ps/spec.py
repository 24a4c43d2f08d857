"""What all processes of a cluster agree on, and a table's description in C."""

from __future__ import annotations

import os
import zlib
from dataclasses import asdict, dataclass
from typing import Any

from rdmatensor._native.arguments import U32_MAX, invalid, whole_in
from rdmatensor._native.ffi import CData, ffi, lib
from rdmatensor.ps.modes import Mode, codes_of, name_of
from rdmatensor.ps.pyrules import PythonRule, described
from rdmatensor.ps.rules import Init, Rule, rule_of

CONSISTENCIES = ("relaxed", "row")  # as RDT_PS_RELAXED and RDT_PS_ROW
EVICT = ("lru", "lfu", "epoch")  # in the order of RDT_PS_EVICT_*


def _from_one(value: object, most: int, call: str, name: str) -> int:
    number = whole_in(value, most, call, name)
    if number < 1:
        raise invalid(call, f"{name}={number} is not 1 or more")
    return number


@dataclass(frozen=True)
class Keys:
    """Ids that are any 64 bits, and how their rows come and go.

    A key gets a row when it is pushed. One without a row reads as its first values.

    Attributes:
        admit_after: Steps in which a key must be pushed before it gets a row. The push of the last
            of them is applied; earlier ones are only counted.
        expire_after: Steps of the table without a push of a key after which the key is forgotten,
            its row and its count with it; None: never.
        capacity: Rows, over all servers. When a server's part is full, a new row takes the place of
            another one. None: rows are added until memory is full.
        evict: Which one: "lru", whose last push is the oldest; "lfu", pushed in the fewest steps;
            "epoch", pushed last in the oldest epoch, see Table.set_epoch().

    Raises:
        InvalidArgumentError: A number or `evict` is out of range.

    Example:
        >>> w.table("clicks", 16, keys=ps.Keys(admit_after=3), rule=ps.Adagrad(0.1))
        <Table 'clicks' of keys with rows of 16>
    """

    admit_after: int = 1
    expire_after: int | None = None
    capacity: int | None = None
    evict: str = "lru"

    def __post_init__(self) -> None:
        """Check the numbers."""
        _from_one(self.admit_after, U32_MAX, "Keys", "admit_after")
        if self.expire_after is not None:
            _from_one(self.expire_after, 1 << 62, "Keys", "expire_after")
        if self.capacity is not None:
            _from_one(self.capacity, U32_MAX - 1, "Keys", "capacity")
        if self.evict not in EVICT:
            raise invalid("Keys", f"evict={self.evict!r} is not one of {', '.join(EVICT)}")


@dataclass(frozen=True)
class Shape:
    """The cluster: roles by rank, the mode, and the slots of requests.

    Ranks 0 to workers - 1 are workers, the others servers. With replicas the process of each server
    has a second rank, from workers + servers on: the backup of the server before it.
    """

    workers: int
    servers: int
    mode: Mode
    slots: int
    slot_bytes: int
    goes_on: bool
    restore: str | None = None
    replicas: int = 0

    @property
    def connections(self) -> int:
        """Servers and their backups; of server s the numbers s and servers + s."""
        return self.servers * (1 + self.replicas)

    @property
    def ranks(self) -> int:
        """Ranks of the job, with those of backups."""
        return self.workers + self.connections

    def backup_of(self, rank: int) -> int:
        """Return the second rank of a server's process."""
        return self.workers + self.servers + (rank - self.workers - 1) % self.servers

    def process_of(self, rank: int) -> int:
        """Return the rank that a process joined as; a backup's is another one."""
        backup = rank - self.workers - self.servers
        return rank if backup < 0 else self.workers + (backup + 1) % self.servers

    def server_struct(self, number: int) -> CData:
        """Make the struct rdt_ps_server_opts * of a server or a backup; see connections."""
        opts = ffi.new("struct rdt_ps_server_opts *")
        opts.struct_size = ffi.sizeof("struct rdt_ps_server_opts")
        opts.mode, opts.staleness = codes_of(self.mode)
        opts.index, opts.is_backup = number % self.servers, int(number >= self.servers)
        opts.servers, opts.workers = self.servers, self.workers
        opts.slots, opts.slot_bytes = self.slots, self.slot_bytes
        opts.goes_on = int(self.goes_on)
        return opts

    def as_text(self) -> str:
        """Return it as text that processes compare."""
        return repr({**asdict(self), "mode": name_of(self.mode)})


@dataclass(frozen=True)
class TableSpec:
    """A table as its creator describes it; all workers give the same."""

    name: str
    dim: int
    rows: int
    rule: Rule
    init: Init
    seed: int
    keys: str = "dense"
    admit_after: int = 1
    expire_after: int = 0
    capacity: int = 0
    evict: str = "lru"
    spill: str = ""
    memory: int = 0
    consistency: str = "relaxed"

    def struct(self, spill: CData = ffi.NULL) -> CData:
        """Make the struct rdt_ps_table_opts *; spill: a server's copy of the folder's name."""
        opts = ffi.new("struct rdt_ps_table_opts *")
        opts.struct_size = ffi.sizeof("struct rdt_ps_table_opts")
        opts.dim, opts.rows, opts.seed = self.dim, self.rows, self.seed
        self.rule._fill(opts.rule)
        opts.consistency = CONSISTENCIES.index(self.consistency)
        opts.init = getattr(lib, f"RDT_PS_INIT_{self.init.kind}")
        opts.init_from, opts.init_to = float(self.init.first), float(self.init.second)
        opts.memory_bytes, opts.spill = self.memory, spill
        if self.keys == "int64":
            opts.keys, opts.evict = lib.RDT_PS_KEYS_INT64, EVICT.index(self.evict)
            opts.admit_after, opts.expire_after = self.admit_after, self.expire_after
            opts.capacity = self.capacity
        return opts

    def to_json(self) -> dict[str, object]:
        """Return it for a request."""
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, object]) -> TableSpec:
        """Read a request; raises KeyError, TypeError or InvalidArgumentError for wrong ones."""
        rule, init = data["rule"], data["init"]
        if not isinstance(rule, dict) or not isinstance(init, dict):
            raise TypeError("a table's rule and init are objects")
        rest = {key: data[key] for key in data if key not in ("rule", "init")}
        return TableSpec(rule=rule_of(rule), init=Init(**init), **rest)  # type: ignore[arg-type]


def _kept(
    keys: Keys | str, spill: str | os.PathLike[str] | None, memory: int | None
) -> dict[str, Any]:
    """Check how a table's rows come, go and are kept; return the fields of a TableSpec."""
    if not isinstance(keys, Keys) and keys not in ("dense", "int64"):
        raise invalid("table", f"keys={keys!r} is not 'dense', 'int64' or ps.Keys()")
    if (spill is None) != (memory is None):
        raise invalid("table", "spill and memory come together: a folder, and bytes")
    folder = "" if spill is None else os.fspath(spill)
    if not isinstance(folder, str) or "\0" in folder or len(folder) > 1000:
        raise invalid("table", f"spill={spill!r} is not a path of up to 1,000 characters")
    growth = keys if isinstance(keys, Keys) else Keys()
    return {
        "keys": "dense" if keys == "dense" else "int64",
        **{name: value or 0 for name, value in asdict(growth).items()},
        "spill": folder,
        "memory": 0 if memory is None else _from_one(memory, 1 << 60, "table", "memory"),
    }


def table_spec(
    name: str,
    dim: int,
    rows: int | None,
    rule: Rule | PythonRule,
    init: Init,
    seed: int,
    keys: Keys | str,
    spill: str | os.PathLike[str] | None,
    memory: int | None,
    consistency: str,
) -> TableSpec:
    """Check a table's description; the seed of its rows depends on its name too."""
    if not isinstance(name, str) or not name or len(name) > 200:
        raise invalid("table", f"name={name!r} is not a text of 1 to 200 characters")
    if not isinstance(rule, (Rule, PythonRule)):
        raise invalid("table", f"rule={rule!r} is a {type(rule).__name__}, not a ps rule")
    if not isinstance(init, Init) or not hasattr(lib, f"RDT_PS_INIT_{init.kind}"):
        raise invalid("table", f"init={init!r} is not ps.zeros(), ps.uniform() or another one")
    if consistency not in CONSISTENCIES:
        raise invalid("table", f"consistency={consistency!r} is not 'relaxed' or 'row'")
    seed = whole_in(seed, U32_MAX, "table", "seed")
    dim = whole_in(dim, lib.RDT_PS_DIM_MAX, "table", "dim")
    kept = _kept(keys, spill, memory)
    if (kept["keys"] == "dense") != (rows is not None):
        raise invalid("table", f"rows={rows!r} with keys={keys!r}: only dense tables have rows")
    return TableSpec(
        name=name,
        dim=dim,
        rows=0 if rows is None else whole_in(rows, 1 << 48, "table", "rows"),
        rule=described(rule, dim) if isinstance(rule, PythonRule) else rule,
        init=init,
        seed=seed << 32 | zlib.crc32(name.encode()),
        consistency=consistency,
        **kept,
    )
