"""The operations through mpi4py: its calls on buffers, which are torch's tensors."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import mpi4py
import torch

from bench.benchlib import children
from bench.workers.operations import Call, Operation

mpi4py.rc.thread_level = "single"  # else every call takes locks that one thread does not need
from mpi4py import MPI  # noqa: E402


class Meeting:
    """All ranks of an mpirun, and what they run. Dies with mpirun."""

    def __init__(self) -> None:
        children.end_with(os.getppid())
        self._world: Any = MPI.COMM_WORLD
        self.rank, self.ranks = int(self._world.Get_rank()), int(self._world.Get_size())

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._world.Barrier()

    def most(self, value: int) -> int:
        """Return the largest of all ranks' values."""
        return int(self._world.allreduce(value, op=MPI.MAX))

    def call(self, operation: Operation) -> Call:
        """Return a call on the tensors that the operation has now."""
        source, target = _buffer(operation.source), _buffer(operation.target)
        return _CALLS[operation.name](self._world, operation.rank, source, target)


def _buffer(tensor: torch.Tensor) -> list[Any]:
    return [tensor.numpy(), MPI.FLOAT]


Comm = Any
Buffer = list[Any]


def _reduce(comm: Comm, rank: int, source: Buffer, _: Buffer) -> Call:
    if rank == 0:
        return lambda: comm.Reduce(MPI.IN_PLACE, source, root=0)
    return lambda: comm.Reduce(source, None, root=0)


def _send(comm: Comm, rank: int, source: Buffer, target: Buffer) -> Call:
    other = 1 - rank

    def first() -> None:
        comm.Send(source, other)
        comm.Recv(target, other)

    def second() -> None:
        comm.Recv(target, other)
        comm.Send(source, other)

    return first if rank == 0 else second


def _gather(comm: Comm, rank: int, source: Buffer, target: Buffer) -> Call:
    into = target if rank == 0 else None
    return lambda: comm.Gather(source, into, root=0)


def _scatter(comm: Comm, rank: int, source: Buffer, target: Buffer) -> Call:
    out_of = source if rank == 0 else None
    return lambda: comm.Scatter(out_of, target, root=0)


_CALLS: dict[str, Callable[[Comm, int, Buffer, Buffer], Call]] = {
    "all_reduce": lambda comm, _, source, __: lambda: comm.Allreduce(MPI.IN_PLACE, source),
    "all_gather": lambda comm, _, source, target: lambda: comm.Allgather(source, target),
    "reduce_scatter": lambda comm, _, source, target: (
        lambda: comm.Reduce_scatter_block(source, target)
    ),
    "broadcast": lambda comm, _, source, __: lambda: comm.Bcast(source, root=0),
    "all_to_all": lambda comm, _, source, target: lambda: comm.Alltoall(source, target),
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "send": _send,
    "barrier": lambda comm, _, __, ___: comm.Barrier,
}
