"""How many bytes a second the copy variant of `bench models` moves: one way, tensors in a row.

Rank 0 sends, rank 1 takes the time, between two steps' last bytes in its private memory. Every
--rings PIECE:SLOTS has a turn in each round, so that they can be searched.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.workers.copy_variant import Exchange, Ring

_PATIENCE_S = 60.0
_WARM_STEPS = 2
_VOLUME = 32 << 20  # of a step, where two tensors are not more
_MOST_TENSORS = 64


def send(exchange: Exchange, tensors: list[torch.Tensor], steps: int) -> None:
    for _ in range(steps):
        for index, tensor in enumerate(tensors):
            exchange.push(index, tensor)
        exchange.sent()


def receive(exchange: Exchange, tensors: list[torch.Tensor], steps: int) -> list[int]:
    """Return how long each step took, in nanoseconds; the first ones are not told."""
    ends_ns = []
    for _ in range(steps):
        exchange.release()
        (arrived,) = exchange.received().values()
        ends_ns.append(time.perf_counter_ns())
        if any(
            not torch.equal(a.view(-1)[::4099], b[::4099])
            for a, b in zip(tensors, arrived, strict=True)
        ):
            raise RuntimeError("other tensors came than were sent")
    return [end - start for start, end in itertools.pairwise(ends_ns[_WARM_STEPS - 1 :])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--sizes", required=True, help="bytes of a tensor, separated by commas")
    parser.add_argument("--steps", type=int, default=5, help="timed, of a round")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rings", default="", help="PIECE:SLOTS,...; else that of the path")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    names = str(chosen.rings).split(",")
    for number in range(chosen.rounds):
        for size in map(int, chosen.sizes.split(",")):
            count = max(2, min(_MOST_TENSORS, _VOLUME // size))
            tensors = [torch.randn(size // 4) for _ in range(count)]
            for name in names:
                folder = chosen.folder / f"{number}-{size}-{name.replace(':', '-')}"
                folder.mkdir(exist_ok=True)
                ring = Ring(*map(int, name.split(":"))) if name else None
                exchange = Exchange(tensors, folder, chosen.rank, 2, _PATIENCE_S, ring)
                said = {"ring": name, "size": size, "tensors": count}
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
