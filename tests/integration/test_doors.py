"""Names under which a group is opened, what its memory is, and doors next to torch's closed ones.

Groups of one rank, in this process: what is asked here depends on no peer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import rdmatensor

CPU = torch.device("cpu")
META = torch.device("meta")  # stands in for CUDA, which this machine may lack


@contextmanager
def opened(name: str) -> Iterator[Any]:
    """Open the default group of one rank under this name; no warning may be heard."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
        try:
            yield dist.group.WORLD
        finally:
            dist.destroy_process_group()


@pytest.fixture(params=["OFF", "DETAIL"])
def debug_level(request: pytest.FixtureRequest) -> Iterator[None]:
    """DETAIL puts a wrapper of torch's around every backend."""
    before = dist.get_debug_level()
    dist.set_debug_level(getattr(dist.DebugLevel, request.param))
    yield
    dist.set_debug_level(before)


# cuda:gloo stands in for cuda:nccl, which torch's CPU build lacks.
@pytest.mark.parametrize("name", ["rdmatensor", "cpu:rdmatensor", "cpu:rdmatensor,cuda:gloo"])
def test_groups_have_a_default_backend_under_every_name(name: str) -> None:
    with opened(name) as group:
        dist.all_reduce(torch.ones(3))
        dist.barrier()

        assert group.name() == "custom"  # torch's word for every registered backend
        assert not group._has_hooks()
        assert group._get_backend(CPU).name() == "rdmatensor"


def test_a_group_beside_a_gloo_default() -> None:
    with opened("gloo") as default:
        group: Any = dist.new_group([0], backend="rdmatensor")
        dist.all_reduce(torch.ones(3), group=group)
        dist.all_reduce(torch.ones(3))

        assert default.name() == "gloo"
        assert default._get_backend(CPU).name() == "gloo"
        assert group._get_backend(CPU).name() == "rdmatensor"
        with pytest.raises(ValueError, match=r"CPU tensors are gloo's, not rdmatensor's"):
            rdmatensor.distributed.sequence_number(default)


def test_tensors_elsewhere_are_refused_with_the_name_to_open_a_group_by() -> None:
    with opened("rdmatensor") as group:
        # The group has this backend for CUDA tensors too, so that they meet this message.
        backend = group._get_backend(torch.device("cuda"))
        away, here = torch.zeros(3, device=META), torch.zeros(3)
        for call in (
            lambda: backend.allreduce([away]),
            lambda: backend.send([away], 0, 0),
            lambda: backend.allgather([[away]], [here]),
            lambda: backend.allocate_tensor(3, dtype=torch.float32, device=META),
        ):
            with pytest.raises(ValueError, match=r"on meta, .*\"cpu:rdmatensor,cuda:nccl\""):
                call()


def step_of(backend: Any) -> list[int]:
    """Take and drop the buffers of a step; return their addresses."""
    counts = [1000, 1000, 70_001, 0]
    buffers = [backend.allocate_tensor(count, dtype=torch.bfloat16, device=CPU) for count in counts]
    for buffer in buffers:
        buffer.fill_(1.0)
    assert [buffer.numel() for buffer in buffers] == counts
    assert all(buffer.dtype == torch.bfloat16 for buffer in buffers)
    return sorted(buffer.data_ptr() for buffer in buffers)


def test_buffers_of_a_step_come_back_at_the_same_addresses() -> None:
    rdmatensor.default_context().close()  # the next one begins to count again
    with opened("rdmatensor") as group:
        backend = group._get_backend(CPU)
        assert backend.supports_tensor_alloc(CPU)
        before = backend.memory_stats()
        first = step_of(backend)
        assert step_of(backend) == first
        assert step_of(backend) == first

        after = backend.memory_stats()
        assert after["slabs_allocated"] - before.get("slabs_allocated", 0) == 9
        assert after["slabs_reused"] - before.get("slabs_reused", 0) >= 6
        assert after["slabs_live_bytes"] == 0
        # Two of 4 KiB, and 140,002 bytes rounded up to eighths of 128 KiB.
        assert after["slabs_cached_bytes"] == 2 * 4096 + 9 * 16384
        kept = backend.allocate_tensor(8, dtype=torch.float32, device=CPU).fill_(2.0)
    with pytest.raises(dist.DistBackendError, match="allocate_tensor: the group was shut down"):
        backend.allocate_tensor(8, dtype=torch.float32, device=CPU)

    rdmatensor.default_context().close()
    assert float(kept.sum()) == 16.0
    assert backend.memory_stats()["slabs_cached_bytes"] == 0


@pytest.mark.usefixtures("debug_level")
def test_doors_of_our_own() -> None:
    with opened("rdmatensor") as group:
        before = rdmatensor.distributed.sequence_number()
        dist.all_reduce(torch.ones(3))
        assert rdmatensor.distributed.sequence_number() > before

        rdmatensor.distributed.set_timeout(timedelta(seconds=7))
        rdmatensor.distributed.monitored_barrier()
        part = rdmatensor.distributed.split_group([[0]])
        assert part is not None
        part_of_part = rdmatensor.distributed.split_group([[0]], part, timeout=timedelta(seconds=3))
        dist.all_reduce(torch.ones(3), group=part_of_part)
        backends: list[Any] = [made._get_backend(CPU) for made in (group, part, part_of_part)]
        backends = [getattr(backend, "wrapped_pg", backend) for backend in backends]
        assert [backend.options._timeout.total_seconds() for backend in backends] == [7, 7, 3]
        assert str(backends[0].get_error()) == "ErrorType.SUCCESS"

        assert rdmatensor.distributed.split_group([]) is None
        for lists in ([[0], [0]], [[1]]):
            with pytest.raises(ValueError, match="split_ranks="):
                rdmatensor.distributed.split_group(lists)
        with pytest.raises(TypeError, match="timeout=7 is a int, not a timedelta"):
            rdmatensor.distributed.set_timeout(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_buckets_leave_as_bfloat16(is_wrapped: bool) -> None:
    torchs: Any = default_hooks.bf16_compress_hook
    ours: Any = rdmatensor.distributed.bf16_hook
    if is_wrapped:
        torchs = default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook)
        ours = rdmatensor.distributed.bf16_wrapper(default_hooks.allreduce_hook)
    with opened("rdmatensor"):
        model = DistributedDataParallel(nn.Linear(3, 1, bias=False))
        with pytest.raises(TypeError, match="required CUDA"):
            model.register_comm_hook(None, torchs)
        model.register_comm_hook(None, ours)
        x = torch.tensor([1.0, 1.0 + 2**-9, 3.1415926])
        model(x).sum().backward()

        assert model.module.weight.grad.dtype == torch.float32
        assert torch.equal(model.module.weight.grad[0], x.bfloat16().float())


def test_doors_are_shut_without_a_group() -> None:
    for door in (
        rdmatensor.distributed.monitored_barrier,
        rdmatensor.distributed.sequence_number,
        lambda: rdmatensor.distributed.set_timeout(timedelta(seconds=1)),
        lambda: rdmatensor.distributed.split_group([[0]]),
    ):
        with pytest.raises(ValueError, match=r"init_process_group\(\) has not been called"):
            door()


def test_the_registration_leaves_torchs_defaults_alone() -> None:
    assert dist.Backend.default_device_backend_map["cpu"] == "gloo"
    assert dist.Backend.default_device_backend_map["cuda"] == "nccl"
