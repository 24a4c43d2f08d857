"""Two processes sum a tensor: torchrun --nproc-per-node 2 examples/hello.py."""

import torch
import torch.distributed as dist

dist.init_process_group("rdmatensor")  # in a program for Gloo, only this name changes
tensor = torch.full((4,), float(dist.get_rank() + 1))
dist.all_reduce(tensor)
print(f"rank {dist.get_rank()}: {tensor.tolist()}", flush=True)
dist.destroy_process_group()
