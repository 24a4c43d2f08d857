"""The zoo's models, each with the same kinds of layers but small: for tests that must be quick."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from zoo.convolutional import Plain, ResNet
from zoo.convolutional import class_loss as image_loss
from zoo.language import Gpt, Logits, MoeLanguage, next_token_loss
from zoo.small import Classifying, class_loss, mlp

Made = tuple[nn.Module, tuple[Tensor, ...], Callable[..., Tensor]]


def _images(side: int) -> tuple[Tensor, Tensor]:
    return torch.randn(2, 3, side, side), torch.randint(0, 1000, (2,))


def _tokens(length: int) -> tuple[Tensor]:
    return (torch.randint(0, 1000, (2, length)),)


def alexnet() -> Made:
    features = [
        *(nn.Conv2d(3, 8, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(8, 16, 5, 1, 2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(16, 8, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(3, 2)),
    ]
    return Plain(features, 8, 32), _images(64), image_loss


def vgg16() -> Made:
    features: list[nn.Module] = []
    inside = 3
    for width, count in ((8, 2), (16, 2), (16, 3)):
        for _ in range(count):
            features += [nn.Conv2d(inside, width, 3, 1, 1), nn.ReLU()]
            inside = width
        features.append(nn.MaxPool2d(2, 2))
    return Plain(features, 16, 32), _images(8), image_loss


def resnet50() -> Made:
    return ResNet((1, 1, 1, 1)), _images(32), image_loss


def _recurrent(kind: type[nn.LSTM] | type[nn.GRU]) -> Made:
    tokens, target = torch.randint(0, 1000, (2, 2)), torch.randint(0, 10, (2,))
    return Classifying(kind, 16), (tokens, target), class_loss


def lstm() -> Made:
    return _recurrent(nn.LSTM)


def gru() -> Made:
    return _recurrent(nn.GRU)


def gpt() -> Made:
    return Gpt(16, 2, 1), _tokens(8), next_token_loss


def moe() -> Made:
    return MoeLanguage(16), _tokens(8), next_token_loss


def huggingface() -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM  # a test dependency, loads slowly

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
    )
    return Logits(LlamaForCausalLM(config)), _tokens(8), next_token_loss


SCALED: dict[str, Callable[[], Made]] = {
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
