"""Let tests that ask for several GPUs run on CPU tensors: cuda and device numbers mean the CPU.

Only what the tests use to place things is changed; torch.distributed is not.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed

_GPUS_CLAIMED = 8  # the most that any test asks for


def placed(device: Any) -> Any:
    """Return what stands for a device here; what is none comes back unchanged."""
    if isinstance(device, bool):
        return device
    is_gpu = isinstance(device, int) or (isinstance(device, str) and device.startswith("cuda"))
    if is_gpu or (isinstance(device, torch.device) and device.type == "cuda"):
        return torch.device("cpu")
    return device


class OnCpu(TorchFunctionMode):
    """Changes the devices that torch functions are called with."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if named.get("device") is not None:
            named["device"] = placed(named["device"])
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to and len(args) > 1:
            args = (args[0], placed(args[1]), *args[2:])
        return func(*args, **named)


def _replace_skips() -> None:
    def unchanged(function: Any) -> Any:
        return function

    common_distributed.skip_if_lt_x_gpu = lambda *_, **__: unchanged
    common_distributed.nccl_skip_if_lt_x_gpu = lambda *_: unchanged
    common_distributed.skip_if_no_gpu = unchanged


def _replace_placement() -> None:
    module_to, ddp_init = torch.nn.Module.to, DistributedDataParallel.__init__

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        named = {key: placed(value) if key == "device" else value for key, value in kwargs.items()}
        return module_to(self, *(placed(value) for value in args), **named)

    def init(
        self: DistributedDataParallel,
        module: torch.nn.Module,
        device_ids: object = None,
        output_device: object = None,
        **kwargs: Any,
    ) -> None:
        ddp_init(self, module, **kwargs)

    torch.nn.Module.to = to
    torch.nn.Module.cuda = lambda self, *_, **__: self
    torch.Tensor.cuda = lambda self, *_, **__: self
    DistributedDataParallel.__init__ = init


def _replace_cuda() -> None:
    def nothing(*_: object, **__: object) -> None:
        return None

    for name in ("set_device", "synchronize", "empty_cache"):
        setattr(torch.cuda, name, nothing)
    torch.cuda.current_device = lambda: 0
    torch.cuda.device_count = lambda: _GPUS_CLAIMED
    torch.cuda.device = lambda *_: contextlib.nullcontext()


def install() -> None:
    """Change this process and those that it forks, permanently; before the suite is imported."""
    _replace_skips()
    _replace_placement()
    _replace_cuda()
    run_test = common_distributed.MultiProcessTestCase.run_test

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with OnCpu():
            return run_test(self, *args, **kwargs)

    common_distributed.MultiProcessTestCase.run_test = run
