"""Arrays of the arena, the entry check, dtypes, and region values: no peers needed."""

from __future__ import annotations

import gc
import os
import pickle
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdmatensor import (
    Context,
    ForkedProcessError,
    InvalidArgumentError,
    OutOfMemoryError,
    ProtocolError,
    RdmaTensorError,
    RemoteRegion,
    Settings,
)
from rdmatensor._native.ffi import dtype_code, lib
from rdmatensor.memory import dtype_name, span
from rdmatensor.types import DTYPE_NAMES


@pytest.fixture
def context() -> Iterator[Context]:
    with Context(Settings(loopback=True)) as context:
        yield context


def _arena(context: Context) -> dict[str, Any]:
    arena = context.describe()["arena"]
    assert isinstance(arena, dict)
    return arena


def _live(context: Context) -> int:
    regions = context.describe()["regions"]
    assert isinstance(regions, dict)
    return int(regions["live"])


def test_dtypes_are_in_the_order_of_the_header() -> None:
    assert [dtype_code(name, "test") for name in DTYPE_NAMES] == list(range(1, 16))
    for name in DTYPE_NAMES:
        if name != "bfloat16":
            assert lib.rdt_dtype_bytes(dtype_code(name, "test")) == np.dtype(name).itemsize


def test_arrays_are_ordinary_arrays(context: Context) -> None:
    for shape in ((), (5,), (3, 4), (2, 0, 3), 7, (1,) * 8):
        for dtype in ("float32", np.int64, np.dtype("complex64"), "bool"):
            array = context.zeros(shape, dtype)
            assert array.shape == ((shape,) if isinstance(shape, int) else shape)
            assert array.dtype == np.dtype(dtype)
            assert array.flags.c_contiguous
            assert array.flags.writeable
            assert not array.any()
            assert array.ctypes.data % 64 == 0 or array.size == 0


def test_arrays_do_not_overlap(context: Context) -> None:
    arrays = [context.empty(1000 + 37 * index, "uint8") for index in range(50)]
    for index, array in enumerate(arrays):
        array[:] = index
    for index, array in enumerate(arrays):
        assert (array == index).all()


def test_memory_goes_with_the_last_view(context: Context) -> None:
    before = _live(context)
    array = context.zeros((100, 100))
    view = memoryview(array[3:7])
    capsule = np.from_dlpack(array)
    assert _live(context) == before + 1
    del array
    gc.collect()
    assert _live(context) == before + 1
    capsule[4] = 5
    assert view[1, 0] == 5
    del view, capsule
    gc.collect()
    assert _live(context) == before


def test_shapes_and_dtypes_that_are_refused(context: Context) -> None:
    shapes = [(1,) * 9, (-1,), (1.5,), (2**62,), (2**40, 2**40), ("a",)]
    for shape in shapes:
        with pytest.raises(InvalidArgumentError):
            context.empty(shape)  # type: ignore[arg-type]
    for dtype in ("float31", object, "U5", "M8[s]", ">f4", np.dtype([("a", "i4")])):
        with pytest.raises(InvalidArgumentError):
            context.empty(4, dtype)


def test_numpy_s_integers_are_dims(context: Context) -> None:
    assert context.zeros((np.int64(3), np.uint8(2))).shape == (3, 2)
    assert context.zeros(np.int32(4)).shape == (4,)
    for shape in (3.0, "34", None):
        with pytest.raises(InvalidArgumentError, match="shape"):
            context.empty(shape)  # type: ignore[arg-type]


def test_what_is_no_tensor_is_told_what_is(context: Context) -> None:
    square = np.ones((4, 4), "float32")
    for wrong, says in [
        ([1, 2], r"NumPy array.*buffer protocol.*CPU torch tensor, got list"),
        (square[:, ::2], r"ndarray of shape \(4, 2\) .*row-major.*ascontiguousarray"),
    ]:
        with pytest.raises(InvalidArgumentError, match=says):
            span(wrong, "test")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="bytes is read-only"):
        span(b"abc", "test", writable=True)


def test_what_a_user_prints_has_a_name(context: Context) -> None:
    with context.register(bytearray(9)) as region:
        assert repr(region) == "<Region of 9 B>"
    assert repr(region) == "<Region of 9 B, closed>"
    assert repr(context).startswith("<Context ")


