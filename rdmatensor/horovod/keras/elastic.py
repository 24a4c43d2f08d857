"""Elastic training for Keras: run, KerasState and its callbacks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from rdmatensor.horovod.keras.callbacks import broadcast_model
from rdmatensor.horovod.torch.elastic_state import ObjectState, State, run

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "ObjectState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(ObjectState):
    """A built model with its optimizer, and other attributes.

    Args:
        model: Built and compiled.
        optimizer: The model's own, if any is given.
        **kwargs: Other attributes, such as batch and epoch.

    Raises:
        ValueError: The optimizer is not the model's, or the model is not built.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.SGD(), "mse")
        >>> KerasState(model, epoch=0).commit()
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer | None = None,
        **kwargs: object,
    ) -> None:
        if not model.built:
            raise ValueError("KerasState: the model has no variables yet: build it first")
        if optimizer is not None and optimizer is not model.optimizer:
            raise ValueError("KerasState: the optimizer is not the model's")
        self.model = model
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._values: list[np.ndarray[Any, Any]] = []
        super().__init__(**kwargs)
        self.save()

    def _variables(self) -> list[keras.Variable]:
        optimizer = self.model.optimizer
        return [*self.model.variables, *([] if optimizer is None else optimizer.variables)]

    def save(self) -> None:
        """Keep copies of all variables and attributes.

        Example:
            >>> KerasState(model).save()  # doctest: +SKIP
        """
        self._values = [keras.ops.convert_to_numpy(one).copy() for one in self._variables()]
        super().save()

    def restore(self) -> None:
        """Set all to the copies.

        Example:
            >>> KerasState(model).restore()  # doctest: +SKIP
        """
        for one, value in zip(self._variables(), self._values, strict=True):
            one.assign(value)
        super().restore()

    def sync(self) -> None:
        """Take rank 0's variables and attributes.

        Example:
            >>> KerasState(model).sync()  # doctest: +SKIP
        """
        broadcast_model(self.model, 0)
        super().sync()
        self.save()


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Commits after batches, and at the end of each epoch.

    Args:
        state: What is committed.
        batches_per_commit: How often.

    Example:
        >>> CommitStateCallback(ObjectState(batch=0), batches_per_commit=10).batches_per_commit
        10
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state, self.batches_per_commit = state, batches_per_commit
        self._left = batches_per_commit

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Commit if it is time.

        Args:
            batch: Keras's.
            logs: Keras's.

        Example:
            >>> CommitStateCallback(ObjectState()).on_train_batch_end(0)
        """
        del batch, logs
        self._left -= 1
        if self._left == 0:
            self._left = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Commit.

        Args:
            epoch: Keras's.
            logs: Keras's.

        Example:
            >>> CommitStateCallback(ObjectState()).on_epoch_end(0)
        """
        del epoch, logs
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets state.batch: an epoch that was interrupted goes on with its next batch.

    It stands before CommitStateCallback in fit()'s list, which gets
    steps_per_epoch less state.batch.

    Args:
        state: A state with an attribute batch.

    Example:
        >>> UpdateBatchStateCallback(ObjectState(batch=0)).state.batch
        0
    """

    def __init__(self, state: ObjectState) -> None:
        super().__init__()
        self.state: Any = state
        self._first = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keep where the epoch goes on.

        Args:
            epoch: Keras's.
            logs: Keras's.

        Example:
            >>> UpdateBatchStateCallback(ObjectState(batch=0)).on_epoch_begin(0)
        """
        del epoch, logs
        self._first = self.state.batch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the batch.

        Args:
            batch: From 0, since fit() began the epoch.
            logs: Keras's.

        Example:
            >>> UpdateBatchStateCallback(ObjectState(batch=0)).on_train_batch_end(4)
        """
        del logs
        self.state.batch = self._first + batch + 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Begin to count from 0.

        Args:
            epoch: Keras's.
            logs: Keras's.

        Example:
            >>> UpdateBatchStateCallback(ObjectState(batch=0)).on_epoch_end(0)
        """
        del epoch, logs
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets state.epoch to the next epoch at the end of each; fit() gets initial_epoch=state.epoch.

    Args:
        state: A state with an attribute epoch.

    Example:
        >>> UpdateEpochStateCallback(ObjectState(epoch=0)).state.epoch
        0
    """

    def __init__(self, state: ObjectState) -> None:
        super().__init__()
        self.state: Any = state

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the epoch.

        Args:
            epoch: From 0.
            logs: Keras's.

        Example:
            >>> UpdateEpochStateCallback(ObjectState(epoch=0)).on_epoch_end(0)
        """
        del logs
        self.state.epoch = epoch + 1
