"""Try every operation of torch.distributed with every data type: torchrun support_ranks.py OUT.

Rank 0 writes the table, as docs/reference/support_matrix.json has it. A cell has the types whose
results are those that each rank computes itself from all ranks' data.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

COLUMNS = ["types", "async", "coalesced"]
Op = dist.ReduceOp
CLASSES = {
    "bool": [torch.bool],
    "integers": [
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    ],
    "floats": [torch.float16, torch.bfloat16, torch.float32, torch.float64],
    "complex": [torch.complex64, torch.complex128],
}
REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
COUNT = 4


def data(dtype: torch.dtype, rank: int) -> torch.Tensor:
    """Return the tensor of a rank: small numbers, which each type has."""
    return torch.tensor([rank + 1, 2, rank, 0]).to(dtype)


def reduced(name: str, dtype: torch.dtype) -> torch.Tensor:
    """Return the reduction of both ranks' data, computed in wide types."""
    wide = torch.complex128 if dtype.is_complex else torch.float64
    first, second = (data(dtype, rank).to(wide) for rank in range(2))
    if name in ("BAND", "BOR", "BXOR"):
        whole = [one.to(torch.int64) for one in (first, second)]
        call = {"BAND": "bitwise_and", "BOR": "bitwise_or", "BXOR": "bitwise_xor"}[name]
        combined: torch.Tensor = getattr(torch, call)(*whole)
        return combined.to(dtype)
    if name == "AVG":
        mean = (first + second) / 2
        return (mean if dtype.is_complex or dtype.is_floating_point else mean.trunc()).to(dtype)
    calls: dict[str, Callable[..., torch.Tensor]] = {
        "SUM": torch.add,
        "PREMUL_SUM": lambda one, two: 2 * one + 2 * two,
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
    }
    return calls[name](first, second).to(dtype)


class Call:
    """One operation: begin(dtype, async_op) returns its Work or Works, and what must come out."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.peer = 1 - rank

    def reduction(self, call: str, name: str, dtype: torch.dtype, **how: Any) -> Any:
        op: Any = dist._make_nccl_premul_sum(2.0) if name == "PREMUL_SUM" else getattr(Op, name)
        mine, want = data(dtype, self.rank), reduced(name, dtype)
        if call == "all_reduce":
            return dist.all_reduce(mine, op, **how), mine, want
        if call == "reduce":
            work = dist.reduce(mine, 0, op, **how)
            return work, mine, want if self.rank == 0 else mine.clone()
        half = want.chunk(2)[self.rank]
        out = torch.empty_like(half)
        if call == "reduce_scatter":
            return dist.reduce_scatter(out, list(mine.chunk(2)), op, **how), out, half
        return dist.reduce_scatter_single(out, mine, op, **how), out, half

    def batch(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Exchange tensors by a batch of messages; return what came and what must have."""
        mine, want = data(dtype, self.rank), data(dtype, self.peer)
        found = torch.zeros_like(mine)
        send = dist.P2POp(dist.isend, mine, self.peer)
        for work in dist.batch_isend_irecv([send, dist.P2POp(dist.irecv, found, self.peer)]):
            work.wait()
        return found, want

    def move(self, call: str, dtype: torch.dtype, **how: Any) -> Any:
        if how.pop("is_batch", False):
            return self.batch(dtype)
        mine, theirs = data(dtype, self.rank), data(dtype, self.peer)
        both = torch.cat([data(dtype, 0), data(dtype, 1)])
        out, double = torch.zeros_like(mine), torch.zeros_like(both)
        first = self.rank == 0
        exchanged = torch.cat([data(dtype, rank).chunk(2)[self.rank] for rank in range(2)])
        calls: dict[str, Callable[[], Any]] = {
            "broadcast": lambda: (dist.broadcast(mine, 0, **how), mine, data(dtype, 0)),
            "all_gather": lambda: (
                (dist.all_gather(list(double.chunk(2)), mine, **how), double, both)
            ),
            "all_gather_single": lambda: (
                (dist.all_gather_single(double, mine, **how), double, both)
            ),
            "gather": lambda: (
                dist.gather(mine, list(double.chunk(2)) if first else None, **how),
                double,
                both if first else double.clone(),
            ),
            "scatter": lambda: (
                dist.scatter(out, list(both.chunk(2)) if first else None, **how),
                out,
                mine,
            ),
            "all_to_all": lambda: (
                dist.all_to_all(list(out.chunk(2)), list(mine.chunk(2)), **how),
                out,
                exchanged,
            ),
            "all_to_all_single": lambda: (
                (dist.all_to_all_single(out, mine, **how), out, exchanged)
            ),
            "send, recv": lambda: (self.message(mine, out, **how), out, theirs),
        }
        return calls[call]()

    def message(self, mine: torch.Tensor, out: torch.Tensor, *, async_op: bool) -> Any:
        if async_op:
            return [dist.isend(mine, self.peer), dist.irecv(out, self.peer)]
        for turn in range(2):
            if turn == self.rank:
                dist.send(mine, self.peer)
            else:
                dist.recv(out, self.peer)
        return None


