"""What one process can see of the backend: its registration, its memory, its refusals."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rdmatensor import _autoload, default_context, distributed
from rdmatensor.torch import empty, empty_like, is_in_arena, ones, zeros, zeros_like

# What torch imports of it when it is there; nothing of it is called before a group is made.
TORCHCOMMS = {
    "__init__.py": "def new_comm(): ...",
    "_comms.py": "class _BackendWrapper: ...",
    "hooks.py": "class FlightRecorderHook: ...",
}


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("first", ["torch", "rdmatensor"])
def test_importing_torch_is_enough(first: str) -> None:
    code = f"""
        import {first}
        import sys, torch
        loaded = any(name.startswith("rdmatensor._c10d") for name in sys.modules)
        print(torch.distributed.is_backend_available("rdmatensor"), loaded)
    """
    assert run_python(code) == "True False"


def test_nothing_is_registered_where_the_user_switched_it_off() -> None:
    code = """
        import torch
        print(torch.distributed.is_backend_available("rdmatensor"))
    """
    assert run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "False"


def test_registration_warns_and_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no more backends today")

    monkeypatch.setattr(dist.Backend, "_plugins", {})
    monkeypatch.setattr(dist.Backend, "register_backend", refuse)

    with pytest.warns(RuntimeWarning, match="RuntimeError: no more backends today"):
        _autoload.register()


@pytest.mark.parametrize("is_there", [True, False])
def test_torch_that_asks_torchcomms_instead_is_told_of(is_there: bool, tmp_path: Path) -> None:
    """torch looks for the package first; where it is not there the variable changes nothing."""
    if is_there:
        for name, content in TORCHCOMMS.items():
            place = tmp_path / "torchcomms" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)
    code = """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import torch.distributed as dist
        told = [str(one.message) for one in caught if "TORCHCOMMS" in str(one.message)]
        print(len(told), all("'rdmatensor'" in one for one in told))
    """
    environment = {"TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1", "PYTHONPATH": str(tmp_path)}

    assert run_python(code, **environment) == f"{int(is_there)} True"


def test_warnings_that_are_errors_do_not_break_the_import_of_torch(tmp_path: Path) -> None:
    test_torch_that_asks_torchcomms_instead_is_told_of(True, tmp_path)  # makes the package
    environment = {
        "TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1",
        "PYTHONPATH": str(tmp_path),
        "PYTHONWARNINGS": "error::RuntimeWarning",
    }
    code = """
        import torch.distributed as dist
        print("RDMATENSOR" in dist.Backend._plugins)
    """
    assert run_python(code, **environment) == "True"


def test_registration_again_is_harmless() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _autoload.register()
        _autoload.register()


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="takes no options of type dict"):
        distributed.create(object(), {"fast": True})  # type: ignore[arg-type]


def test_options_are_settings_of_the_process() -> None:
    code = """
        import torch, torch.distributed as dist, rdmatensor
        options = rdmatensor.Options(arena_mib=8, timeout_s=7.0)
        dist.init_process_group("rdmatensor", store=dist.HashStore(), rank=0, world_size=1,
                                pg_options=options)
        found = rdmatensor.default_context().settings
        print(found.arena_mib, found.timeout_s, found.peer_timeout_s)
        dist.all_reduce(torch.ones(3))
        dist.new_group([0], pg_options=options)
        try:
            dist.new_group([0], pg_options=rdmatensor.Options(arena_mib=16))
        except rdmatensor.InvalidArgumentError as error:
            print(error.detail)
        dist.destroy_process_group()
    """
    first, second = run_python(code, RDMATENSOR_PEER_TIMEOUT_S="3").splitlines()
    assert first == "8 7.0 3.0"
    assert "open with another arena_mib: 8, not 16" in second


def test_factories_have_the_signature_of_torch_s() -> None:
    assert empty(2, 3).shape == empty((2, 3)).shape == empty(torch.Size([2, 3])).shape == (2, 3)
    assert zeros(2, requires_grad=True).requires_grad
    assert ones(3, dtype=torch.int64).tolist() == [1, 1, 1]
    other = torch.ones(2, 5, dtype=torch.float16).t()
    assert (empty_like(other).shape, empty_like(other).dtype) == ((5, 2), torch.float16)
    assert zeros_like(other, dtype=torch.int8, requires_grad=False).sum() == 0
    assert empty().shape == zeros(()).shape == ()
    assert all(is_in_arena(one) for one in (empty(3), zeros(3), ones(3), empty_like(other)))
    assert empty(3, device="cpu").device.type == "cpu"
    with pytest.raises(ValueError, match=r"device='cuda': the arena is CPU memory.*NCCL"):
        empty(3, device="cuda")
    with pytest.raises(TypeError, match=r"dtype=torch\.float32"):
        empty(3, torch.float32)  # type: ignore[arg-type]


def test_tensors_are_born_in_the_arena_and_stay_ordinary() -> None:
    def live_bytes() -> int:
        regions = default_context().describe()["regions"]
        assert isinstance(regions, dict)
        return int(regions["live_bytes"])

    before = live_bytes()
    tensor = zeros((256, 256))
    assert tensor.shape == (256, 256)
    assert tensor.dtype == torch.float32
    assert tensor.eq(0).all()
    assert live_bytes() - before >= 256 * 256 * 4

    tensor.resize_(512, 512).fill_(2.0)
    assert live_bytes() - before >= 512 * 512 * 4
    view = tensor[1:3].t()
    del tensor
    assert view.sum() == 2.0 * 2 * 512
    grown = view.untyped_storage()
    grown.resize_(0)
    assert grown.nbytes() == 0
    del view, grown
    assert live_bytes() == before


def test_tensors_of_the_arena_take_part_in_autograd() -> None:
    weight = empty((8, 3, 3, 3)).normal_().requires_grad_()
    images = empty((2, 3, 16, 16)).normal_()

    loss = torch.nn.functional.conv2d(images, weight).square().sum()
    loss.backward()  # type: ignore[no-untyped-call]

    assert weight.grad is not None
    assert weight.grad.shape == weight.shape


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.int64, torch.complex64])
def test_arena_tensors_of_every_kind(dtype: torch.dtype) -> None:
    assert zeros((0, 3), dtype=dtype).shape == (0, 3)
    assert empty(7, dtype=dtype).dtype == dtype
    assert zeros([], dtype=dtype).numel() == 1


def test_impossible_allocations_say_why() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="rdmatensor: "):
        empty(1 << 48)


def test_arena_tensors_outlive_their_context_and_are_left_alone_by_children() -> None:
    code = """
        import gc, os, sys
        import rdmatensor
        from rdmatensor.torch import zeros

        tensor = zeros(100_000)
        child = os.fork()
        if child == 0:
            del tensor
            gc.collect()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        tensor += 1
        rdmatensor.default_context().close()
        print(float(tensor.sum()))
        del tensor
    """
    assert run_python(code) == "100000.0"
