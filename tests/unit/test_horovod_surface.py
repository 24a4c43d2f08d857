"""The signatures of Horovod's API: names, their order and defaults, as scripts use them."""

from __future__ import annotations

import inspect

import pytest

import rdmatensor.horovod.torch as hvd

_SET = "process_set=global_process_set"
_FACTORS = "prescale_factor=1.0, postscale_factor=1.0"
_ASYNC = f"average=None, name=None, op=None, {_FACTORS}, {_SET}"
_SYNC = f"average=None, name=None, compression=none, op=None, {_FACTORS}, {_SET}"
_SCATTER = f"op=0, {_SET}, {_FACTORS}"
SIGNATURES = {
    "init": "comm=None, process_sets=None",
    "allreduce": f"tensor, {_SYNC}",
    "allreduce_": f"tensor, {_ASYNC}",
    "allreduce_async": f"tensor, {_ASYNC}",
    "allreduce_async_": f"tensor, {_ASYNC}",
    "grouped_allreduce": f"tensors, {_SYNC}",
    "grouped_allreduce_": f"tensors, {_ASYNC}",
    "grouped_allreduce_async": f"tensors, {_ASYNC}",
    "grouped_allreduce_async_": f"tensors, {_ASYNC}",
    "sparse_allreduce_async": f"tensor, name, op, {_SET}",
    "allgather": f"tensor, name=None, {_SET}",
    "allgather_async": f"tensor, name=None, {_SET}",
    "grouped_allgather": f"tensors, name=None, {_SET}",
    "grouped_allgather_async": f"tensors, name=None, {_SET}",
    "broadcast": f"tensor, root_rank, name=None, {_SET}",
    "broadcast_": f"tensor, root_rank, name=None, {_SET}",
    "broadcast_async": f"tensor, root_rank, name=None, {_SET}",
    "broadcast_async_": f"tensor, root_rank, name=None, {_SET}",
    "alltoall": f"tensor, splits=None, name=None, {_SET}",
    "alltoall_async": f"tensor, splits=None, name=None, {_SET}",
    "reducescatter": f"tensor, name=None, compression=none, {_SCATTER}",
    "reducescatter_async": f"tensor, name=None, {_SCATTER}",
    "grouped_reducescatter": f"tensors, name=None, compression=none, {_SCATTER}",
    "grouped_reducescatter_async": f"tensors, name=None, {_SCATTER}",
    "poll": "handle",
    "synchronize": "handle",
    "join": "device=-1",
    "barrier": _SET,
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_object": f"obj, root_rank=0, name=None, {_SET}",
    "allgather_object": "obj, name=None",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "start_timeline": "file_path, mark_cycles=False",
    "DistributedOptimizer": (
        "optimizer, named_parameters=None, compression=none, backward_passes_per_step=1, op=0, "
        "gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False, " + _SET
    ),
    **dict.fromkeys(
        (
            *("shutdown", "is_initialized", "rank", "size", "local_rank", "local_size"),
            *("cross_rank", "cross_size", "is_homogeneous", "stop_timeline", "rocm_built"),
            *("mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built"),
            *("nccl_built", "ddl_built", "ccl_built", "cuda_built"),
        ),
        "",
    ),
}


def _shown(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if default is inspect.Parameter.empty:
        return parameter.name
    if default is hvd.global_process_set:
        return f"{parameter.name}=global_process_set"
    if default is hvd.Compression.none:
        return f"{parameter.name}=none"
    return f"{parameter.name}={default!r}"


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    parameters = inspect.signature(getattr(hvd, name)).parameters.values()
    assert ", ".join(_shown(one) for one in parameters) == SIGNATURES[name]


def test_constants_are_distinct_whole_numbers() -> None:
    ops = [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product]
    assert ops == list(range(6))


def test_before_init_each_call_asks_for_it() -> None:
    for name in ("rank", "size", "local_rank", "cross_size", "is_homogeneous", "stop_timeline"):
        with pytest.raises(ValueError, match="has not been initialized"):
            getattr(hvd, name)()
    assert not hvd.is_initialized()
    hvd.shutdown()  # no effect
    assert hvd.ProcessSet([1, 0]).size() is None


def test_communicators_are_refused() -> None:
    with pytest.raises(ValueError, match="communicators"):
        hvd.init(comm=object())
    with pytest.raises(ValueError, match="process_sets="):
        hvd.init(comm=[0])
