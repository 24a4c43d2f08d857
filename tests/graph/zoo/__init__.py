"""Models written plainly, for the tests, the table in plans.md and the command line.

Each factory takes no argument and returns (model, inputs, loss_fn), as the command line wants it.
"""

from zoo.convolutional import alexnet, resnet50, vgg16
from zoo.language import gpt, huggingface, moe
from zoo.small import gru, lstm, mlp

FACTORIES = {
    "mlp": mlp,
    "alexnet": alexnet,
    "vgg16": vgg16,
    "resnet50": resnet50,
    "lstm": lstm,
    "gru": gru,
    "gpt": gpt,
    "moe": moe,
    "huggingface": huggingface,
}

__all__ = [
    "FACTORIES",
    "alexnet",
    "gpt",
    "gru",
    "huggingface",
    "lstm",
    "mlp",
    "moe",
    "resnet50",
    "vgg16",
]
