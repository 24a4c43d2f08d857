"""What one run of the suite is: which backend, how many ranks, which tests are let in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# No backend that torch does not know by name can pass these: name, and why.
CANNOT_PASS = {
    "test_ddp_logging_data_cpu": "torch calls every registered backend 'custom' in its logging data"
}
# Pass only where the ranks of a list all_to_all may send different sizes, which Gloo's cannot.
UNEVEN_LISTS = (
    "test_all_to_all",
    "test_all_to_all_complex",
    "test_all_to_all_full_group",
    "test_all_to_all_group",
)


@dataclass(frozen=True)
class Run:
    """One set of tests.

    persona: the backend of torch's own whose tests are run; it decides what the suite skips.
    has_few_ranks: also the tests for eight ranks, most of which are content with three.
    uses_cpu_for_gpu: also the tests for several GPUs, on CPU tensors.
    pattern: tests whose name it does not match are left out.
    """

    name: str
    world: int
    persona: str = "gloo"
    has_few_ranks: bool = False
    uses_cpu_for_gpu: bool = False
    pattern: str = ""


RUNS = {
    run.name: run
    for run in (
        Run("lists", 3, persona="mpi", has_few_ranks=True, pattern="all_to_all"),
        Run("two", 2),
        Run("three", 3, has_few_ranks=True),
        Run("four", 4, has_few_ranks=True, uses_cpu_for_gpu=True),
    )
}

# Without meaning on CPU tensors, with Gloo too: SyncBatchNorm refuses CPU modules, a CPU has no
# events, some look at device numbers or ask for NCCL, one did not end in 400 s.
_NEEDS_GPU = re.compile(
    r"SyncBatchNorm|sync_bn|syncbn|ddp_inference$|apply_optim_in_backward"
    r"|native_mixed_precision_(no_)?grad_as|ddp_device$|ddp_logging_data_gpu"
    r"|ddp_compile_static_graph|profiler_cuda|_nccl|average_parameters$"
    r"|monitored_barrier_allreduce_hang|ddp_uneven_inputs$"
)


@dataclass(frozen=True)
class Shard:
    """Every `of`-th test, from number `index` on."""

    index: int = 0
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        index, of = (int(part) for part in text.split("/"))
        if not 0 <= index < of:
            raise ValueError(f"shard {text}: the first number must be below the second")
        return cls(index, of)


def select(names: Sequence[str], run: Run, shard: Shard, pattern: str = "") -> list[str]:
    """Return the tests of a run that belong to a shard; pattern narrows it further."""
    chosen = [name for name in sorted(names) if re.search(run.pattern, name)]
    if run.uses_cpu_for_gpu:
        chosen = [name for name in chosen if not _NEEDS_GPU.search(name)]
    return [name for name in chosen[shard.index :: shard.of] if re.search(pattern, name)]
