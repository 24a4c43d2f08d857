"""Every collective on this backend and on Gloo, in one job: the results must have the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ALL = [*INTEGERS, *FLOATS, torch.bool, torch.complex64]
MOVED_ONLY = [torch.int16, torch.complex128]  # Gloo has no int16
SMALL_SIZES = [0, 1, 5, 1023]
LARGE = (1 << 20) + 3
TIMEOUT = timedelta(seconds=60)
Op = dist.ReduceOp


@dataclass
class Comparison:
    """Runs each case on both groups and keeps what differs."""

    rank: int
    world: int
    gloo: dist.ProcessGroup
    compared: int = 0
    different: list[str] = field(default_factory=list)

    def check(
        self, name: str, call: Callable[[dist.ProcessGroup | None], list[torch.Tensor]]
    ) -> None:
        ours, theirs = call(None), call(self.gloo)
        self.compared += 1
        for mine, expected in zip(ours, theirs, strict=True):
            if mine.dtype != expected.dtype or not bits_equal(mine, expected):
                self.different.append(f"{name}: {mine.flatten()[:4]} for {expected.flatten()[:4]}")

    def data(self, dtype: torch.dtype, count: int, salt: int = 0) -> torch.Tensor:
        """Small whole numbers, so that sums and products are exact in every dtype."""
        generator = torch.Generator().manual_seed(1000 * self.rank + salt)
        values = torch.randint(0, 3, (count,), generator=generator)
        if dtype == torch.bool:
            return values > 0
        if dtype.is_complex:
            return torch.complex(values.double(), values.flip(0).double()).to(dtype)
        return values.to(dtype)


def bits_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.numel() == 0 or b.numel() == 0:
        return a.shape == b.shape
    if a.dtype == torch.bool:  # Gloo's sum of two true has a byte of 2; ours must be 0 or 1
        ours, theirs = a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
        return torch.equal(ours, (theirs != 0).to(torch.uint8))
    return torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8))


def for_oracle(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Gloo does not gather complex numbers; it gets them as pairs of real ones."""
    return torch.view_as_real(tensor) if group is not None and tensor.is_complex() else tensor


def reductions_of(dtype: torch.dtype) -> list[Op.RedOpType]:
    if dtype.is_complex:
        return [Op.SUM]
    common = [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX]
    return common if dtype.is_floating_point else [*common, Op.BAND, Op.BOR, Op.BXOR]


def reduce_cases(job: Comparison) -> Iterator[tuple[str, Callable[..., list[torch.Tensor]]]]:
    for dtype in ALL:
        for op in reductions_of(dtype):
            for count in SMALL_SIZES:
                yield from reduce_cases_of(job, dtype, op, count)
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        yield from reduce_cases_of(job, dtype, Op.SUM, LARGE)


def reduce_cases_of(
    job: Comparison, dtype: torch.dtype, op: Op.RedOpType, count: int
) -> Iterator[tuple[str, Callable[..., list[torch.Tensor]]]]:
    def all_reduce(group: dist.ProcessGroup | None) -> list[torch.Tensor]:
        tensor = job.data(dtype, count)
        dist.all_reduce(tensor, op=op, group=group)
        return [tensor]

    def reduce(group: dist.ProcessGroup | None) -> list[torch.Tensor]:
        tensor = job.data(dtype, count)
        dist.reduce(tensor, dst=job.world - 1, op=op, group=group)
        return [tensor] if job.rank == job.world - 1 else []

    yield f"all_reduce {op} {dtype} {count}", all_reduce
    yield f"reduce {op} {dtype} {count}", reduce


def move_cases(job: Comparison) -> Iterator[tuple[str, Callable[..., list[torch.Tensor]]]]:
    for dtype in ALL:
        for count in SMALL_SIZES:
            yield from move_cases_of(job, dtype, count)
    yield from move_cases_of(job, torch.float32, LARGE)


