"""The rest of torch.distributed's surface: the same calls on this backend and on Gloo."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from roles_collectives import TIMEOUT, Comparison

import rdmatensor

Case = tuple[str, Callable[..., list[torch.Tensor]]]
Group = dist.ProcessGroup | None
Op = dist.ReduceOp
CPU = torch.device("cpu")


def group_of(group: Group) -> dist.ProcessGroup:
    chosen = dist.group.WORLD if group is None else group
    assert chosen is not None
    return chosen


def coalesced_cases(job: Comparison) -> Iterator[Case]:
    counts = (3, 0, 4096, 17)

    def all_reduce(group: Group) -> list[torch.Tensor]:
        tensors = [job.data(torch.int64, count, count) for count in counts]
        with dist._coalescing_manager(group, async_ops=True) as works:
            for tensor in tensors:
                dist.all_reduce(tensor, op=Op.MAX, group=group)
        works.wait()
        return tensors

    def gather_into(group: Group) -> list[torch.Tensor]:
        outputs = [torch.zeros(job.world * count) for count in counts]
        with dist._coalescing_manager(group):
            for count, output in zip(counts, outputs, strict=True):
                data = job.data(torch.float32, count, count)
                dist.all_gather_into_tensor(output, data, group=group)
        return outputs

    def reduce_scatter(group: Group) -> list[torch.Tensor]:
        outputs = [torch.zeros(count) for count in counts]
        with dist._coalescing_manager(group):
            for count, output in zip(counts, outputs, strict=True):
                data = job.data(torch.float32, count * job.world, count)
                dist.reduce_scatter_tensor(output, data, group=group)
        return outputs

    def gather_lists(group: Group) -> list[torch.Tensor]:
        mine = [job.data(torch.float32, count, count) for count in counts]
        lists = [[torch.zeros(count) for count in counts] for _ in range(job.world)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # deprecated, and still there
            dist.all_gather_coalesced(lists, mine, group=group)
        return [tensor for tensors in lists for tensor in tensors]

    calls = [all_reduce, gather_into, reduce_scatter, gather_lists]
    yield from ((f"coalesced {call.__name__}", call) for call in calls)


def batch_cases(job: Comparison) -> Iterator[Case]:
    after, before = (job.rank + 1) % job.world, (job.rank - 1) % job.world

    def batch(group: Group) -> list[torch.Tensor]:
        received = [torch.zeros(count) for count in (0, 5, 70_001)]
        operations = []
        for tag, tensor in enumerate(received):
            data = job.data(torch.float32, tensor.numel(), tag)
            operations.append(dist.P2POp(dist.irecv, tensor, before, group, tag=tag))
            operations.append(dist.P2POp(dist.isend, data, after, group, tag=tag))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return received

    yield "batch_isend_irecv", batch


def renamed_cases(job: Comparison) -> Iterator[Case]:
    """torch 2.13 has new names for three collectives; both must work, on the group too."""
    count = 257

    def all_gather_single(group: Group) -> list[torch.Tensor]:
        output = torch.zeros(job.world * count)
        dist.all_gather_single(output, job.data(torch.float32, count), group=group)
        return [output]

    def reduce_scatter_single(group: Group) -> list[torch.Tensor]:
        output = torch.zeros(count)
        data = job.data(torch.float32, count * job.world)
        dist.reduce_scatter_single(output, data, group=group)
        return [output]

    def on_the_group(group: Group) -> list[torch.Tensor]:
        chosen = group_of(group)
        gathered, scattered = torch.zeros(job.world * count), torch.zeros(count)
        exchanged = torch.zeros(job.world * count)
        whole = job.data(torch.float32, count * job.world)
        chosen.all_gather_single(gathered, whole[:count]).wait()
        chosen.reduce_scatter_single(scattered, whole).wait()
        chosen.all_to_all_single(exchanged, whole, [], []).wait()
        return [gathered, scattered, exchanged]

    def old_names_on_the_group(group: Group) -> list[torch.Tensor]:
        chosen = group_of(group)
        gathered, exchanged = torch.zeros(job.world * count), torch.zeros(job.world * count)
        whole = job.data(torch.float32, count * job.world)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            chosen._allgather_base(gathered, whole[:count]).wait()
            chosen.alltoall_base(exchanged, whole, [], []).wait()
        return [gathered, exchanged]

    calls = [all_gather_single, reduce_scatter_single, on_the_group, old_names_on_the_group]
    yield from ((call.__name__, call) for call in calls)


def functional_cases(job: Comparison) -> Iterator[Case]:
    def everything(group: Group) -> list[torch.Tensor]:
        chosen = group_of(group)
        data = job.data(torch.float32, 6 * job.world)
        halves = [3 + (job.rank + peer) % 2 for peer in range(job.world)]  # symmetric
        uneven = job.data(torch.float32, sum(halves))
        results = [
            functional.all_reduce(data, "sum", chosen),
            functional.all_gather_tensor(data, 0, chosen),
            functional.reduce_scatter_tensor(data, "sum", 0, chosen),
            functional.broadcast(data, 0, chosen),
            functional.all_to_all_single(uneven, halves, halves, chosen),
            *functional.all_reduce_coalesced([data, data * 2], "max", chosen),
            *functional.all_gather_into_tensor_coalesced([data, data * 2], chosen),
            *functional.reduce_scatter_tensor_coalesced([data, data * 2], "sum", [0, 0], chosen),
        ]
        return [torch.as_tensor(result).clone() for result in results]

    yield "functional", everything


def sparse_cases(job: Comparison) -> Iterator[Case]:
    def reduced(entries: int, dtype: torch.dtype, is_hybrid: bool) -> Callable[..., Any]:
        def call(group: Group) -> list[torch.Tensor]:
            generator = torch.Generator().manual_seed(job.rank)
            indices = torch.randint(0, 6, (2, entries), generator=generator)
            shape = (entries, 3) if is_hybrid else (entries,)
            values = torch.randint(0, 5, shape, generator=generator).to(dtype)
            size = (6, 6, 3) if is_hybrid else (6, 6)
            tensor = torch.sparse_coo_tensor(indices, values, size)
            dist.all_reduce(tensor, group=group)
            return [tensor.to_dense()]

        return call

    for entries in (0, 4 * job.rank, 9):  # none at all, of some ranks only, of all
        for dtype in (torch.float32, torch.int64):
            for is_hybrid in (False, True):
                name = f"sparse all_reduce {entries} {dtype} {is_hybrid}"
                yield name, reduced(entries, dtype, is_hybrid)


def premul_cases(job: Comparison) -> Iterator[Case]:
    """Gloo lacks PREMUL_SUM: it gets the product, and sums."""
    factors: list[float | torch.Tensor] = [job.rank + 0.5, torch.tensor([2.0 - job.rank])]
    count = 1023

    def reductions(factor: float | torch.Tensor) -> Callable[..., list[torch.Tensor]]:
        def call(group: Group) -> list[torch.Tensor]:
            is_ours = group is None
            op = dist._make_nccl_premul_sum(factor) if is_ours else Op.SUM
            times: float | torch.Tensor = 1.0 if is_ours else factor
            whole = job.data(torch.float32, count * job.world) * times
            before = whole.clone()
            everywhere, at_root = whole[:count].clone(), whole[:count].clone()
            scattered, of_list = torch.zeros(count), torch.zeros(count)
            dist.all_reduce(everywhere, op, group)
            dist.reduce(at_root, 0, op, group)
            dist.reduce_scatter_single(scattered, whole, op, group)
            dist.reduce_scatter(of_list, list(whole.clone().chunk(job.world)), op, group)
            if not torch.equal(whole, before):
                raise AssertionError("the input was changed")
            return [everywhere, scattered, of_list, *([at_root] if job.rank == 0 else [])]

        return call

    for factor in factors:
        yield f"PREMUL_SUM {factor}", reductions(factor)


def compare_with_gloo(rank: int, world: int) -> dict[str, object]:
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    job = Comparison(rank, world, dist.new_group(backend="gloo", timeout=TIMEOUT))
    kinds = [coalesced_cases, batch_cases, renamed_cases, functional_cases, sparse_cases]
    for cases in (*kinds, premul_cases):
        for name, call in cases(job):
            job.check(name, call)
    dist.barrier()
    dist.destroy_process_group()
    return {"compared": job.compared, "different": job.different}


def everything_in_a_batch(rank: int, world: int) -> dict[str, object]:
    """Collectives and messages between start and end of coalescing: one Work, its Future."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    after, before = (rank + 1) % world, (rank - 1) % world
    shared, received = torch.full((50_001,), float(rank)), torch.zeros(7)
    with dist._coalescing_manager(device=CPU, async_ops=True) as manager:
        dist.broadcast(shared, 0, async_op=True)
        dist.irecv(received, before)
        dist.isend(torch.full((7,), float(rank)), after)
    (work,) = manager.works
    outputs = work.get_future().wait()
    work.wait()
    result: dict[str, object] = {
        "shared": bool(shared.eq(0).all()),
        "received": bool(received.eq(before).all()),
        "outputs": [output.numel() for output in outputs],
        "completed": work.is_completed() and work.is_success(),
        "source": work._source_rank() == before,
    }
    with dist._coalescing_manager(device=CPU, async_ops=True) as manager:
        pass
    result["empty"] = manager.works[0].is_completed() and manager.works[0].get_future().wait() == []
    backend: Any = group_of(None)._get_backend(CPU)
    result["errors"] = errors_of(backend._end_coalescing)
    backend._start_coalescing()
    result["errors"] += errors_of(backend._start_coalescing)
    backend._end_coalescing()
    dist.barrier()
    dist.destroy_process_group()
    return result


