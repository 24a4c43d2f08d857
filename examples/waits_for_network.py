"""A model that waits for its network: choose how it is split, and train it so.

torchrun --nproc-per-node 2 examples/waits_for_network.py

Behind a slow link (needs root):
bash ci/throttle.sh 500mbit -- env RDMATENSOR_TRANSPORT=tcp \
    torchrun --nproc-per-node 2 examples/waits_for_network.py --width 2048
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rdmatensor import parallel


def make_model(width: int) -> nn.Module:
    """A small AlexNet: convolutions with few weights, two linear layers with nearly all of them."""
    torch.manual_seed(0)
    features = nn.Sequential(
        *(nn.Conv2d(3, 32, 5, stride=2, padding=2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten()),
    )
    classifier = nn.Sequential(nn.Linear(64 * 8 * 8, width), nn.ReLU(), nn.Linear(width, 1024))
    return nn.Sequential(features, classifier)


def make_rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of so many rows, other ones on each rank."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(count, 3, 64, 64, generator=generator)
    return x, torch.randn(count, 1024, generator=generator)


def median_ms(step: Callable[[], object], optimizer: torch.optim.Optimizer, steps: int) -> float:
    """The median time of a step with its optimizer, on this rank."""
    times = []
    for _ in range(steps + 2):
        began = time.perf_counter()
        optimizer.zero_grad()
        step()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times[2:])


def main() -> None:
    """Choose, train, and compare with DistributedDataParallel."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=512, help="of the layer in the middle")
    parser.add_argument("--batch", type=int, default=16, help="rows of each rank")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--save", type=Path, help="write the choice into this file")
    options = parser.parse_args()
    torch.set_num_threads(1)

    dist.init_process_group("rdmatensor")
    rank = dist.get_rank()
    x, y = make_rows(options.batch)
    sgd = functools.partial(torch.optim.SGD, lr=0.01)
    loss_fn = nn.functional.mse_loss

    # Choose
    model = make_model(options.width)
    machine = parallel.measure_machine()
    choice = parallel.choose(model, (x,), y, loss_fn=loss_fn, machine=machine, state_copies=0)
    if rank == 0:
        print(choice.text(), flush=True)

    # Train
    trained = parallel.apply(model, choice, sgd, loss_fn=loss_fn)
    own_x, own_y = make_rows(trained.shares[rank])
    split_ms = median_ms(lambda: trained.step((own_x,), own_y), trained.optimizer, options.steps)

    # Compare
    plain = DistributedDataParallel(make_model(options.width), gradient_as_bucket_view=True)
    plain_ms = median_ms(
        lambda: loss_fn(plain(x), y).backward(), sgd(plain.parameters()), options.steps
    )
    if rank == 0:
        predicted_ms = choice.predicted.step_ns / 1e6
        print(f"{choice.name}: {split_ms:.0f} ms a step, predicted {predicted_ms:.0f}")
        print(f"DistributedDataParallel: {plain_ms:.0f} ms a step", flush=True)
        if options.save is not None:
            options.save.write_text(parallel.partition_to_json(choice))
    trained.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
