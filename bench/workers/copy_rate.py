"""How many bytes a second the copy variant of `bench models` moves: one way, tensors in a row.

Rank 0 sends, rank 1 takes the time, between two steps' last bytes in its private memory; the first
step is compared before. Each rank has a core, where there are as many. With --same all tensors of a
side are one, which its caches may hold, as the messages of ucx_perftest are.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.workers.copy_variant import Exchange

_PATIENCE_S = 60.0
_WARM_STEPS = 2
_VOLUME = 32 << 20  # of a step, where two tensors are not more
_MOST_TENSORS = 512


def send(exchange: Exchange, tensors: list[torch.Tensor], steps: int) -> None:
    for _ in range(steps):
        for index, tensor in enumerate(tensors):
            exchange.push(index, tensor)
        exchange.sent()


def receive(exchange: Exchange, tensors: list[torch.Tensor], steps: int) -> list[int]:
    """Return how long each step took, in nanoseconds; the first ones are not told."""
    ends_ns = []
    for step in range(steps):
        exchange.release()
        (arrived,) = exchange.received().values()
        if step == 0 and not all(map(torch.equal, tensors, arrived)):
            raise RuntimeError("other tensors came than were sent")
        ends_ns.append(time.perf_counter_ns())
    return [end - start for start, end in itertools.pairwise(ends_ns[_WARM_STEPS - 1 :])]


def tensors_of(size: int, volume: int, *, is_same: bool) -> list[torch.Tensor]:
    """Return the tensors of a step."""
    count = max(2, min(_MOST_TENSORS, volume // size))
    torch.manual_seed(1)  # on both sides
    return [torch.randn(size // 4)] * count if is_same else list(torch.randn(count, size // 4))


def take_a_core(rank: int) -> None:
    """Keep this process and its threads to come on a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1 and rank < len(cores):
        os.sched_setaffinity(0, {cores[rank]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--sizes", required=True, help="bytes of a tensor, separated by commas")
    parser.add_argument("--steps", type=int, default=5, help="timed, of a round")
    parser.add_argument("--volume", type=int, default=_VOLUME, help="bytes of a step, about")
    parser.add_argument("--same", action="store_true", help="all tensors of a side are one")
    chosen = parser.parse_args()
    take_a_core(chosen.rank)
    torch.set_num_threads(1)
    for size in map(int, chosen.sizes.split(",")):
        tensors = tensors_of(size, chosen.volume, is_same=chosen.same)
        folder = chosen.folder / str(size)
        folder.mkdir(exist_ok=True)
        exchange = Exchange(tensors, folder, chosen.rank, 2, _PATIENCE_S)
        said: dict[str, object] = {"size": size, "tensors": len(tensors)}
        run(exchange, tensors, chosen.rank, _WARM_STEPS + chosen.steps, said)
        exchange.close()


def run(
    exchange: Exchange, tensors: list[torch.Tensor], rank: int, steps: int, said: dict[str, object]
) -> None:
    """One end; the receiver tells what it took."""
    if rank == 0:
        send(exchange, tensors, steps)
        return
    said["raw_ns"] = receive(exchange, tensors, steps)
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
