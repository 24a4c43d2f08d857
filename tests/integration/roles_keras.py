"""What ranks of test_horovod_keras.py run; Keras on torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

os.environ["KERAS_BACKEND"] = "torch"
ROWS, COLUMNS, BATCH = 96, 6, 8


def data() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(ROWS, COLUMNS)).astype("float32")
    return x, (x.sum(1, keepdims=True) + x[:, :1] ** 2).astype("float32")


def share(rank: int, world: int) -> tuple[np.ndarray, np.ndarray]:
    """A rank's rows: batch b of all ranks together is batch b of one process with BATCH * world."""
    x, y = data()
    rows = np.arange(ROWS).reshape(-1, world, BATCH)[:, rank].ravel()
    return x[rows], y[rows]


def model_of(seed: int, optimizer: Any) -> Any:
    import keras

    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [keras.Input((COLUMNS,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)]
    )
    model.compile(loss=keras.losses.MeanSquaredError(), optimizer=optimizer)
    return model


def weights_of(model: Any) -> list[list[float]]:
    return [one.ravel().tolist() for one in model.get_weights()]


def optimizers() -> dict[str, Any]:
    import keras

    return {
        "SGD": keras.optimizers.SGD(0.05, momentum=0.9),
        "Adam": keras.optimizers.Adam(0.01),
        "AdamW": keras.optimizers.AdamW(0.01),
        "scaled": keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.05), initial_scale=8.0
        ),
    }


def train(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Train with each optimizer; ranks begin with other weights than rank 0."""
    import rdmatensor.horovod.keras as hvd

    hvd.init()
    found: dict[str, Any] = {}
    for name, optimizer in optimizers().items():
        model = model_of(7 + rank, hvd.DistributedOptimizer(optimizer))
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ]
        x, y = share(rank, world)
        history = model.fit(
            x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=callbacks
        )
        found[name] = {"weights": weights_of(model), "losses": history.history["loss"]}
        if rank == 0 and name == "Adam":
            model.save(Path(folder, "model.keras"))
            model.save(Path(folder, "model.h5"))
    hvd.shutdown()
    return found


def alone(rank: int, world: int, folder: str) -> dict[str, Any]:
    """The same in one process, without Horovod; and a plain load of what the ranks saved."""
    import keras

    found: dict[str, Any] = {}
    for name, optimizer in optimizers().items():
        model = model_of(7, optimizer)
        x, y = data()
        history = model.fit(x, y, batch_size=BATCH * 2, epochs=2, shuffle=False, verbose=0)
        found[name] = {"weights": weights_of(model), "losses": history.history["loss"]}
    for name in ("model.keras", "model.h5"):
        loaded = keras.models.load_model(Path(folder, name))
        assert type(loaded.optimizer).__name__ == "Adam"
        found[name] = weights_of(loaded)
    assert not any(name.startswith("rdmatensor.horovod") for name in sys.modules)
    return found


def gradients(optimizer: Any, *rounds: list[float | None]) -> list[float]:
    """Apply gradients to new variables, which are 0, and return these."""
    import keras
    import torch

    variables = [keras.Variable([0.0]) for _ in rounds[0]]
    optimizer.build(variables)
    for one in rounds:
        optimizer.apply([None if g is None else torch.tensor([g]) for g in one], variables)
    return [float(variable.value.detach()[0]) for variable in variables]


def rules(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Options of the optimizer, callbacks, load_model, values."""
    import rdmatensor.horovod.keras as hvd

    hvd.init()
    mine = float(rank + 1)
    found = {**options(rank, mine), "partial": partial(mine), **schedules(rank, world)}
    found |= files(Path(folder, f"loaded-{rank}.keras"))
    found["values"] = [
        float(hvd.allreduce(mine, name="a")),
        float(hvd.allreduce(mine, name="s", op=hvd.Sum)),
        hvd.allgather([mine], name="g").tolist(),
        int(hvd.broadcast(rank, 1, name="b")),
        hvd.reducescatter([mine] * world, name="r", op=hvd.Sum).tolist(),
    ]
    found["metrics"] = {"loss": mine, "accuracy": 2 * mine}
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, found["metrics"])
    hvd.shutdown()
    return found


