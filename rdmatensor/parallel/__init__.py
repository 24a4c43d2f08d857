"""Choose how a model is split over ranks, and train it so.

For example::

    choice = parallel.choose(model, (x,), y, loss_fn=mse_loss)
    if dist.get_rank() == 0:
        print(choice.text())
    trained = parallel.apply(model, choice, partial(SGD, lr=0.1), loss_fn=mse_loss)
    for x, y in batches:
        trained.optimizer.zero_grad()
        trained.step((x,), y)
        trained.optimizer.step()

Ways are data parallel, pairs of linear layers split by features, parameters sharded over the ranks,
mixtures of these, stages of a pipeline, and unequal rows for ranks of unequal speed.
"""

from __future__ import annotations

from graph_analysis import Machine, machine_from_json, machine_to_json
from graph_analysis.partition import Partition, partition_from_json, partition_to_json
from rdmatensor.parallel._apply import Described, ParallelModel, apply
from rdmatensor.parallel._choose import choose
from rdmatensor.parallel._measure import measure_machine

__all__ = [
    "Described",
    "Machine",
    "ParallelModel",
    "Partition",
    "apply",
    "choose",
    "machine_from_json",
    "machine_to_json",
    "measure_machine",
    "partition_from_json",
    "partition_to_json",
]
