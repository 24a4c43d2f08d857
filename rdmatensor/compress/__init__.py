"""Compress a model from its own script: which tensors, by which method, how far, in which steps.

For example::

    policy = compress.Policy(
        compress.Prune("conv*", by="near_zero", block=(1, 16), to=0.9),
        compress.Quantize("fc", points="clustered", bits=4),
        process=compress.Progressive(step=0.1, retrain=train),
    )
    result = compress.run(model, policy, optimizer, evaluate=evaluate)
    print(result.table())
    torch.save(result.export("codebook"), "small.pt")

all_reduce(), reduce_scatter() and all_gather() send tensors in fewer bytes, whatever they are.

Ranks of a group call it together and get the same masks. The parameters stay the same objects, so
optimizers, DistributedDataParallel and planned models go on with them.
"""

from __future__ import annotations

from rdmatensor.compress.export import load
from rdmatensor.compress.fsdp import ReduceScatter
from rdmatensor.compress.policy import Item, Policy, Progressive, Prune, Quantize, Target
from rdmatensor.compress.process import run
from rdmatensor.compress.result import Result, Round
from rdmatensor.compress.sensitivity import Curve, sensitivity
from rdmatensor.compress.wire import all_gather, all_reduce, reduce_scatter

__all__ = [
    "Curve",
    "Item",
    "Policy",
    "Progressive",
    "Prune",
    "Quantize",
    "ReduceScatter",
    "Result",
    "Round",
    "Target",
    "all_gather",
    "all_reduce",
    "load",
    "reduce_scatter",
    "run",
    "sensitivity",
]