def options(rank: int, mine: float) -> dict[str, Any]:
    import keras

    import rdmatensor.horovod.keras as hvd

    def wrapped(**given: Any) -> Any:
        return hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **given)

    return {
        "average": gradients(wrapped(), [mine, 2 * mine]),
        "sum": gradients(wrapped(op=hvd.Sum), [mine, 2 * mine]),
        "predivide": gradients(wrapped(gradient_predivide_factor=4.0), [mine]),
        "fp16": gradients(wrapped(compression=hvd.Compression.fp16), [mine]),
        "groups": gradients(wrapped(num_groups=2), [mine, mine, mine]),
        "missing": gradients(wrapped(), [mine if rank == 0 else None, None]),
        "passes": gradients(wrapped(backward_passes_per_step=2), [mine], [mine], [mine]),
        "averaged passes": gradients(
            wrapped(backward_passes_per_step=2, average_aggregated_gradients=True),
            *([mine], [3 * mine]),
        ),
    }


def partial(mine: float) -> list[float]:
    """Return by how much a local layer's variables and another one changed."""
    import keras
    import torch

    import rdmatensor.horovod.keras as hvd

    layer = keras.layers.Dense(1)
    layer.build((None, 1))
    variables = [*layer.trainable_variables, keras.Variable([0.0])]
    before = [float(one.value.detach().sum()) for one in variables]
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=layer)
    optimizer.build(variables)
    optimizer.apply([torch.full(one.shape, mine) for one in variables], variables)
    return [
        float(one.value.detach().sum()) - old for one, old in zip(variables, before, strict=True)
    ]


def schedules(rank: int, world: int) -> dict[str, Any]:
    import keras

    import rdmatensor.horovod.keras as hvd

    rates: list[float] = []
    momenta: list[float] = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            rates.append(float(self.model.optimizer.learning_rate))
            momenta.append(float(self.model.optimizer.momentum))

    warmup = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, verbose=rank == 0)
    model = model_of(1, hvd.DistributedOptimizer(keras.optimizers.SGD(0.4, momentum=0.5)))
    x, y = share(rank, world)
    model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, callbacks=[Watch(), warmup])
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.4, lambda epoch: 0.5**epoch)
    history = model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, callbacks=[schedule])
    return {"rates": rates, "momenta": momenta, "schedule": history.history["lr"]}


def files(path: Path) -> dict[str, Any]:
    import keras

    import rdmatensor.horovod.keras as hvd

    model = model_of(1, hvd.DistributedOptimizer(keras.optimizers.SGD(0.4)))
    model.save(path)
    loaded = hvd.load_model(path)
    try:
        hvd.DistributedOptimizer(loaded.optimizer)
        twice = "accepted"
    except ValueError as error:
        twice = str(error)
    same = weights_of(loaded) == weights_of(model)
    return {"loaded": [type(loaded.optimizer).__name__, same], "twice": twice}


def elastic_state(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Ranks begin with other weights and batches; sync, train, restore."""
    import keras

    import rdmatensor.horovod.keras as hvd

    hvd.init()
    model = model_of(5 + rank, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    state = hvd.elastic.KerasState(model, batch=rank, epoch=rank)
    found: dict[str, Any] = {"first": weights_of(model)}
    state.sync()
    found["synced"], found["epoch"] = weights_of(model), state.epoch
    x, y = share(rank, world)
    callbacks = [
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
    ]
    model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    found["trained"], found["batch"], found["epochs"] = weights_of(model), state.batch, state.epoch
    model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    state.epoch = 9
    state.restore()
    found["restored"], found["restored epoch"] = weights_of(model), state.epoch
    hvd.shutdown()
    return found
