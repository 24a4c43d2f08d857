"""One of two processes that time Horovod's API: on rdmatensor, with Gloo as its data path, and DDP.

Cells: an allreduce of 8 B by name; the backward pass of a model whose gradients are the tensors of
ResNet-50 (161 tensors, 25 million floats), and of one with 1,000 tensors of 4 KiB, until all
gradients are those of both ranks. "alone" is the same pass without communication. The model's
forward is a sum of each parameter, so that nearly all the time is communication. Each contender
has a share of each cell in each round; the order rotates. Gradients are compared first.
Each rank prints a line of JSON for each contender and cell.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore

import rdmatensor.horovod.torch as hvd
from bench.workers import harness
from rdmatensor.horovod import _execute, _runtime, membership
from rdmatensor.horovod.membership import Membership

OPTIONS = {"ranks": 2, "round": 0, "steps": 12, "calls": 300, "loops": 10}
CONTENDERS = ("rdmatensor", "gloo", "ddp", "alone")
SMALL = "allreduce of 8 B"
WARM_STEPS = 5


def resnet_shapes() -> list[tuple[int, ...]]:
    """Return the shapes of ResNet-50's parameters."""
    shapes: list[tuple[int, ...]] = []

    def convolution(inputs: int, outputs: int, kernel: int) -> None:
        shapes.extend([(outputs, inputs, kernel, kernel), (outputs,), (outputs,)])

    convolution(3, 64, 7)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolution(inputs, width, 1)
            convolution(width, width, 3)
            convolution(width, 4 * width, 1)
            if block == 0:
                convolution(inputs, 4 * width, 1)
            inputs = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


CELLS: dict[str, list[tuple[int, ...]]] = {
    "161 tensors of ResNet-50": resnet_shapes(),
    "1,000 tensors of 4 KiB": [(1024,)] * 1000,
}


class Bag(torch.nn.Module):
    """Parameters whose gradients are all this rank's number."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.all = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(one)) for one in shapes])

    def forward(self, factor: float) -> torch.Tensor:
        return torch.stack([one.sum() for one in self.all]).sum() * factor


@contextmanager
def horovod(data_path: str) -> Iterator[None]:
    """Use Horovod's API on this backend inside."""
    _runtime.data_path, _execute.has_average = data_path, data_path != "gloo"
    hvd.init()
    try:
        yield
    finally:
        hvd.shutdown()


def small_calls(given: SimpleNamespace) -> list[int]:
    """Return the mean time of a call in each loop."""
    tensor, means = torch.ones(2), []
    for loop in range(given.loops + 1):
        begun_ns = time.perf_counter_ns()
        for _ in range(given.calls):
            summed = hvd.allreduce(tensor, name="small", op=hvd.Sum)
        if loop:
            means.append((time.perf_counter_ns() - begun_ns) // given.calls)
        assert summed.tolist() == [float(hvd.size())] * 2
    return means


def steps(given: SimpleNamespace, bag: Bag, step: Callable[[], None], expected: float) -> list[int]:
    """Return the time of each step; the gradients of the first ones are checked."""
    taken = []
    for number in range(WARM_STEPS + given.steps):
        bag.zero_grad(set_to_none=False)
        dist.barrier()
        begun_ns = time.perf_counter_ns()
        step()
        taken.append(time.perf_counter_ns() - begun_ns)
        if number < WARM_STEPS:
            assert all(bool((one.grad == expected).all()) for one in bag.all), "wrong gradients"
    return taken[WARM_STEPS:]


def trained(name: str, bag: Bag, prefix: str, factor: float) -> Callable[[], None]:
    """Return a contender's step."""
    if name == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(bag, gradient_as_bucket_view=True)
        return lambda: model(factor).backward()
    if name == "alone":
        return lambda: bag(factor).backward()
    sgd = torch.optim.SGD(bag.parameters(), lr=0.0)
    optimizer = hvd.DistributedOptimizer(sgd, bag.named_parameters(prefix=prefix))

    def step() -> None:
        bag(factor).backward()
        optimizer.synchronize()

    return step


def measure(given: SimpleNamespace, name: str) -> None:
    """Time a contender's cells."""
    factor, average = given.rank + 1.0, (given.ranks + 1) / 2
    if name in ("rdmatensor", "gloo"):
        harness.emit(name=name, op=SMALL, size=8, raw_ns=small_calls(given))
    for op, shapes in CELLS.items():
        bag = Bag(shapes)
        step = trained(name, bag, op, factor)
        taken = steps(given, bag, step, factor if name == "alone" else average)
        size = 4 * sum(one.numel() for one in bag.all)
        harness.emit(name=name, op=op, size=size, raw_ns=taken)


def main(given: SimpleNamespace) -> None:
    """Let all contenders have their turns."""
    torch.set_num_threads(1)
    store, runs = FileStore(str(given.folder / "c10d"), given.ranks), itertools.count()

    def place() -> Membership:
        own = PrefixStore(f"run{next(runs)}", store)
        return Membership(given.rank, given.ranks, own, membership.host_name())

    membership.provider = place
    first = given.round % len(CONTENDERS)
    for name in (*CONTENDERS[first:], *CONTENDERS[:first]):
        with horovod("gloo" if name == "gloo" else "rdmatensor"):
            measure(given, name)
