"""Convolutional classifiers of images (B, 3, 224, 224) into 1000 classes."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Made = tuple[nn.Module, tuple[Tensor, ...], Callable[..., Tensor]]


class Plain(nn.Module):
    """Features, then a perceptron over them: AlexNet and VGG."""

    def __init__(self, features: list[nn.Module], width: int, hidden: int = 4096) -> None:
        super().__init__()
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(
            nn.Linear(width, hidden),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(hidden, 1000),
        )

    def forward(self, x: Tensor, _target: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions next to a shortcut."""

    def __init__(self, inside: int, width: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outside, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if inside != outside:
            self.shortcut.append(nn.Conv2d(inside, outside, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(self.conv1(x)).relu()
        y = self.norm2(self.conv2(y)).relu()
        return (self.norm3(self.conv3(y)) + self.shortcut(x)).relu()


class ResNet(nn.Module):
    """The residual network of 50 layers, 25.6 million parameters; with other counts, of others."""

    def __init__(self, counts: tuple[int, int, int, int] = (3, 4, 6, 3)) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks: list[nn.Module] = []
        inside = 64
        stages = zip((64, 128, 256, 512), counts, (1, 2, 2, 2), strict=True)
        for width, count, stride in stages:
            for index in range(count):
                blocks.append(Bottleneck(inside, width, 4 * width, 1 if index else stride))
                inside = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(2048, 1000)

    def forward(self, x: Tensor, _target: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def class_loss(logits: Tensor, _: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(logits, target)


def _images(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))


def alexnet() -> Made:
    """61.1 million parameters."""
    features = [
        nn.Conv2d(3, 64, 11, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, 1, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, 1, 1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, 1, 1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, 1, 1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
    ]
    return Plain(features, 256 * 6 * 6), _images(4), class_loss


def vgg16() -> Made:
    """138.4 million parameters."""
    features: list[nn.Module] = []
    inside = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            features += [nn.Conv2d(inside, width, 3, 1, 1), nn.ReLU()]
            inside = width
        features.append(nn.MaxPool2d(2, 2))
    return Plain(features, 512 * 7 * 7), _images(2), class_loss


def resnet50() -> Made:
    return ResNet(), _images(4), class_loss
