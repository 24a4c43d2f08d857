"""Train by a plan of the step: torchrun --nproc-per-node 2 examples/planned.py."""

import torch
import torch.distributed as dist

import graph_analysis
import rdmatensor

# The model and an example of its inputs, the same on all ranks.
dist.init_process_group("rdmatensor")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
inputs = torch.rand(32, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

# The plan: what crosses between ranks, in which bucket, at which offset.
strategy = graph_analysis.DataParallel(dist.get_world_size())
plan = graph_analysis.analyze(model, (inputs,), strategy=strategy)

# The planned model allocates each gradient where it is sent from.
planned = rdmatensor.plan.apply(model, plan, optimizer)
for _ in range(5):
    optimizer.zero_grad()
    planned(inputs).square().mean().backward()
    optimizer.step()

# What the last step cost on this rank.
step = planned.describe()["last_step"]
if dist.get_rank() == 0:
    print(f"buckets: {len(plan.buckets)}")
    print(f"bytes moved into their place: {step['moved_bytes']}")
    print(f"bytes copied on the way: {step['copied_bytes']}")
dist.destroy_process_group()
