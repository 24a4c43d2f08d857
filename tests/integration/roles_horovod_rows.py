"""Ranks that try each call of Horovod's API; numpy says what they must return."""

# over budget: one call of the API after the other

from __future__ import annotations

import json
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import rdmatensor.horovod.torch as hvd

DTYPES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")
ROWS: dict[str, Callable[[int, int], None]] = {}


def row(check: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Take a check among those of every()."""
    ROWS[check.__name__] = check
    return check


def data(rank: int, *shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Return what this rank contributes: small whole numbers, whose sums are exact."""
    return np.random.default_rng([seed, rank]).integers(0, 9, shape).astype(dtype)


def tensor(rank: int, *shape: int, dtype: str = "float32", seed: int = 0) -> torch.Tensor:
    """Return the same as a tensor."""
    return torch.from_numpy(data(rank, *shape, dtype=dtype, seed=seed))


def stack(world: int, *shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Return the contributions of all ranks."""
    return np.stack([data(rank, *shape, dtype=dtype, seed=seed) for rank in range(world)])


def same(found: torch.Tensor, expected: np.ndarray) -> None:
    """Compare dtype, shape and every bit."""
    assert str(found.dtype) == f"torch.{expected.dtype}"
    np.testing.assert_array_equal(found.numpy(), expected)


def every(rank: int, world: int) -> dict[str, str | None]:
    """Run all rows; return how each failed, or None."""
    hvd.init(process_sets="dynamic")
    found: dict[str, str | None] = {}
    for name, check in ROWS.items():
        try:
            check(rank, world)
            found[name] = None
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - reported by row
            found[name] = traceback.format_exc()
        # One rank's failure must not let the others wait for it.
        hvd.barrier()
    hvd.shutdown()
    return found


@row
def place(rank: int, world: int) -> None:
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (rank, world) * 2
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
    hvd.init()  # no effect
    assert hvd.is_initialized()


@row
def builds(_rank: int, _world: int) -> None:
    assert hvd.gloo_built()
    assert hvd.gloo_enabled()
    assert hvd.nccl_built() == 0
    for built in (hvd.mpi_built, hvd.mpi_enabled, hvd.ddl_built, hvd.ccl_built, hvd.cuda_built):
        assert built() is False
    assert hvd.rocm_built() is False
    with pytest.raises(ValueError, match="MPI"):
        hvd.mpi_threads_supported()


@row
def allreduce(rank: int, world: int) -> None:
    for dtype in DTYPES:
        all_of = stack(world, 3, 5, dtype=dtype)
        given = tensor(rank, 3, 5, dtype=dtype)
        same(hvd.allreduce(given, op=hvd.Sum), all_of.sum(0, dtype=dtype))
        same(hvd.allreduce(given, op=hvd.Min), all_of.min(0))
        same(hvd.allreduce(given, op=hvd.Max), all_of.max(0))
        same(hvd.allreduce(given, op=hvd.Product), all_of.prod(0, dtype=dtype))
        total = all_of.sum(0, dtype=dtype)
        is_whole = np.issubdtype(total.dtype, np.integer)
        average = total // world if is_whole else (total / world).astype(dtype)
        same(hvd.allreduce(given), average)
        same(given, data(rank, 3, 5, dtype=dtype))


@row
def allreduce_of_no_elements(rank: int, _world: int) -> None:
    assert hvd.allreduce(torch.empty(0, rank * 0)).shape == (0, 0)
    assert hvd.allreduce(torch.tensor(2.0)).shape == ()


@row
def allreduce_average_is_deprecated(rank: int, world: int) -> None:
    with pytest.warns(DeprecationWarning, match="average"):
        found = hvd.allreduce(tensor(rank, 4), average=False)
    same(found, stack(world, 4).sum(0))
    with pytest.raises(ValueError, match="only one"):
        hvd.allreduce(tensor(rank, 4), average=True, op=hvd.Sum)


@row
def allreduce_scaled(rank: int, world: int) -> None:
    factors = {"prescale_factor": 0.3, "postscale_factor": 0.7}
    for dtype in ("float32", "float64"):
        kind = np.dtype(dtype).type
        before = [data(one, 9, dtype=dtype) * kind(0.3) for one in range(world)]
        found = hvd.allreduce(tensor(rank, 9, dtype=dtype), op=hvd.Sum, **factors)
        np.testing.assert_allclose(
            found.numpy(), np.sum(before, 0) * kind(0.7), rtol=1e-6 if dtype == "float32" else 1e-14
        )
    cut = [(data(one, 9, dtype="int32") * 0.3).astype("int32") for one in range(world)]
    found = hvd.allreduce(tensor(rank, 9, dtype="int32"), op=hvd.Sum, **factors)
    same(found, (np.sum(cut, 0) * 0.7).astype("int32"))


@row
def allreduce_in_place(rank: int, world: int) -> None:
    given = tensor(rank, 6)
    assert hvd.allreduce_(given, op=hvd.Sum) is given
    same(given, stack(world, 6).sum(0))
    given = tensor(rank, 6)
    handle = hvd.allreduce_async_(given, name="in_place", op=hvd.Max)
    hvd.synchronize(handle)
    same(given, stack(world, 6).max(0))


@row
def handles(rank: int, world: int) -> None:
    handle = hvd.allreduce_async(tensor(rank, 6), op=hvd.Sum)
    assert isinstance(handle, int)
    while not hvd.poll(handle):
        pass
    same(hvd.synchronize(handle), stack(world, 6).sum(0))
    assert hvd.synchronize(handle) is None
    assert hvd.synchronize(-1) is None
    with pytest.raises(ValueError, match="unknown"):
        hvd.poll(handle)


@row
def grouped_allreduce(rank: int, world: int) -> None:
    given = [tensor(rank, 2, 3), tensor(rank, 4, seed=1)]
    expected = [stack(world, 2, 3).sum(0), stack(world, 4, seed=1).sum(0)]
    for one in (
        hvd.grouped_allreduce(given, op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async(given, name="group", op=hvd.Sum)),
    ):
        assert isinstance(one, list)
        for found, sums in zip(one, expected, strict=True):
            same(found, sums)
    copies = [one.clone() for one in given]
    hvd.grouped_allreduce_(copies, op=hvd.Sum)
    more = [one.clone() for one in given]
    hvd.synchronize(hvd.grouped_allreduce_async_(more, op=hvd.Sum))
    for found, sums in zip([*copies, *more], [*expected, *expected], strict=True):
        same(found, sums)


@row
def allgather(rank: int, world: int) -> None:
    for dtype in (*DTYPES, "bool"):
        expected = np.concatenate([data(one, one + 1, 3, dtype=dtype) for one in range(world)])
        same(hvd.allgather(tensor(rank, rank + 1, 3, dtype=dtype)), expected)
        even = np.concatenate([data(one, 2, 3, dtype=dtype) for one in range(world)])
        same(hvd.allgather(tensor(rank, 2, 3, dtype=dtype)), even)
    same(hvd.allgather(torch.tensor(rank)), np.arange(world))
    rows = [0 if one == 0 else 2 for one in range(world)]
    expected = np.concatenate([data(one, rows[one]) for one in range(world)])
    same(hvd.allgather(tensor(rank, rows[rank])), expected)


@row
def grouped_allgather(rank: int, world: int) -> None:
    expected = np.concatenate([data(one, one + 1) for one in range(world)])
    given = [tensor(rank, rank + 1), torch.tensor([rank])]
    asynchronous = hvd.synchronize(hvd.grouped_allgather_async(given, name="many"))
    for one, other in (hvd.grouped_allgather(given), asynchronous):
        same(one, expected)
        same(other, np.arange(world))


@row
def broadcast(rank: int, world: int) -> None:
    for root in range(world):
        for dtype in (*DTYPES, "bool"):
            given = tensor(rank, 3, dtype=dtype)
            same(hvd.broadcast(given, root), data(root, 3, dtype=dtype))
            same(given, data(rank, 3, dtype=dtype))
        given = tensor(rank, 3)
        assert hvd.broadcast_(given, root_rank=root, name=f"place{root}") is given
        same(given, data(root, 3))
        same(hvd.synchronize(hvd.broadcast_async(tensor(rank, 3), root)), data(root, 3))
        given = tensor(rank, 3)
        hvd.synchronize(hvd.broadcast_async_(given, root))
        same(given, data(root, 3))


@row
def alltoall(rank: int, world: int) -> None:
    for dtype in DTYPES:
        rows = stack(world, world * 2, 3, dtype=dtype)
        found = hvd.alltoall(tensor(rank, world * 2, 3, dtype=dtype))
        assert isinstance(found, torch.Tensor)
        same(found, np.concatenate([one[rank * 2 : rank * 2 + 2] for one in rows]))
    # Rank a sends (a + b) % 3 rows to rank b.
    splits = [[(one + other) % 3 for other in range(world)] for one in range(world)]
    parts = [np.split(data(one, 9, 2), np.cumsum(splits[one]))[rank] for one in range(world)]
    for given in (splits[rank], torch.tensor(splits[rank], dtype=torch.int32)):
        found, received = hvd.alltoall(tensor(rank, 9, 2), splits=given)
        same(found, np.concatenate(parts))
        same(received, np.array([one[rank] for one in splits], dtype="int32"))
    nothing, _ = hvd.alltoall(torch.empty(0, 2), splits=[0] * world)
    assert nothing.shape == (0, 2)


@row
def reducescatter(rank: int, world: int) -> None:
    rows = world * 2 + 1
    own = np.array_split(stack(world, rows, 2).sum(0), world)[rank]
    given = tensor(rank, rows, 2)
    same(hvd.reducescatter(given, op=hvd.Sum), own)
    same(hvd.reducescatter(given), (own / world).astype("float32"))
    same(hvd.synchronize(hvd.reducescatter_async(given, op=hvd.Sum)), own)
    same(hvd.reducescatter(given, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5), own)
    more = np.array_split(stack(world, 3).sum(0), world)[rank]
    group = [given, tensor(rank, 3)]
    asynchronous = hvd.synchronize(hvd.grouped_reducescatter_async(group, op=hvd.Sum))
    for one, other in (hvd.grouped_reducescatter(group, op=hvd.Sum), asynchronous):
        same(one, own)
        same(other, more)


@row
def sparse_allreduce(rank: int, world: int) -> None:
    dense = np.zeros((world, world + 1, 4), "float32")
    for one in range(world):
        dense[one, [one, world]] = data(one, 2, 4)
    given = torch.from_numpy(dense[rank]).to_sparse(1)
    total = hvd.sparse_allreduce_async(given, name="sparse", op=hvd.Sum)()
    same(total.to_dense(), dense.sum(0))
    average = hvd.sparse_allreduce_async(given, "sparse", hvd.Average)()
    same(average.to_dense(), (dense / np.float32(world)).sum(0, dtype="float32"))


@row
def gradients(rank: int, world: int) -> None:
    weight = tensor(rank, 4, 2, seed=3)

    def of(
        call: Callable[[torch.Tensor], torch.Tensor], factor: torch.Tensor | None = None
    ) -> torch.Tensor:
        leaf = torch.ones(4, 2, requires_grad=True)
        out = call(leaf)
        out.backward(torch.ones_like(out) if factor is None else factor)
        assert leaf.grad is not None
        return leaf.grad

    weights = stack(world, 4, 2, seed=3)
    same(of(lambda x: hvd.allreduce(x, op=hvd.Sum), weight), weights.sum(0))
    same(of(lambda x: hvd.grouped_allreduce([x], op=hvd.Sum)[0], weight), weights.sum(0))
    same(of(lambda x: hvd.allreduce(x, name="named", op=hvd.Sum), weight), weights.sum(0))
    root = world - 1
    average = (weights.sum(0) / np.float32(world)).astype("float32")
    same(
        of(lambda x: hvd.broadcast(x, root), weight),
        average if rank == root else np.zeros_like(average),
    )
    same(of(hvd.allgather), np.ones((4, 2), "float32"))
    same(of(lambda x: hvd.grouped_allgather([x])[0]), np.ones((4, 2), "float32"))
    splits = [4 if one == rank else 0 for one in range(world)]
    same(of(lambda x: hvd.alltoall(x, splits=splits)[0], weight), data(rank, 4, 2, seed=3))
    ones = np.ones((4, 2), "float32")
    same(of(lambda x: hvd.reducescatter(x, op=hvd.Sum)), ones * world)
    same(of(lambda x: hvd.grouped_reducescatter([x])[0]), ones)


@row
def join(rank: int, world: int) -> None:
    for step in range(rank + 1):
        there = [one for one in range(world) if one >= step]
        expected = np.sum([data(one, 5, seed=step) for one in there], 0, dtype="float32")
        same(hvd.allreduce(tensor(rank, 5, seed=step), name=f"of{step}", op=hvd.Sum), expected)
    last = hvd.join()
    assert hvd.allgather(torch.tensor([last])).tolist() == [last] * world
    for step in range(rank + 1):
        there = [one for one in range(world) if one >= step]
        total = np.sum([data(one, 5, seed=step) for one in there], 0, dtype="float32")
        found = hvd.allreduce(tensor(rank, 5, seed=step), name=f"of{step}")
        same(found, (total / np.float32(world)).astype("float32"))
    hvd.join()


@row
def join_refuses_other_operations(rank: int, world: int) -> None:
    if world == 1:
        return
    if rank == 0:
        hvd.join()
        return
    for call in (
        lambda: hvd.allgather(torch.ones(2), name="late"),
        lambda: hvd.broadcast(torch.ones(2), 0, name="late"),
        lambda: hvd.alltoall(torch.ones(world), name="late"),
        lambda: hvd.reducescatter(torch.ones(world), name="late"),
    ):
        with pytest.raises(hvd.HorovodInternalError, match="joined"):
            call()
    hvd.join()


@row
def barrier(_rank: int, _world: int) -> None:
    hvd.barrier()
    hvd.barrier(hvd.global_process_set)


@row
def process_sets(rank: int, world: int) -> None:
    one = hvd.ProcessSet([world - 1, 0] if world > 1 else [0])
    if world <= 2:
        with pytest.raises(ValueError, match="exists"):
            hvd.add_process_set(one)
        return
    assert (one.size(), one.rank(), one.process_set_id) == (None, None, None)
    assert hvd.add_process_set(one) is one
    assert (one.ranks, one.size()) == ([0, world - 1], 2)
    with pytest.raises(ValueError, match="exists"):
        hvd.add_process_set([0, world - 1])
    assert one.included() == (rank in (0, world - 1))
    if one.included():
        assert one.rank() == (0 if rank == 0 else 1)
        total = hvd.allreduce(tensor(rank, 3), op=hvd.Sum, process_set=one)
        same(total, data(0, 3) + data(world - 1, 3))
        same(hvd.broadcast(tensor(rank, 3), world - 1, process_set=one), data(world - 1, 3))
        gathered = hvd.allgather(torch.tensor([rank]), process_set=one)
        assert gathered.tolist() == [0, world - 1]
        with pytest.raises(ValueError, match="root_rank=1"):
            hvd.broadcast(tensor(rank, 3), 1, process_set=one)
        hvd.barrier(one)
        assert hvd.broadcast_object(rank, world - 1, process_set=one) == world - 1
    else:
        with pytest.raises(ValueError, match="not in the process set"):
            hvd.allreduce(tensor(rank, 3), process_set=one)
        with pytest.raises(ValueError, match="not in the process set"):
            one.rank()
    assert hvd.remove_process_set(one) is True
    assert hvd.remove_process_set(one) is False
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert one.process_set_id is None
    again = hvd.add_process_set([0, world - 1])
    assert again.size() == 2
    hvd.remove_process_set(again)


@row
def objects(rank: int, world: int) -> None:
    assert hvd.broadcast_object({"rank": rank}, world - 1) == {"rank": world - 1}
    assert hvd.broadcast_object(lambda: rank, 0, "function")() == 0
    assert hvd.allgather_object(["x"] * rank) == [["x"] * one for one in range(world)]


@row
def parameters(rank: int, world: int) -> None:
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    hvd.broadcast_parameters(model.state_dict(), root_rank=world - 1)
    hvd.broadcast_parameters(list(model.named_parameters()), root_rank=world - 1)
    hvd.broadcast_parameters(list(model.parameters()), root_rank=world - 1)
    torch.manual_seed(world - 1)
    expected = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    with pytest.raises(ValueError, match="generator"):
        hvd.broadcast_parameters(model.named_parameters(), root_rank=0)


@row
def compression(rank: int, world: int) -> None:
    half = stack(world, 5).astype("float16").sum(0, dtype="float16").astype("float32")
    same(hvd.allreduce(tensor(rank, 5), compression=hvd.Compression.fp16, op=hvd.Sum), half)
    whole = tensor(rank, 5, dtype="int32")
    same(
        hvd.allreduce(whole, compression=hvd.Compression.fp16, op=hvd.Sum),
        stack(world, 5, dtype="int32").sum(0, dtype="int32"),
    )
    same(hvd.allreduce(tensor(rank, 5), compression=hvd.Compression.bf16, op=hvd.Sum), half)

    class Doubled(hvd.Compressor):
        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
            return tensor * 2, rank

        @staticmethod
        def decompress(tensor: torch.Tensor, ctx: int) -> torch.Tensor:
            assert ctx == rank
            return tensor / 4

    found = hvd.allreduce(tensor(rank, 5), compression=Doubled, op=hvd.Sum)
    same(found, stack(world, 5).sum(0) / 2)


@row
def own_errors(rank: int, world: int) -> None:
    """What this rank alone can see raises here, and needs no other rank."""
    for call, words in (
        (lambda: hvd.allreduce(torch.ones(2, 3).t()), "contiguous"),
        (lambda: hvd.allreduce(torch.ones(2, dtype=torch.complex64)), "not supported"),
        (lambda: hvd.allreduce(torch.eye(2).to_sparse()), "not supported"),
        (lambda: hvd.allreduce(torch.ones(2, device="meta")), "CPU"),
        (lambda: hvd.allreduce(torch.ones(2), op=17), "expected hvd.Average"),
        (lambda: hvd.broadcast(torch.ones(2), world), "root_rank"),
        (lambda: hvd.alltoall(torch.ones(world * 2), splits=[3] * world), "splits"),
        (lambda: hvd.alltoall(torch.ones(4), splits=[1] * (world + 1)), "splits"),
        (lambda: hvd.alltoall(torch.ones(4), splits=torch.ones(world)), "int32"),
        (lambda: hvd.allreduce(torch.ones(1), process_set=hvd.ProcessSet([0])), "registered"),
        (lambda: hvd.add_process_set([world]), "ranks"),
        (lambda: hvd.ProcessSet("ab"), "integers"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    if world > 1:
        with pytest.raises(ValueError, match="divisible"):
            hvd.alltoall(torch.ones(world + 1))


@row
def not_done(_rank: int, _world: int) -> None:
    with pytest.raises(NotImplementedError, match="Adasum"):
        hvd.allreduce(torch.ones(2), op=hvd.Adasum)
    with pytest.raises(ValueError, match="communicator"):
        hvd.ProcessSet(object())  # type: ignore[arg-type]


@row
def same_name_twice(rank: int, world: int) -> None:
    if world == 1:
        return
    if rank == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="twice")
        with pytest.raises(ValueError, match="in flight"):
            hvd.allreduce_async(torch.ones(2), name="twice")
    hvd.barrier()
    if rank > 0:
        handle = hvd.allreduce_async(torch.ones(2), name="twice")
    same(hvd.synchronize(handle), np.ones(2, "float32"))


@row
def disagreements(rank: int, world: int) -> None:
    """What ranks disagree on raises on all, and the next operation works."""
    if world == 1:
        return
    odd = rank == world - 1
    for call, words in (
        (lambda: hvd.allreduce(torch.ones(3 if odd else 2), name="d"), "shapes"),
        (lambda: hvd.allreduce(torch.ones(2).double() if odd else torch.ones(2), name="d"), "dtyp"),
        (lambda: hvd.allreduce(torch.ones(2), name="d", op=hvd.Min if odd else hvd.Max), "op: Max"),
        (lambda: hvd.allreduce(torch.ones(2), name="d", prescale_factor=1.0 + odd), "prescale"),
        (lambda: hvd.broadcast(torch.ones(2), int(odd), name="d"), "root"),
        (lambda: hvd.broadcast(torch.ones(2 + odd), 0, name="d"), "shapes"),
        (lambda: hvd.allgather(torch.ones(2, 2 + odd), name="d"), "after the first"),
        (lambda: hvd.alltoall(torch.ones(world, 2 + odd), name="d"), "after the first"),
        (lambda: hvd.reducescatter(torch.ones(world + odd), name="d"), "shapes"),
        (lambda: hvd.add_process_set([0] if odd else [world - 1]), "ranks"),
    ):
        with pytest.raises(hvd.HorovodInternalError, match=words) as caught:
            call()
        assert f"rank {world - 1}" in str(caught.value)
        same(hvd.allreduce(tensor(rank, 3), name="d", op=hvd.Sum), stack(world, 3).sum(0))


@row
def batch_norm(rank: int, world: int) -> None:
    every_input = torch.randn(world * 4, 3, 5, generator=torch.Generator().manual_seed(0)).double()
    sizes = [4] * world if world < 2 else [5, 3, *[4] * (world - 2)]
    own = torch.split(every_input, sizes)[rank].clone().requires_grad_()
    ours, torchs = hvd.SyncBatchNorm(3).double(), torch.nn.BatchNorm1d(3).double()
    with torch.no_grad():
        for one in (ours, torchs):
            one.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
    whole = every_input.clone().requires_grad_()
    expected = torchs(whole)
    found = ours(own)
    torch.testing.assert_close(found, torch.split(expected, sizes)[rank])
    weight = torch.arange(expected.numel(), dtype=torch.float64).reshape(expected.shape).sin()
    (expected * weight).sum().backward()
    (found * torch.split(weight, sizes)[rank]).sum().backward()
    assert own.grad is not None
    assert whole.grad is not None
    torch.testing.assert_close(own.grad, torch.split(whole.grad, sizes)[rank])
    torch.testing.assert_close(ours.running_mean, torchs.running_mean)
    torch.testing.assert_close(ours.running_var, torchs.running_var)
    ours.eval()
    torchs.eval()
    torch.testing.assert_close(ours(own), torch.split(torchs(whole), sizes)[rank])


@row
def timeline(rank: int, _world: int) -> None:
    path = Path(f"timeline.{rank}.json").absolute()
    hvd.start_timeline(str(path), mark_cycles=True)
    hvd.allreduce(torch.ones(2), name="drawn")
    hvd.stop_timeline()
    assert path.exists() == (rank == 0)
    if rank == 0:
        events = json.loads(path.read_text(encoding="utf-8"))
        names = {event["name"] for event in events}
        assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "CYCLE_START"} <= names
        assert any(event.get("args") == {"name": "allreduce.drawn"} for event in events)
        path.unlink()


@row
def no_warning(rank: int, _world: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hvd.allreduce(tensor(rank, 3), name="quiet")