def errors_of(call: Callable[[], object]) -> list[str]:
    try:
        call()
    except RuntimeError as error:
        return [str(error).splitlines()[0]]
    return []


def batch_names_what_failed(rank: int, _world: int) -> str:
    """A receive in a batch that nobody answers ends at the time-out, with its own name."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    text = ""
    if rank == 0:
        rdmatensor.distributed.set_timeout(timedelta(seconds=0.3))
        operations = [dist.P2POp(dist.irecv, torch.zeros(3), 1, tag=77)]
        (work,) = dist.batch_isend_irecv(operations)
        text = errors_of(work.wait)[0]
        rdmatensor.distributed.set_timeout(TIMEOUT)
    dist.barrier()
    dist.destroy_process_group()
    return text


def groups_and_threads(rank: int, world: int) -> list[str]:
    """Overlapping groups, each used by a thread of its own, all at once."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    sets = [list(range(world)), list(range(world - 1)), list(range(1, world)), [0, world - 1]]
    made = [(ranks, dist.new_group(ranks)) for ranks in sets]
    problems: list[str] = []

    def work_in(number: int, ranks: list[int], group: Any) -> None:
        for turn in range(30):
            mine = torch.full((1 + 501 * turn,), float(rank + number))
            works = [dist.all_reduce(mine, group=group, async_op=True) for _ in range(1)]
            gathered = [torch.zeros(3) for _ in ranks]
            dist.all_gather(gathered, torch.full((3,), float(rank * turn)), group=group)
            for work in works:
                work.wait()
            if not mine.eq(sum(other + number for other in ranks)).all():
                problems.append(f"sum in {ranks}, turn {turn}: {mine[0]}")
            if [float(part[0]) for part in gathered] != [other * turn for other in ranks]:
                problems.append(f"gathered in {ranks}, turn {turn}")

    threads = [
        threading.Thread(target=work_in, args=(number, ranks, group))
        for number, (ranks, group) in enumerate(made)
        if rank in ranks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dist.barrier()
    dist.destroy_process_group()
    return problems


def missing_ranks_are_named(rank: int, world: int) -> dict[str, list[str]]:
    """monitored_barrier() without rank 1; a limit too short even for the first connection."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    texts = {}
    for backend, door in (
        ("rdmatensor", rdmatensor.distributed.monitored_barrier),
        ("gloo", dist.monitored_barrier),
    ):
        for name, limit_s, waits_for_all in (
            ("short", 0.001, False),
            ("long", 0.3, False),
            ("all", 0.3, True),
        ):
            if (backend, name) == ("gloo", "short"):
                continue  # Gloo's others may wait for a root that has given up, for all of TIMEOUT
            group = dist.new_group(backend=backend, timeout=TIMEOUT)
            if rank != 1:
                arguments = (group, timedelta(seconds=limit_s), waits_for_all)
                texts[f"{backend} {name}"] = errors_of(partial(door, *arguments))
            dist.barrier()
        everybody = dist.new_group(backend=backend, timeout=TIMEOUT)
        texts[f"{backend} nobody"] = errors_of(partial(door, everybody))
    dist.barrier()
    dist.destroy_process_group()
    return texts
