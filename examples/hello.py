"""Two processes sum a tensor."""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank: int, store: str) -> None:
    dist.init_process_group("rdmatensor", init_method=f"file://{store}", rank=rank, world_size=2)
    tensor = torch.full((4,), float(rank + 1))
    dist.all_reduce(tensor)
    print(f"rank {rank}: {tensor.tolist()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (f"{folder}/store",), nprocs=2)
