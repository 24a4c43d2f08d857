"""Elastic training for torch: run, TorchState, ElasticSampler."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

import rdmatensor.horovod.torch as hvd
from rdmatensor.horovod.torch.elastic_state import ObjectState, State, run

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]


class ElasticSampler(Sampler[int]):
    """Gives each rank its share of what the epoch has not seen yet, also after ranks change.

    Args:
        dataset: Of which only the length is used.
        shuffle: In an order that the epoch and the seed decide.
        seed: The same on all ranks.

    Example:
        >>> sampler = ElasticSampler(range(4), shuffle=False)
        >>> list(sampler)
        [0, 1, 2, 3]
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.indices: list[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch. Call it when the one before is over, not when a state was restored.

        Args:
            epoch: Its number.

        Example:
            >>> ElasticSampler(range(4)).set_epoch(1)
        """
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that this rank has processed a batch.

        Args:
            batch_idx: From 0, since the iteration began.
            batch_size: Of this rank.

        Example:
            >>> sampler = ElasticSampler(range(4), shuffle=False)
            >>> first = next(iter(sampler))
            >>> sampler.record_batch(0, 2)
            >>> sorted(sampler.processed_indices)
            [0, 1]
        """
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: list[int]) -> None:
        """Note that this rank has processed samples.

        Args:
            indices: Theirs, in the data set.

        Example:
            >>> ElasticSampler(range(4)).record_indices([1, 3])
        """
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Return the samples of one of this rank's batches.

        Args:
            batch_idx: From 0, since the iteration began.
            batch_size: Of this rank.

        Returns:
            Their indices in the data set.

        Example:
            >>> ElasticSampler(range(4)).get_indices(9, 2)
            []
        """
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and what was processed in it.

        Returns:
            A dictionary for load_state_dict().

        Example:
            >>> ElasticSampler(range(4)).state_dict()["epoch"]
            0
        """
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state.

        Args:
            state_dict: What state_dict() returned.

        Example:
            >>> sampler = ElasticSampler(range(4))
            >>> sampler.load_state_dict({"epoch": 2, "processed_indices": {0}})
            >>> len(sampler)
            3
        """
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def reset(self) -> None:
        """Divide what is left among the ranks that there are now.

        Example:
            >>> ElasticSampler(range(4)).reset()
        """
        self.rank, self.num_replicas = hvd.rank(), hvd.size()
        self.remaining_indices = [
            one for one in range(len(self.dataset)) if one not in self.processed_indices
        ]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        order = list(self.remaining_indices)
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        # All ranks get equally many: the first ones come again if need be.
        order += order[: self.num_samples * self.num_replicas - len(order)]
        self.indices = order[self.rank :: self.num_replicas]
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples


class TorchState(ObjectState):
    """A model, an optimizer, samplers and other attributes.

    Args:
        model: A module.
        optimizer: Its optimizer, wrapped or not.
        **kwargs: Other attributes: an ElasticSampler is synchronised as one, modules and optimizers
            by their state_dict, the rest by pickle.

    Example:
        >>> state = TorchState(torch.nn.Linear(2, 1), epoch=0)
        >>> state.commit()
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: object,
    ) -> None:
        named = {"model": model, "optimizer": optimizer, **kwargs}
        self._modules = _only(named, torch.nn.Module)
        self._optimizers = _only(named, torch.optim.Optimizer)
        self._samplers = _only(named, ElasticSampler)
        held = {**self._modules, **self._optimizers, **self._samplers}
        for name, value in held.items():
            setattr(self, name, value)
        self._states: dict[str, Any] = {}
        self._held = held
        super().__init__(**{name: one for name, one in kwargs.items() if name not in held})
        self.save()

    def save(self) -> None:
        """Keep copies of all.

        Example:
            >>> TorchState(torch.nn.Linear(2, 1)).save()
        """
        self._states = {name: copy.deepcopy(one.state_dict()) for name, one in self._held.items()}
        super().save()

    def restore(self) -> None:
        """Set all to the copies.

        Example:
            >>> TorchState(torch.nn.Linear(2, 1)).restore()
        """
        for name, one in self._held.items():
            one.load_state_dict(copy.deepcopy(self._states[name]))
        super().restore()

    def sync(self) -> None:
        """Take rank 0's model, optimizer and attributes; join what samplers have processed.

        Example:
            >>> TorchState(torch.nn.Linear(2, 1)).sync()
        """
        for one in self._modules.values():
            hvd.broadcast_parameters(one.state_dict(), root_rank=0)
        for one in self._optimizers.values():
            hvd.broadcast_optimizer_state(one, root_rank=0)
        self.sync_shares()
        super().sync()
        self.save()

    def sync_shares(self) -> None:
        """Join what the samplers of all ranks have processed.

        Example:
            >>> TorchState(sampler=ElasticSampler(range(4))).sync_shares()
        """
        for name, one in sorted(self._samplers.items()):
            epoch = hvd.broadcast_object(one.epoch, 0, name=f"elastic.epoch.{name}")
            mine = one.processed_indices if one.epoch == epoch else set()
            shares = hvd.allgather_object(mine, name=f"elastic.sampler.{name}")
            one.load_state_dict({"epoch": epoch, "processed_indices": set().union(*shares)})

    def reset(self) -> None:
        """Divide what samplers have left among the new ranks.

        Example:
            >>> TorchState().reset()
        """
        for one in self._samplers.values():
            one.reset()


def _only(named: dict[str, Any], kind: type) -> dict[str, Any]:
    return {name: one for name, one in named.items() if isinstance(one, kind)}
