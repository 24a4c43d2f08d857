"""Measure the machine of a group: collectives at two sizes, speeds, and what can be hidden."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Sequence
from time import perf_counter_ns, thread_time_ns

import torch
import torch.distributed as dist

from graph_analysis import Cost, Device, Link, Machine, fit_line
from graph_analysis.machine import check_machine
from rdmatensor._backend.groups import backend_of
from rdmatensor.parallel._ranks import Ranks, refuse
from rdmatensor.parallel._timing import timed
from rdmatensor.parallel._ways import way_costs

_SMALL_BYTES, _LARGE_BYTES = 1 << 16, 4 << 20  # of whole tensors
_SMALL_REPEATS, _LARGE_REPEATS = 7, 3
_SIDE = 256  # of the matrices whose product tells a processor's speed
_SPEED_NS, _SPEED_REPEATS = 100_000_000, 3
_EVEN_PERMILLE = 1200  # other processes make equal ranks differ by as much
_UNITS = {"": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
_MIB = 1 << 20


def measure_machine(
    group: dist.ProcessGroup | None = None, *, memory: str | int | None = None
) -> Machine:
    """Measure what the ranks of a group can do. Takes about a second, more on slow links.

    Blocks until all ranks of the group have called it. All ranks time the collectives together, at
    64 KiB and 4 MiB; the slowest rank's time counts. With the rdmatensor backend the machine also
    has the costs that its group chooses algorithms by.

    Args:
        group: None is the default group. Its CPU backend may be any.
        memory: The limit that a step must keep on this rank, as "2GiB" or in bytes; None is none.
            Ranks may have different ones.

    Returns:
        The machine, the same on all ranks. graph_analysis.machine_to_json() stores it.

    Raises:
        InvalidArgumentError: memory is not a size such as "2GiB".

    Example:
        >>> machine = measure_machine()
        >>> machine.world_size
        1
    """
    ranks = Ranks(group)
    limit = ranks.together(lambda: memory_bytes(memory))
    costs = _collective_costs(ranks)
    alphas_ns = {cost.name.partition(".")[0]: cost.value for cost in costs if "alpha" in cost.name}
    costs += [_overlap(ranks), *way_costs(ranks, alphas_ns)]
    links, table = _library_costs(ranks)
    speed, share = _speed(ranks)
    own = (socket.gethostname(), len(os.sched_getaffinity(0)), limit, speed)
    fastest_share = max(ranks.all((speed, share)))[1]
    costs.append(Cost("processor_permille", fastest_share))
    machine = Machine(
        devices=_devices(ranks.all(own)),
        links=links,
        costs=tuple(sorted([*costs, *table], key=lambda cost: cost.name)),
    )
    check_machine(machine)
    ranks.check_same("the measured machine", machine.fingerprint())
    return machine


def memory_bytes(memory: str | int | None) -> int:
    """The bytes of a size as text, 0 for None; InvalidArgumentError for anything else."""
    if memory is None:
        return 0
    found = re.fullmatch(r"(\d+)\s*([KMGT]?i?B?)", str(memory))
    if found is None or found[2] not in _UNITS or isinstance(memory, bool) or int(found[1]) < 1:
        refuse("measure_machine", f'memory {memory!r} is not a size; expected for example "2GiB"')
    return int(found[1]) << _UNITS[found[2]]


def _devices(rows: Sequence[tuple[str, int, int, int]]) -> tuple[Device, ...]:
    """Of products a second, the slowest rank's count as 1000, and all if they are nearly equal."""
    slowest = min(speed for *_, speed in rows)
    speeds = [speed * 1000 // slowest for *_, speed in rows]
    is_even = max(speeds) < _EVEN_PERMILLE
    return tuple(
        Device(rank, host, cores, limit, 1000 if is_even else speed)
        for rank, ((host, cores, limit, _), speed) in enumerate(zip(rows, speeds, strict=True))
    )


def _collective_costs(ranks: Ranks) -> list[Cost]:
    costs: list[Cost] = []
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"):
        if name == "send" and ranks.size == 1:
            continue
        points = [
            _point(ranks, name, _SMALL_BYTES, _SMALL_REPEATS),
            _point(ranks, name, _LARGE_BYTES, _LARGE_REPEATS),
        ]
        alpha_ns, beta_ps = fit_line(*points)
        costs += [Cost(f"{name}.alpha_ns", alpha_ns), Cost(f"{name}.beta_ps", beta_ps)]
    return costs


def _point(ranks: Ranks, name: str, size_bytes: int, repeats: int) -> tuple[int, int]:
    """The size of the whole tensor, and the median time of the collective."""
    items = size_bytes // 4 // ranks.size * ranks.size
    call = _collective(name, items, ranks)
    return items * 4, timed(ranks, call, repeats)


def _collective(name: str, items: int, ranks: Ranks) -> Callable[[], object]:
    """A call of a collective whose whole tensor has so many floats."""
    whole, part = torch.zeros(items), torch.zeros(items // ranks.size)
    other = torch.zeros(items)
    group = ranks.group
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "send": lambda: _send(whole, ranks),
    }
    return calls[name]


def _send(tensor: torch.Tensor, ranks: Ranks) -> None:
    """From the first rank to the last one."""
    ends = [dist.get_global_rank(ranks.group, place) for place in (0, ranks.size - 1)]
    if ranks.rank == 0:
        dist.send(tensor, ends[1], group=ranks.group)
    elif ranks.rank == ranks.size - 1:
        dist.recv(tensor, ends[0], group=ranks.group)


def _overlap(ranks: Ranks) -> Cost:
    """How much of a sum's time is hidden behind products that take as long."""
    items = _LARGE_BYTES // 4
    tensor, matrix = torch.zeros(items), torch.ones(_SIDE, _SIDE)
    sum_ns = timed(ranks, lambda: dist.all_reduce(tensor, group=ranks.group), _LARGE_REPEATS)
    one_ns = max(1, timed(ranks, lambda: matrix @ matrix, _SMALL_REPEATS))
    count = max(1, sum_ns // one_ns)

    def compute() -> None:
        for _ in range(count):
            torch.mm(matrix, matrix)

    def both() -> None:
        work = dist.all_reduce(tensor, group=ranks.group, async_op=True)
        compute()
        assert work is not None
        work.wait()

    compute_ns = timed(ranks, compute, _LARGE_REPEATS)
    both_ns = timed(ranks, both, _LARGE_REPEATS)
    hidden = (sum_ns + compute_ns - both_ns) * 1000 // max(1, min(sum_ns, compute_ns))
    return Cost("overlap_permille", min(1000, max(0, hidden)))


def _speed(ranks: Ranks) -> tuple[int, int]:
    """Products of matrices in a second while all ranks compute, and the share of a processor.

    The median of some tries. The share is in thousandths of the elapsed time.
    """
    matrix = torch.ones(_SIDE, _SIDE)
    rates: list[tuple[int, int]] = []
    for _ in range(_SPEED_REPEATS):
        ranks.barrier()
        began_ns, count, began_thread_ns = perf_counter_ns(), 0, thread_time_ns()
        while (spent_ns := perf_counter_ns() - began_ns) < _SPEED_NS or count < 1:
            torch.mm(matrix, matrix)
            count += 1
        share = (thread_time_ns() - began_thread_ns) * 1000 // spent_ns
        rates.append((max(1, count * 1_000_000_000 // spent_ns), min(1000, max(1, share))))
    return sorted(rates)[_SPEED_REPEATS // 2]


def _library_costs(ranks: Ranks) -> tuple[tuple[Link, ...], list[Cost]]:
    """The table by which the library chooses algorithms, and the path between all ranks."""
    try:
        text = backend_of(ranks.group)._collectives()
    except ValueError:  # another backend
        return (), []
    table = json.loads(text).get("costs")
    if table is None or ranks.size == 1:
        return (), []
    names = sorted(name for name, value in table.items() if isinstance(value, int))
    agreed = ranks.largest([table[name] for name in names])
    costs = [Cost(name, value) for name, value in zip(names, agreed, strict=True)]
    known = {cost.name: cost.value for cost in costs}
    path = table["between"]
    alpha_ns, beta_ps = known.get(f"{path}.alpha_ns", 0), known.get(f"{path}.beta_ps", 0)
    links = tuple(
        Link(source, target, path, alpha_ns, beta_ps * _MIB // 1000)
        for source in range(ranks.size)
        for target in range(ranks.size)
        if source != target
    )
    return links, costs
