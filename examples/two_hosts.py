"""Check how two hosts reach each other, then sum a tensor; start it with torchrun on both."""

import socket

import torch.distributed as dist

import rdmatensor

dist.init_process_group("rdmatensor")
rank = dist.get_rank()

tensor = rdmatensor.torch.zeros((1 << 20,))
tensor += rank + 1
dist.all_reduce(tensor)

for peer in rdmatensor.distributed.describe()["peers"]:
    print(
        f"rank {rank} on {socket.gethostname()} -> rank {peer['rank']}: {peer['path']}", flush=True
    )
dist.barrier()
if rank == 0:
    print(f"sum: {tensor[0].item()}")
dist.destroy_process_group()