COALESCED = {"all_reduce", "all_gather_single", "reduce_scatter_single", "send, recv"}
MOVES = (
    *("send, recv", "broadcast", "all_gather", "all_gather_single", "gather", "scatter"),
    *("all_to_all", "all_to_all_single"),
)


def works(begin: Callable[..., Any], call: str, column: str) -> bool:
    """Whether an operation comes out right; it must fail before it begins, or not at all."""
    try:
        if column == "coalesced":
            return _coalesced(begin, call)
        works_of, found, want = begin(async_op=column == "async")
    except (RuntimeError, TypeError, ValueError):
        return False
    for work in works_of if isinstance(works_of, list) else [works_of]:
        if work is not None:
            work.wait()
    return torch.equal(found, want)


def _coalesced(begin: Callable[..., Any], call: str) -> bool:
    if call == "send, recv":
        found, want = begin(is_batch=True)
        return torch.equal(found, want)
    with dist._coalescing_manager():
        (_, found, want), (_, other, _) = begin(async_op=False), begin(async_op=False)
    return torch.equal(found, want) and torch.equal(other, want)


def words(dtypes: list[torch.dtype]) -> str:
    """Return the classes of types that are whole, and the rest by name."""
    every = [one for members in CLASSES.values() for one in members]
    if len(dtypes) == len(every):
        return "all"
    whole = [name for name, members in CLASSES.items() if set(members) <= set(dtypes)]
    rest = [one for one in dtypes if not any(one in CLASSES[name] for name in whole)]
    return ", ".join([*whole, *(str(one).removeprefix("torch.") for one in rest)]) or "none"


def row(call: str, begin: Callable[..., Any]) -> dict[str, str]:
    cells = {}
    tried = [one for members in CLASSES.values() for one in members]
    for column in COLUMNS:
        if column == "coalesced" and call not in COALESCED:
            cells[column] = "-"
            continue
        good = [
            dtype
            for dtype in tried
            if works(lambda dtype=dtype, **how: begin(dtype, **how), call, column)
        ]
        cells[column] = words(good)
        if column == "types":
            tried = good  # an error inside the manager leaves torch's own state behind
    return cells


def main() -> None:
    dist.init_process_group("rdmatensor")
    calls = Call(dist.get_rank())
    rows = {}
    for name in MOVES:
        rows[name] = row(name, lambda dtype, name=name, **how: calls.move(name, dtype, **how))
    for call in ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_single"):
        for name in REDUCTIONS:
            rows[f"{call} {name}"] = row(
                call,
                lambda dtype, call=call, name=name, **how: calls.reduction(
                    call, name, dtype, **how
                ),
            )
    dist.barrier()
    if dist.get_rank() == 0:
        table = json.dumps({"columns": COLUMNS, "rows": rows}, indent=1) + "\n"
        Path(sys.argv[1]).write_text(table, encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