def test_a_limit_on_the_arena_is_kept_and_named() -> None:
    with Context(Settings(arena_mib=1, arena_max_mib=8, loopback=True)) as context:
        kept = context.empty(2 << 20, "uint8")
        with pytest.raises(OutOfMemoryError, match=r"arena") as caught:
            context.empty(64 << 20, "uint8")
        assert isinstance(caught.value, MemoryError)
        kept[:] = 1
        assert context.zeros(1000).sum() == 0


def test_more_than_the_machine_has_is_refused_not_killed(context: Context) -> None:
    with pytest.raises(OutOfMemoryError):
        context.empty(1 << 45, "uint8")


@pytest.mark.parametrize(
    "settings",
    [
        {"transport": "verbs"},
        {"addr": "192.0.2.77"},
        {"ifname": "nosuchif0"},
    ],
)
def test_settings_that_cannot_be_met_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(RdmaTensorError) as caught:
        Context(Settings(**settings))  # type: ignore[arg-type]
    assert next(iter(settings.values())) in str(caught.value)


def test_ports_are_taken_from_the_range() -> None:
    with Context(Settings(ports=(42350, 42399), loopback=True)) as context:
        listens = context.describe()["listens"]
    assert isinstance(listens, list)
    assert listens
    assert all(42350 <= int(text.rpartition(":")[2]) <= 42399 for text in listens)


def test_a_forked_child_is_refused_and_frees_nothing(context: Context) -> None:
    array = context.zeros(1000)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            context.empty(5)
        except ForkedProcessError:
            try:
                Context(Settings())
            except ForkedProcessError:
                status = 0
        array[:] = 4
        del array
        gc.collect()
        context.close()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (array == 4).all()
    assert context.zeros(1000).sum() == 0


def test_close_is_idempotent_and_ends_everything(context: Context) -> None:
    context.close()
    context.close()
    assert context.is_closed
    for call in (lambda: context.empty(1), context.describe, lambda: context.address):
        with pytest.raises(RdmaTensorError, match="closed"):
            call()


def test_uuid_and_address_differ_between_contexts(context: Context) -> None:
    with Context(Settings(loopback=True)) as other:
        assert context.uuid != other.uuid
        assert context.address != other.address
    assert len(context.uuid) == 16


def test_jobs_that_are_refused(context: Context) -> None:
    with pytest.raises(InvalidArgumentError, match="RDMATENSOR_SECRET"):
        context.connect(context.address)
    for job in ("", "x" * 64, "line\nbreak"):
        with pytest.raises(InvalidArgumentError):
            context.add_job(job, b"secret")
    context.add_job("j", b"secret")
    for address in (b"", b"x" * 100, context.address[:-1], context.address + b"x"):
        with pytest.raises(RdmaTensorError):
            context.connect(address, job="j")


# ---- the entry check -----------------------------------------------------------------------------


class FakeTensor:
    """As much of a torch.Tensor as the check looks at."""

    layout = "torch.strided"

    def __init__(self, array: np.ndarray, **changes: object) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = f"torch.{array.dtype}"
        self.device = type("Device", (), {"type": "cpu"})()
        self.__dict__.update(changes)

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def is_contiguous(self) -> bool:
        return bool(self._array.flags.c_contiguous)

    def element_size(self) -> int:
        return self._array.itemsize

    def numel(self) -> int:
        return self._array.size


def test_tensors_of_torch_are_taken_by_their_looks(context: Context) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    data, len_bytes = span(FakeTensor(array), "test")
    assert len_bytes == 48
    from rdmatensor._native.ffi import ffi

    assert bytes(ffi.buffer(data, 48)) == array.tobytes()
    refused = [
        FakeTensor(array.T),
        FakeTensor(array, layout="torch.sparse_coo"),
        FakeTensor(array, device=type("Device", (), {"type": "cuda"})()),
        FakeTensor(array, is_conj=lambda: True),
        FakeTensor(array, is_neg=lambda: True),
    ]
    for tensor in refused:
        with pytest.raises(InvalidArgumentError):
            span(tensor, "test")