def move_cases_of(
    job: Comparison, dtype: torch.dtype, count: int
) -> Iterator[tuple[str, Callable[..., list[torch.Tensor]]]]:
    root = job.world // 2

    def broadcast(group: dist.ProcessGroup | None) -> list[torch.Tensor]:
        tensor = job.data(dtype, count)
        dist.broadcast(tensor, src=root, group=group)
        return [tensor]

    def all_gather(group: dist.ProcessGroup | None) -> list[torch.Tensor]:
        outputs = [torch.zeros(count, dtype=dtype) for _ in range(job.world)]
        dist.all_gather(outputs, job.data(dtype, count), group=group)
        return outputs

    def all_gather_into_tensor(group: dist.ProcessGroup | None) -> list[torch.Tensor]:
        output = torch.zeros(job.world * count, dtype=dtype)
        dist.all_gather_into_tensor(output, job.data(dtype, count), group=group)
        return [output]

    def gather(group: dist.ProcessGroup | None) -> list[torch.Tensor]:
        is_root = job.rank == root
        outputs = [torch.zeros(count, dtype=dtype) for _ in range(job.world)] if is_root else []
        dist.gather(
            for_oracle(job.data(dtype, count), group),
            [for_oracle(output, group) for output in outputs] if is_root else None,
            dst=root,
            group=group,
        )
        return outputs

    def scatter(group: dist.ProcessGroup | None) -> list[torch.Tensor]:
        is_root = job.rank == root
        inputs = [job.data(dtype, count, salt) for salt in range(job.world)] if is_root else None
        output = torch.zeros(count, dtype=dtype)
        dist.scatter(output, inputs, src=root, group=group)
        return [output]

    def all_to_all_single(group: dist.ProcessGroup | None) -> list[torch.Tensor]:
        output = torch.zeros(job.world * count, dtype=dtype)
        dist.all_to_all_single(output, job.data(dtype, job.world * count), group=group)
        return [output]

    calls = [broadcast, all_gather, all_gather_into_tensor, gather, scatter, all_to_all_single]
    yield from ((f"{call.__name__} {dtype} {count}", call) for call in calls)


def uneven_cases(job: Comparison) -> Iterator[tuple[str, Callable[..., list[torch.Tensor]]]]:
    def all_to_all_uneven(group: dist.ProcessGroup | None) -> list[torch.Tensor]:
        sent = [(job.rank + peer) % 3 for peer in range(job.world)]  # symmetric: also what arrives
        rows = job.data(torch.float32, 7 * sum(sent)).view(-1, 7)
        output = torch.zeros(sum(sent), 7)
        dist.all_to_all_single(output, rows, sent, sent, group=group)
        return [output]

    def reduce_scatter_tensor(group: dist.ProcessGroup | None) -> list[torch.Tensor]:
        output = torch.zeros(1023)
        dist.reduce_scatter_tensor(output, job.data(torch.float32, 1023 * job.world), group=group)
        return [output]

    def reduce_scatter(group: dist.ProcessGroup | None) -> list[torch.Tensor]:
        output = torch.zeros(511, dtype=torch.int64)
        inputs = [job.data(torch.int64, 511, salt) for salt in range(job.world)]
        dist.reduce_scatter(output, inputs, group=group)
        return [output]

    def coalesced(group: dist.ProcessGroup | None) -> list[torch.Tensor]:
        tensors = [job.data(torch.float32, count, count) for count in (3, 0, 4096, 17)]
        dist.all_reduce_coalesced(tensors, group=group)
        return tensors

    def objects(group: dist.ProcessGroup | None) -> list[torch.Tensor]:
        everyone: list[object] = [None] * job.world
        dist.all_gather_object(everyone, {"rank": job.rank, "text": "x" * job.rank}, group=group)
        shared = [f"from {job.rank}", job.rank]
        dist.broadcast_object_list(shared, src=0, group=group)
        return [torch.tensor(list(repr([everyone, shared]).encode()))]

    calls = [all_to_all_uneven, reduce_scatter_tensor, reduce_scatter, coalesced, objects]
    yield from ((call.__name__, call) for call in calls)


def compare_with_gloo(rank: int, world: int) -> dict[str, object]:
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    job = Comparison(rank, world, dist.new_group(backend="gloo", timeout=TIMEOUT))
    for cases in (reduce_cases, move_cases, uneven_cases):
        for name, call in cases(job):
            job.check(name, call)
    problems = [*job.different, *check_without_oracle(rank, world)]
    dist.barrier()
    dist.destroy_process_group()
    return {"compared": job.compared, "different": problems}


