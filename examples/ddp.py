"""Train a model with DistributedDataParallel: torchrun --nproc-per-node 2 examples/ddp.py."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import rdmatensor

STEPS = 60

# The group. In a script that runs on Gloo, this name is the only change.
dist.init_process_group("rdmatensor")
rank = dist.get_rank()
torch.manual_seed(0)  # the same model and data on all ranks

# The data: each rank takes every n-th row.
inputs = torch.rand(512, 64)
targets = inputs @ torch.rand(64, 1)
mine = slice(rank, None, dist.get_world_size())

# The model. Gradients are views of the buckets, which lie in the arena.
layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
model = DistributedDataParallel(layers, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.005)

# The steps, as with any backend.
for step in range(STEPS):
    optimizer.zero_grad()
    loss = (model(inputs[mine]) - targets[mine]).square().mean()
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 20 == 0:
        print(f"step {step:2}: loss {loss.item():.3f}", flush=True)

# How the ranks reach each other, and what each step cost.
state = rdmatensor.distributed.describe()
if rank == 0:
    print(f"path to rank 1: {state['peers'][0]['path']}")
    print(f"tensors allocated in the arena: {state['adopted'][0]['tensors']}")
    gradients = state["gradients"][0]
    print(f"gradients in place: {gradients['in_place']}, copied: {gradients['copied']}")
dist.destroy_process_group()