def test_real_torch_tensors() -> None:
    torch = pytest.importorskip("torch", reason="no torch")
    tensor = torch.arange(10, dtype=torch.bfloat16)
    data, len_bytes = span(tensor, "test")
    from rdmatensor._native.ffi import ffi

    assert bytes(ffi.buffer(data, len_bytes)) == tensor.view(torch.uint8).numpy().tobytes()
    assert dtype_name(torch.bfloat16) == "bfloat16"
    assert span(torch.ones(3, requires_grad=True), "test")[1] == 12
    assert span(torch.ones((0, 3)), "test")[1] == 0
    for wrong in (torch.ones(4, 4).t(), torch.ones(2, device="meta"), torch.eye(3).to_sparse(),
                  torch.ones(2, dtype=torch.complex64).conj()):  # fmt: skip
        with pytest.raises(InvalidArgumentError):
            span(wrong, "test")


def test_a_source_is_kept_by_its_span() -> None:
    data = bytearray(100)
    held, _ = span(data, "test")
    with pytest.raises(BufferError):
        data.append(1)
    del held
    gc.collect()
    data.append(1)


# ---- region values -------------------------------------------------------------------------------

u32 = st.integers(0, 2**32 - 1)
u62 = st.integers(0, 2**62 - 1)
remote_regions = st.builds(
    RemoteRegion, st.binary(min_size=16, max_size=16), u62, u62, u62, u32, u32, u32, u32
)


@settings(deadline=None)  # a loaded machine is no finding
@given(remote_regions)
def test_a_region_survives_bytes_and_pickle(region: RemoteRegion) -> None:
    data = region.encode()
    assert len(data) == 64
    assert RemoteRegion.decode(data) == region
    copy = pickle.loads(pickle.dumps(region))
    assert copy == region
    assert copy.encode() == data
    assert hash(copy) == hash(region)


@settings(deadline=None)  # a loaded machine is no finding
@given(remote_regions, st.integers(0, 511))
def test_a_damaged_region_is_refused(region: RemoteRegion, bit: int) -> None:
    data = bytearray(region.encode())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ProtocolError):
        RemoteRegion.decode(bytes(data))


@settings(deadline=None)  # a loaded machine is no finding
@given(st.binary(max_size=130))
def test_random_bytes_are_no_region(data: bytes) -> None:
    with pytest.raises(RdmaTensorError):
        RemoteRegion.decode(data)


def test_a_region_s_text_has_no_rkey() -> None:
    region = RemoteRegion(bytes(16), 1, 2, 3, 4, 5, 6, 0xDEADBEEF)
    assert "deadbeef" not in repr(region)
    assert str(0xDEADBEEF) not in repr(region)


def test_where_the_arena_lies_is_what_the_kernel_says(context: Context) -> None:
    """Every page that came into memory is on one of its nodes."""
    array = context.empty((8 << 20,), "uint8")
    array[:] = 1
    arena = _arena(context)
    placement = arena["placement"]
    if not Path("/proc/self/numa_maps").exists():
        assert placement["reason"].startswith("not told by the kernel: /proc/self/numa_maps")
        assert placement["node_bytes"] is placement["far_bytes"] is None
        return
    assert placement["reason"] == ""
    assert sum(placement["node_bytes"].values()) == arena["populated_bytes"] >= array.nbytes
    near = {str(node) for node in placement["cpu_nodes"]}
    far_bytes = [size for node, size in placement["node_bytes"].items() if node not in near]
    assert near
    assert placement["far_bytes"] == sum(far_bytes)


def test_what_the_kernel_does_not_tell_is_no_error(context: Context) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Path("/dev/null").open("rb") as file:
        free = file.fileno()  # the least; from there on nothing can be opened
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        placement = _arena(context)["placement"]
        text = context.describe_text(verbose=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    reason = "not told by the kernel: /proc/self/numa_maps: Too many open files"
    assert placement == {
        "node_bytes": None, "cpu_nodes": None, "far_bytes": None, "reason": reason,
    }  # fmt: skip
    assert f"placement: {reason}" in text


def test_another_context_s_arena_is_not_counted(context: Context) -> None:
    before = _arena(context)["placement"]
    with Context(Settings(loopback=True)) as other:
        array = other.zeros((8 << 20,), "uint8")
        assert _arena(context)["placement"] == before
        del array
