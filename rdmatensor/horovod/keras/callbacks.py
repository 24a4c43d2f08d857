"""Callbacks for fit(): one start for all ranks, common metrics, learning rates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import keras
import torch

import rdmatensor.horovod.torch as hvd

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


def broadcast_model(
    model: keras.Model, root_rank: int, without: Iterable[keras.Variable] = ()
) -> None:
    """Copy one rank's model and optimizer variables into those of all ranks.

    Args:
        model: Built, and equal in shape on all ranks.
        root_rank: The rank whose values all get.
        without: Variables that stay as they are. Seeds always do: dropout would drop alike.
    """
    left = {id(one) for one in without}
    seeds = [one.state for one in _seed_generators(model)]
    left.update(id(one) for one in seeds)
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    variables = [*model.variables, *(optimizer.variables if optimizer is not None else [])]
    named = {
        f"broadcast.{number}.{one.path}": one.value.data
        for number, one in enumerate(variables)
        if id(one) not in left
    }
    hvd.broadcast_parameters(named, root_rank)


def _seed_generators(model: keras.Model) -> list[keras.random.SeedGenerator]:
    layers = model._flatten_layers()
    return [
        one
        for layer in layers
        for one in vars(layer).values()
        if isinstance(one, keras.random.SeedGenerator)
    ]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Copies one rank's variables to all, before the first batch.

    Args:
        root_rank: The rank whose variables all get.
        device: Has no effect: tensors are the CPU's.
        local_variables: Variables that stay as they are on each rank.

    Example:
        >>> BroadcastGlobalVariablesCallback(0).root_rank
        0
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Iterable[keras.Variable] | None = None,
    ) -> None:
        super().__init__()
        del device
        self.root_rank = root_rank
        self._local = list(local_variables or ())

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Broadcast; fit() has built the model by now.

        Args:
            logs: Keras's.

        Example:
            >>> BroadcastGlobalVariablesCallback(0).on_train_begin()  # doctest: +SKIP
        """
        del logs
        broadcast_model(self.model, self.root_rank, self._local)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Replaces each epoch's metrics by their averages over ranks.

    Callbacks that read metrics stand after it in fit()'s list.

    Args:
        device: Has no effect.

    Example:
        >>> callbacks = [MetricAverageCallback(), keras.callbacks.EarlyStopping()]
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        del device

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average; all ranks have the same metrics.

        Args:
            epoch: Keras's.
            logs: Metrics, which this changes.

        Example:
            >>> MetricAverageCallback().on_epoch_end(0, {"loss": 1.0})
        """
        del epoch
        if not logs:
            return
        names = sorted(logs)
        values = torch.tensor([float(logs[name]) for name in names], dtype=torch.float64)
        averages = hvd.allreduce(values, name=f"MetricAverageCallback.{','.join(names)}")
        logs.update(zip(names, averages.tolist(), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Multiplies the learning rate by a factor of the epoch.

    Args:
        initial_lr: The rate that is multiplied; None: the optimizer's when training begins.
        multiplier: A factor, or a function of the epoch, which has a fraction if not staircase.
        start_epoch: First epoch of the schedule.
        end_epoch: First epoch after it; None: no end.
        staircase: Change once an epoch, not with each batch.
        momentum_correction: Scale the momentum by new rate / old rate for one batch.
        steps_per_epoch: Batches of an epoch; None: as fit() says.

    Example:
        >>> LearningRateScheduleCallback(0.1, lambda epoch: 0.5**epoch).initial_lr
        0.1
    """

    def __init__(
        self,
        initial_lr: float | None,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.momentum_correction, self.steps_per_epoch = momentum_correction, steps_per_epoch
        self.staircase = staircase or not callable(multiplier)
        self.multiplier: Callable[[float], float] = (
            multiplier if callable(multiplier) else lambda _: float(multiplier)
        )
        self._epoch = 0
        self._momentum: float | None = None  # to restore after the batch

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Learn the rate and the number of batches.

        Args:
            logs: Keras's.

        Raises:
            ValueError: fit() does not know how many batches an epoch has.

        Example:
            >>> LearningRateScheduleCallback(0.1, 1.0).on_train_begin()
        """
        del logs
        if self.initial_lr is None:
            self.initial_lr = float(self.model.optimizer.learning_rate)
        if not self.staircase and self.steps_per_epoch is None:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    f"{type(self).__name__}: fit() does not know the number of batches: give "
                    "steps_per_epoch"
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keep the epoch.

        Args:
            epoch: From 0.
            logs: Keras's.

        Example:
            >>> LearningRateScheduleCallback(0.1, 1.0).on_epoch_begin(2)
        """
        del logs
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Set the rate of the batch.

        Args:
            batch: From 0.
            logs: Keras's.

        Example:
            >>> LearningRateScheduleCallback(0.1, 1.0, start_epoch=5).on_train_batch_begin(0)
        """
        del logs
        if self._epoch < self.start_epoch:
            return
        if self.end_epoch is not None and self._epoch >= self.end_epoch:
            return
        if not self.staircase:
            assert self.steps_per_epoch is not None
            self._set_rate(self._epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._set_rate(self._epoch)

    def _set_rate(self, epoch: float) -> None:
        assert self.initial_lr is not None
        optimizer = self.model.optimizer
        old, new = float(optimizer.learning_rate), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        if self.momentum_correction and getattr(optimizer, "momentum", None):
            self._momentum = optimizer.momentum
            optimizer.momentum = self._momentum * new / old

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Restore the momentum.

        Args:
            batch: Keras's.
            logs: Keras's.

        Example:
            >>> LearningRateScheduleCallback(0.1, 1.0).on_train_batch_end(0)
        """
        del batch, logs
        if self._momentum is not None:
            self.model.optimizer.momentum, self._momentum = self._momentum, None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the rate to the epoch's metrics, as "lr".

        Args:
            epoch: Keras's.
            logs: Metrics, which this changes.

        Example:
            >>> LearningRateScheduleCallback(0.1, 1.0).on_epoch_end(0)
        """
        del epoch
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from lr / size to lr, batch by batch.

    Args:
        initial_lr: The rate at the end, which is scaled by the number of ranks.
        warmup_epochs: How long.
        momentum_correction: As for LearningRateScheduleCallback.
        steps_per_epoch: As for LearningRateScheduleCallback.
        verbose: 1: print the rate at the end.

    Example:
        >>> LearningRateWarmupCallback(0.1 * hvd.size(), warmup_epochs=3).end_epoch
        3
    """

    def __init__(
        self,
        initial_lr: float | None,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # The last batch of an epoch then has a round number.
            epoch += 1.0 / (self.steps_per_epoch or 1)
            return 1.0 / hvd.size() * (epoch * (hvd.size() - 1) / warmup_epochs + 1)

        super().__init__(
            *(initial_lr, multiplier, 0, warmup_epochs),
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Print the rate after the last epoch of the warm-up, if verbose.

        Args:
            epoch: From 0.
            logs: Metrics, which this changes.

        Example:
            >>> LearningRateWarmupCallback(0.1).on_epoch_end(0)
        """
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0:
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Keeps the best model so far; its path is set before training.

    Args:
        monitor: The metric that decides.
        verbose: 1: print when a file is written.
        mode: Whether small or large values are good.
        save_freq: "epoch", or a number of batches.
        filepath: Where; it may be set as an attribute later.

    Example:
        >>> BestModelCheckpoint(filepath="best.keras").save_best_only
        True
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: Literal["auto", "min", "max"] = "auto",
        save_freq: str | int = "epoch",
        filepath: str = "",
    ) -> None:
        super().__init__(
            filepath=filepath or "unset.keras",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = filepath

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Check that there is a path.

        Args:
            logs: Keras's.

        Raises:
            ValueError: There is none.

        Example:
            >>> BestModelCheckpoint(filepath="best.keras").on_train_begin()
        """
        super().on_train_begin(logs)
        if not self.filepath:
            raise ValueError("BestModelCheckpoint: set its filepath before training")