def check_without_oracle(rank: int, world: int) -> list[str]:
    """What Gloo cannot do, against what it must be."""
    problems = []
    average = torch.full((9,), float(rank))
    dist.all_reduce(average, op=Op.AVG)
    if not torch.equal(average, torch.full((9,), (world - 1) / 2)):
        problems.append(f"all_reduce AVG: {average}")
    shorts = torch.full((9,), rank + 1, dtype=torch.int16)
    dist.all_reduce(shorts)
    if shorts.tolist() != [world * (world + 1) // 2] * 9:
        problems.append(f"all_reduce int16: {shorts}")
    inputs = [torch.full((peer + 1,), float(rank)) for peer in range(world)]
    outputs = [torch.empty(rank + 1) for _ in range(world)]
    dist.all_to_all(outputs, inputs)
    if any(out.tolist() != [float(peer)] * (rank + 1) for peer, out in enumerate(outputs)):
        problems.append(f"all_to_all of lists: {outputs}")
    eighths = torch.full((5,), 2.0).to(torch.float8_e4m3fn)
    dist.broadcast(eighths, src=0)
    if eighths.float().tolist() != [2.0] * 5:
        problems.append("broadcast float8")
    return problems


def random_floats_are_close(rank: int, world: int) -> float:
    """Sums of random floats may round differently; not by more than their epsilon allows."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    ours = torch.randn(100_003, generator=torch.Generator().manual_seed(rank))
    theirs = ours.clone()
    dist.all_reduce(ours)
    dist.all_reduce(theirs, group=gloo)
    everyone = [torch.empty_like(ours) for _ in range(world)]
    dist.all_gather(everyone, ours)
    if not all(torch.equal(ours, other) for other in everyone):
        raise AssertionError("the ranks have different bits")
    worst = float((ours - theirs).abs().max())
    dist.destroy_process_group()
    return worst


def asynchronous(rank: int, world: int) -> dict[str, object]:
    """Many operations in flight, waited for in another order, by several means."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    other = dist.new_group(timeout=TIMEOUT)
    tensors = [torch.full((1 + 997 * i,), float(rank + i)) for i in range(40)]
    groups = [None, other]
    works = [
        dist.all_reduce(tensor, group=groups[i % 2], async_op=True)
        for i, tensor in enumerate(tensors)
    ]
    futures = [work.get_future() for work in works[::3]]
    doubled = [future.then(lambda done: done.value()[0] * 2) for future in futures]
    for work in reversed(works):
        work.wait()
    want = [float(sum(r + i for r in range(world))) for i in range(40)]
    sums_ok = all(t.eq(w).all() for t, w in zip(tensors, want, strict=True))
    doubled_ok = all(
        bool(future.wait().eq(2 * w).all()) for future, w in zip(doubled, want[::3], strict=True)
    )
    # Dropped without a wait: it must still happen, and keep its tensor alive.
    kept = torch.full((50_000,), float(rank))
    dist.all_reduce(kept, async_op=True)
    dist.all_reduce(torch.ones(100_000), async_op=True)
    polled = dist.all_reduce(torch.ones(3), async_op=True)
    while not polled.is_completed():
        pass
    dist.barrier()
    result = {
        "sums": sums_ok,
        "then": doubled_ok,
        "dropped": bool(kept.eq(sum(range(world))).all()),
        "success": polled.is_success(),
    }
    dist.destroy_process_group()
    return result


def sent(tensor: torch.Tensor, dst: int, tag: int = 0) -> dist.Work:
    work = dist.isend(tensor, dst, tag=tag)
    assert work is not None
    return work


def arriving(tensor: torch.Tensor, src: int, tag: int = 0) -> dist.Work:
    work = dist.irecv(tensor, src, tag=tag)
    assert work is not None
    return work


def ring_of_sizes(rank: int, world: int) -> list[str]:
    problems = []
    before = (rank - 1) % world
    for count in (0, 1, 1023, LARGE):
        received = torch.zeros(count)
        sending = sent(torch.full((count,), float(rank)), (rank + 1) % world)
        dist.recv(received, before)
        sending.wait()
        if not received.eq(before).all():
            problems.append(f"ring of {count}")
    return problems


def tags_are_apart(rank: int, world: int) -> list[str]:
    after, before = (rank + 1) % world, (rank - 1) % world
    first, second = torch.zeros(4), torch.zeros(4)
    works = [arriving(second, before, tag=2), arriving(first, before, tag=1)]
    dist.send(torch.full((4,), 1.0), after, tag=1)
    dist.send(torch.full((4,), 2.0), after, tag=2)
    for work in works:
        work.wait()
    return [] if first[0] == 1 and second[0] == 2 else [f"tags: {first[0]} {second[0]}"]


def rank_to_itself(rank: int, _world: int) -> list[str]:
    received = torch.zeros(3)
    receiving = arriving(received, rank, tag=9)
    sent(torch.full((3,), 7.0), rank, tag=9).wait()
    receiving.wait()
    return [] if received[0] == 7 else ["to itself"]


def any_source(rank: int, world: int) -> list[str]:
    if rank > 0:
        dist.send(torch.full((2,), float(rank)), 0, tag=5)
        return []
    problems = []
    seen = set()
    for _ in range(world - 1):
        anything = torch.zeros(2)
        source = dist.recv(anything, tag=5)
        seen.add(source)
        if anything[0] != source:
            problems.append(f"any source: {anything[0]} from {source}")
    return problems if seen == set(range(1, world)) else [*problems, f"any source: only {seen}"]


def batch(rank: int, world: int) -> list[str]:
    before, received = (rank - 1) % world, torch.zeros(8)
    operations = [
        dist.P2POp(dist.isend, torch.full((8,), float(rank)), (rank + 1) % world),
        dist.P2POp(dist.irecv, received, before),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [] if received.eq(before).all() else ["batch"]


def messages(rank: int, world: int) -> list[str]:
    """Point to point: order, tags, any source, self, empty and large ones."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    problems = []
    for case in (ring_of_sizes, tags_are_apart, rank_to_itself, any_source, batch):
        problems += case(rank, world)
    dist.barrier()
    dist.destroy_process_group()
    return problems
