"""Recomputation of a unit in the backward pass, equal to the bit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rdmatensor.budget.times import cloned_buffers
from rdmatensor.budget.trace import Forward


@dataclass(slots=True)
class Recomputed:
    """What recomputation came to.

    Attributes:
        units: Units that were computed again.
        time_ns: Processor time of it, of the thread that runs the backward pass.
    """

    units: int = 0
    time_ns: int = 0


def recomputing(module: nn.Module, forward: Forward, counts: Recomputed) -> Forward:
    """Return a forward that saves its inputs only, and runs forward again for the backward pass.

    Random numbers are the same in both runs. Buffers change in the first run only, as the running
    statistics of a batch norm should.
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return contextlib.nullcontext(), _again(module, counts)

    def wrapped(*args: object, **kwargs: object) -> object:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        names = tuple(kwargs)

        def run(*values: object) -> object:  # torch keeps positional tensors only
            count = len(values) - len(names)
            return forward(*values[:count], **dict(zip(names, values[count:], strict=True)))

        return checkpoint(run, *args, *kwargs.values(), use_reentrant=False, context_fn=contexts)

    return wrapped


@contextlib.contextmanager
def _again(module: nn.Module, counts: Recomputed) -> Iterator[None]:
    start_ns = time.thread_time_ns()
    try:
        with cloned_buffers(module):
            yield
    finally:
        counts.units += 1
        counts.time_ns += time.thread_time_ns() - start_ns
