"""Every dtype through every reduction and move, against what NumPy makes of all ranks' data.

Gloo has no int16 and none of the wider unsigned integers. Integers go over their whole range, so
that sums and products wrap; floats are small whole numbers and their halves, which are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from roles_collectives import TIMEOUT

Op = dist.ReduceOp
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, *UNSIGNED]
COMPLEX = [torch.complex64, torch.complex128]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
REDUCTIONS: dict[Any, np.ufunc] = {
    Op.SUM: np.add,
    Op.PRODUCT: np.multiply,
    Op.MIN: np.minimum,
    Op.MAX: np.maximum,
    Op.BAND: np.bitwise_and,
    Op.BOR: np.bitwise_or,
    Op.BXOR: np.bitwise_xor,
}
COUNTS = [1, 1023, 70_001]  # one message, a board, in parts
Reduce = Callable[[Any, torch.Tensor], Iterator[tuple[str, torch.Tensor]]]
FACTORS: dict[str, list[float | torch.Tensor]] = {
    "whole": [3.0, torch.tensor([2.0]), torch.tensor(2)],
    "any": [0.5, 1.5, torch.tensor([0.5]), torch.tensor(2.5, dtype=torch.float64)],
}
NOT_OF_INTEGERS = [0.5, float("nan"), 1e30, torch.tensor([0.5]), torch.tensor(1j)]


@dataclass
class Checks:
    rank: int
    world: int
    made: int = 0
    wrong: list[str] = field(default_factory=list)

    def equal(self, name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
        self.made += 1
        if found.dtype != expected.dtype or not torch.equal(found, expected):
            self.wrong.append(f"{name}: {found.flatten()[:4]} for {expected.flatten()[:4]}")

    def data_of_all(self, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
        """Return every rank's tensor; each rank can make all."""
        return [values(dtype, count, rank) for rank in range(self.world)]

    def reduced(self, op: Any, whole: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, int]]:
        """Yield what each call leaves here, and the block of the sum that it must be, or -1."""
        everywhere, at_root, coalesced = whole.clone(), whole.clone(), [whole.clone() for _ in "ab"]
        dist.all_reduce(everywhere, op)
        yield "all_reduce", everywhere, -1
        dist.reduce(at_root, self.world - 1, op)
        if self.rank == self.world - 1:
            yield "reduce", at_root, -1
        with dist._coalescing_manager():
            for tensor in coalesced:
                dist.all_reduce(tensor, op)
        yield "coalesced", coalesced[1], -1
        of_tensor, of_list = (torch.zeros_like(whole.chunk(self.world)[0]) for _ in "ab")
        dist.reduce_scatter_single(of_tensor, whole.clone(), op)
        yield "reduce_scatter_single", of_tensor, self.rank
        dist.reduce_scatter(of_list, [part.clone() for part in whole.chunk(self.world)], op)
        yield "reduce_scatter", of_list, self.rank

    def compare(self, name: str, op: Any, whole: torch.Tensor, want: torch.Tensor) -> None:
        for call, found, block in self.reduced(op, whole):
            expected = want if block < 0 else want.chunk(self.world)[block]
            self.equal(f"{call} {name} {whole.dtype} {whole.numel()}", found, expected)


def values(dtype: torch.dtype, count: int, rank: int) -> torch.Tensor:
    generator = np.random.default_rng([rank, count])
    if dtype in INTEGERS:
        kind = str(dtype).removeprefix("torch.")
        limits = np.iinfo(kind)
        drawn = generator.integers(limits.min, limits.max, count, dtype=kind, endpoint=True)
        return torch.from_numpy(drawn)
    if dtype == torch.bool:
        return torch.from_numpy(generator.integers(0, 2, count).astype(bool))
    real = torch.from_numpy(generator.integers(-3, 4, count).astype("float64"))
    return (torch.complex(real, real.flip(0)) if dtype.is_complex else real).to(dtype)


def reductions(checks: Checks) -> None:
    for dtype in (*INTEGERS, torch.bool):
        for count in COUNTS:
            everyone = checks.data_of_all(dtype, count * checks.world)
            stacked = np.stack([tensor.numpy() for tensor in everyone])
            for op, function in REDUCTIONS.items():
                want = torch.from_numpy(function.reduce(stacked, axis=0, dtype=stacked.dtype))
                checks.compare(str(op), op, everyone[checks.rank], want)
            if dtype in INTEGERS:
                average = truncated(np.add.reduce(stacked, dtype=stacked.dtype), checks.world)
                checks.compare("AVG", Op.AVG, everyone[checks.rank], average)
    for dtype in COMPLEX:  # torch allows sums of them, and averages
        for count in COUNTS:
            everyone = checks.data_of_all(dtype, count * checks.world)
            total = torch.stack(everyone).sum(0)
            checks.compare("SUM", Op.SUM, everyone[checks.rank], total)
            # The divisor goes to both parts, where a quotient of two complex numbers rounds more.
            average = torch.view_as_complex(torch.view_as_real(total) / checks.world)
            checks.compare("AVG", Op.AVG, everyone[checks.rank], average)


def truncated(total: Any, divisor: int) -> torch.Tensor:
    """Return the quotients, rounded toward zero, of a NumPy array of integers."""
    by = total.dtype.type(divisor)
    floor = total // by
    return torch.from_numpy(floor + ((total % by != 0) & (total < 0)).astype(total.dtype))


