"""Training scripts of Accelerate and of the Hugging Face Trainer, over a group made before them."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TIMEOUT = timedelta(seconds=60)


def _data() -> TensorDataset:
    generator = torch.Generator().manual_seed(4)
    return TensorDataset(
        torch.randn(32, 8, generator=generator), torch.randn(32, 1, generator=generator)
    )


class Model(nn.Module):
    """What the Trainer wants: a loss and the outputs, by name."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found: torch.Tensor = self.inner(x)
        return {"loss": (found - labels).square().mean(), "logits": found}


def accelerator(rank: int, world: int, *, backend: str) -> dict[str, Any]:
    """Train by an Accelerator."""
    from accelerate import Accelerator

    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=TIMEOUT)
    made = Accelerator(cpu=True)
    loader = DataLoader(_data(), batch_size=4)
    net = Model()
    model, optimizer, batches = made.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1), loader)
    for x, labels in batches:
        optimizer.zero_grad()
        made.backward(model(x, labels)["loss"])
        optimizer.step()
    ranks = made.gather(torch.tensor([rank])).tolist()
    found = {
        "backend": dist.get_backend(model.process_group),
        "ranks": ranks,
        "weights": _weights(net),
        "processes": made.num_processes == world,
    }
    made.wait_for_everyone()
    dist.destroy_process_group()
    return found


def trainer(rank: int, world: int, *, backend: str, folder: str) -> dict[str, Any]:
    """Train by a Trainer, which takes no name of a backend that Accelerate does not know."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from transformers import Trainer, TrainingArguments

    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=TIMEOUT)
    net = Model()
    arguments = TrainingArguments(
        output_dir=str(Path(folder) / f"trained {rank}"),
        use_cpu=True,
        max_steps=4,
        per_device_train_batch_size=4,
        learning_rate=0.1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    rows = [{"x": x, "labels": y} for x, y in zip(*_data().tensors, strict=True)]
    made = Trainer(model=net, args=arguments, train_dataset=rows)
    made.train()
    found = {
        "backend": dist.get_backend(),
        "is_wrapped": isinstance(made.model_wrapped, nn.parallel.DistributedDataParallel),
        "weights": _weights(net),
        "world": world,
    }
    dist.destroy_process_group()
    return found


def _weights(net: nn.Module) -> list[float]:
    return [float(parameter.detach().double().sum()) for parameter in net.parameters()]
