"""What all processes of a cluster agree on, and a table's description in C."""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass

from rdmatensor._native.arguments import U32_MAX, invalid, whole_in
from rdmatensor._native.ffi import CData, ffi, lib
from rdmatensor.ps.modes import Mode, name_of
from rdmatensor.ps.rules import Init, Rule


@dataclass(frozen=True)
class Shape:
    """The cluster: roles by rank, the mode, and the slots of requests.

    Ranks 0 to workers - 1 are workers, the others servers.
    """

    workers: int
    servers: int
    mode: Mode
    slots: int
    slot_bytes: int
    goes_on: bool

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

    def struct(self) -> CData:
        """Make the struct rdt_ps_table_opts *."""
        opts = ffi.new("struct rdt_ps_table_opts *")
        opts.struct_size = ffi.sizeof("struct rdt_ps_table_opts")
        opts.dim, opts.rows, opts.seed = self.dim, self.rows, self.seed
        self.rule._fill(opts.rule)
        opts.init = getattr(lib, f"RDT_PS_INIT_{self.init.kind}")
        opts.init_from, opts.init_to = float(self.init.first), float(self.init.second)
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
        rest = {key: data[key] for key in ("name", "dim", "rows", "seed")}
        return TableSpec(rule=Rule(**rule), init=Init(**init), **rest)  # type: ignore[arg-type]


def table_spec(name: str, dim: int, rows: int, rule: Rule, init: Init, seed: int) -> TableSpec:
    """Check a table's description; the seed of its rows depends on its name too."""
    if not isinstance(name, str) or not name or len(name) > 200:
        raise invalid("table", f"name={name!r} is not a text of 1 to 200 characters")
    if not isinstance(rule, Rule):
        raise invalid("table", f"rule={rule!r} is a {type(rule).__name__}, not a ps rule")
    if not isinstance(init, Init) or not hasattr(lib, f"RDT_PS_INIT_{init.kind}"):
        raise invalid("table", f"init={init!r} is not ps.zeros(), ps.uniform() or another one")
    seed = whole_in(seed, U32_MAX, "table", "seed")
    return TableSpec(
        name=name,
        dim=whole_in(dim, lib.RDT_PS_DIM_MAX, "table", "dim"),
        rows=whole_in(rows, 1 << 48, "table", "rows"),
        rule=rule,
        init=init,
        seed=seed << 32 | zlib.crc32(name.encode()),
    )