def products(checks: Checks) -> None:
    """PREMUL_SUM: everybody's data times the own factor."""
    for dtype in (*FLOATS, *COMPLEX, *INTEGERS):
        kinds = ["whole"] if dtype in INTEGERS else ["whole", "any"]
        for factor in (factor for kind in kinds for factor in FACTORS[kind]):
            everyone = checks.data_of_all(dtype, 1023 * checks.world)
            number = (
                np.dtype(str(dtype).removeprefix("torch.")).type(float(factor)).item()
                if (dtype in INTEGERS)
                else float(factor)
            )
            stacked = torch.stack([times(tensor, number) for tensor in everyone])
            op = dist._make_nccl_premul_sum(factor)
            checks.compare(f"PREMUL_SUM {factor}", op, everyone[checks.rank], summed(stacked))


def times(tensor: torch.Tensor, number: float) -> torch.Tensor:
    if tensor.dtype in INTEGERS:  # NumPy's product wraps as torch's does, for every dtype
        array = tensor.numpy()
        return torch.from_numpy(array * np.array(number, array.dtype))
    return tensor * number


def summed(stacked: torch.Tensor) -> torch.Tensor:
    if stacked.dtype in INTEGERS:
        array = stacked.numpy()
        return torch.from_numpy(np.add.reduce(array, axis=0, dtype=array.dtype))
    return stacked.sum(0)


def refusals(checks: Checks) -> None:
    """Factors that a dtype cannot hold: refused before anything is sent, on every rank alike."""
    wanted = [(dtype, factor) for dtype in (*INTEGERS, torch.bool) for factor in NOT_OF_INTEGERS]
    wanted += [(dtype, torch.tensor(1j)) for dtype in FLOATS]
    wanted += [(dtype, -1.0) for dtype in UNSIGNED]
    for dtype, factor in wanted:
        whole = torch.ones(2 * checks.world, dtype=dtype)
        op = dist._make_nccl_premul_sum(factor)
        number = f"{complex(factor).real:g}" if complex(factor).imag == 0 else "(0,1)"
        words = f"tensors of {NAMES[dtype]} cannot be multiplied with {number}, "
        for call in (
            lambda tensor, op=op: dist.all_reduce(tensor, op),
            lambda tensor, op=op: dist.reduce(tensor, 0, op),
            lambda tensor, op=op: dist.reduce_scatter_single(tensor[:2].clone(), tensor, op),
        ):
            checks.made += 1
            try:
                call(whole)
                checks.wrong.append(f"{dtype} times {factor} was not refused")
            except TypeError as error:
                if words not in str(error):
                    checks.wrong.append(f"{dtype} times {factor}: {error}")
        checks.equal(f"{dtype} untouched", whole, torch.ones_like(whole))
    try:
        dist.all_reduce(torch.ones(3, dtype=torch.bool), Op.AVG)
        checks.wrong.append("AVG of bool was not refused")
    except ValueError as error:
        if "avg is not defined for" not in str(error):
            checks.wrong.append(f"AVG of bool: {error}")


NAMES = {  # as torch's C++ calls them
    torch.uint8: "Byte",
    torch.uint16: "UInt16",
    torch.uint32: "UInt32",
    torch.uint64: "UInt64",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.bool: "Bool",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.float32: "Float",
    torch.float64: "Double",
}


def moves(checks: Checks) -> None:
    rank, world, root = checks.rank, checks.world, checks.world // 2
    for dtype in (torch.int16, *UNSIGNED[1:], *COMPLEX):
        for count in (0, *COUNTS):
            everyone = checks.data_of_all(dtype, count * world)
            mine, name = everyone[rank], f"{dtype} {count}"
            blocks = [
                list(tensor.chunk(world)) if count else [tensor] * world for tensor in everyone
            ]
            shared = mine.clone()
            dist.broadcast(shared, root)
            checks.equal(f"broadcast {name}", shared, everyone[root])
            gathered = torch.zeros(world * mine.numel(), dtype=dtype)
            dist.all_gather_single(gathered, mine)
            checks.equal(f"all_gather_single {name}", gathered, torch.cat(everyone))
            parts = [torch.zeros_like(mine) for _ in range(world)]
            dist.all_gather(parts, mine)
            checks.equal(f"all_gather {name}", torch.cat(parts), torch.cat(everyone))
            parts = [torch.zeros_like(mine) for _ in range(world)] if rank == root else []
            dist.gather(mine, parts or None, root)
            if rank == root:
                checks.equal(f"gather {name}", torch.cat(parts), torch.cat(everyone))
            part = torch.zeros_like(blocks[rank][0])
            dist.scatter(part, blocks[root] if rank == root else None, root)
            checks.equal(f"scatter {name}", part, blocks[root][rank])
            swapped, want = torch.zeros_like(mine), torch.cat([one[rank] for one in blocks])
            dist.all_to_all_single(swapped, mine)
            checks.equal(f"all_to_all_single {name}", swapped, want)
            listed = [torch.zeros_like(block) for block in blocks[rank]]
            dist.all_to_all(listed, [block.clone() for block in blocks[rank]])
            checks.equal(f"all_to_all {name}", torch.cat(listed), want)
            received, before = torch.zeros_like(mine), (rank - 1) % world
            sending = dist.isend(mine, (rank + 1) % world)
            dist.recv(received, before)
            assert sending is not None
            sending.wait()
            checks.equal(f"send {name}", received, everyone[before])


def every_dtype(rank: int, world: int, *, part: str) -> dict[str, object]:
    """part: a function of this file."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    checks = Checks(rank, world)
    parts = {"reductions": reductions, "products": products, "refusals": refusals, "moves": moves}
    parts[part](checks)
    dist.barrier()
    dist.destroy_process_group()
    return {"made": checks.made, "wrong": checks.wrong}
