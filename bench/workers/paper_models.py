"""The six models that the paper trains, written plainly.

With 10 classes (the recurrent ones: 1000), its table's sizes as recalled come out: AlexNet 176,
Inception-v3 93, VGG-16 512, LSTM 36, GRU 28 and FCN-5 204 MiB of parameters in float32. Pooling
adapts to the image, so that smaller images change what is computed and not the parameters; a
divisor of all widths changes those, by about its square.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

_CLASSES = 10
_RECURRENT_CLASSES = 1000
_AUXILIARY_SHARE = 0.3  # of Inception's second head in the loss
_LESSONS = 8  # batches of a rank that has something to learn, again and again
_TAUGHT_CLASSES = 10  # that a teacher tells apart, the recurrent models' too

Size = int | tuple[int, int]


class Plain(nn.Module):
    """Features, then a perceptron over side x side of their positions: AlexNet and VGG."""

    def __init__(self, features: list[nn.Module], width: int, side: int, hidden: int) -> None:
        super().__init__()
        self.features = nn.Sequential(*features)
        self.pool = nn.AdaptiveAvgPool2d(side)
        self.classifier = nn.Sequential(
            nn.Linear(width * side * side, hidden),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(hidden, _CLASSES),
        )

    def forward(self, x: Tensor, _target: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.pool(self.features(x)).flatten(1))
        return logits


def alexnet(divisor: int) -> nn.Module:
    widths = [width // divisor for width in (64, 192, 384, 384, 256)]
    features: list[nn.Module] = []
    inside = 3
    kernels = ((11, 4, 2), (5, 1, 2), (3, 1, 1), (3, 1, 1), (3, 1, 1))
    for index, (width, kernel) in enumerate(zip(widths, kernels, strict=True)):
        features += [nn.Conv2d(inside, width, *kernel), nn.ReLU()]
        if index in (0, 1, 4):
            features.append(nn.MaxPool2d(3, 2))
        inside = width
    return Plain(features, inside, 5, 4096 // divisor)


def vgg16(divisor: int) -> nn.Module:
    features: list[nn.Module] = []
    inside = 3
    for full, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        width = full // divisor
        for _ in range(count):
            features += [nn.Conv2d(inside, width, 3, 1, 1), nn.ReLU()]
            inside = width
        features.append(nn.MaxPool2d(2, 2))
    return Plain(features, inside, 7, 4096 // divisor)


class Convolution(nn.Sequential):
    """A convolution, normalised over the batch."""

    def __init__(
        self, inside: int, outside: int, kernel: Size, stride: int = 1, padding: Size = 0
    ) -> None:
        super().__init__(
            nn.Conv2d(inside, outside, kernel, stride, padding, bias=False),
            nn.BatchNorm2d(outside, eps=0.001),
            nn.ReLU(),
        )


class Branches(nn.Module):
    """What all branches give, one behind the other in the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class _Inception:
    """Makes the parts of Inception-v3, all widths divided."""

    def __init__(self, divisor: int) -> None:
        self._divisor = divisor

    def width(self, full: int) -> int:
        return full // self._divisor

    def chain(self, inside: int, *parts: tuple[int, Size]) -> nn.Sequential:
        """Convolutions of (width, kernel) that keep the side."""
        made: list[nn.Module] = []
        for full, kernel in parts:
            sides = (kernel, kernel) if isinstance(kernel, int) else kernel
            padding = (sides[0] // 2, sides[1] // 2)
            made.append(Convolution(inside, self.width(full), kernel, padding=padding))
            inside = self.width(full)
        return nn.Sequential(*made)

    def halved(self, inside: int, full: int) -> Convolution:
        return Convolution(inside, self.width(full), 3, 2)

    def pooled(self, inside: int, full: int) -> nn.Sequential:
        return nn.Sequential(nn.AvgPool2d(3, 1, 1), self.chain(inside, (full, 1)))

    def block_a(self, inside: int, pool: int) -> Branches:
        return Branches(
            self.chain(inside, (64, 1)),
            self.chain(inside, (48, 1), (64, 5)),
            self.chain(inside, (64, 1), (96, 3), (96, 3)),
            self.pooled(inside, pool),
        )

    def block_b(self, inside: int) -> Branches:
        return Branches(
            self.halved(inside, 384),
            nn.Sequential(
                self.chain(inside, (64, 1), (96, 3)),
                self.halved(self.width(96), 96),
            ),
            nn.MaxPool2d(3, 2),
        )

    def block_c(self, inside: int, w: int) -> Branches:
        across, along = (1, 7), (7, 1)
        return Branches(
            self.chain(inside, (192, 1)),
            self.chain(inside, (w, 1), (w, across), (192, along)),
            self.chain(inside, (w, 1), (w, along), (w, across), (w, along), (192, across)),
            self.pooled(inside, 192),
        )

    def block_d(self, inside: int) -> Branches:
        return Branches(
            nn.Sequential(self.chain(inside, (192, 1)), self.halved(self.width(192), 320)),
            nn.Sequential(
                self.chain(inside, (192, 1), (192, (1, 7)), (192, (7, 1))),
                self.halved(self.width(192), 192),
            ),
            nn.MaxPool2d(3, 2),
        )

    def block_e(self, inside: int) -> Branches:
        return Branches(
            self.chain(inside, (320, 1)),
            nn.Sequential(self.chain(inside, (384, 1)), self._split()),
            nn.Sequential(self.chain(inside, (448, 1), (384, 3)), self._split()),
            self.pooled(inside, 192),
        )

    def _split(self) -> Branches:
        inside = self.width(384)
        return Branches(self.chain(inside, (384, (1, 3))), self.chain(inside, (384, (3, 1))))


class InceptionV3(nn.Module):
    """Inception-v3 with its second head; pooling before that one adapts to the image."""

    def __init__(self, divisor: int) -> None:
        super().__init__()
        make = _Inception(divisor)
        w = make.width
        self.stem = nn.Sequential(
            Convolution(3, w(32), 3, 2),
            Convolution(w(32), w(32), 3),
            Convolution(w(32), w(64), 3, 1, 1),
            nn.MaxPool2d(3, 2),
            Convolution(w(64), w(80), 1),
            Convolution(w(80), w(192), 3),
            nn.MaxPool2d(3, 2),
        )
        self.middle = nn.Sequential(
            make.block_a(w(192), 32),
            make.block_a(2 * w(64) + w(96) + w(32), 64),
            make.block_a(3 * w(64) + w(96), 64),
            make.block_b(3 * w(64) + w(96)),
            *(make.block_c(self._inner(w), full) for full in (128, 160, 160, 192)),
        )
        self.late = nn.Sequential(
            make.block_d(self._inner(w)),
            make.block_e(w(320) + w(192) + self._inner(w)),
            make.block_e(w(320) + 4 * w(384) + w(192)),
            nn.AdaptiveAvgPool2d(1),
            nn.Dropout(),
        )
        self.head = nn.Linear(w(320) + 4 * w(384) + w(192), _CLASSES)
        self.second = nn.Sequential(
            nn.AdaptiveAvgPool2d(5),
            Convolution(self._inner(w), w(128), 1),
            Convolution(w(128), w(768), 5),
            nn.Flatten(),
            nn.Linear(w(768), _CLASSES),
        )

    @staticmethod
    def _inner(w: Callable[[int], int]) -> int:
        """Channels from block B to D, and of each block C: 768."""
        return 4 * w(192)

    def forward(self, x: Tensor, _target: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.middle(self.stem(x))
        return self.head(self.late(inner).flatten(1)), self.second(inner)


class Recurrent(nn.Module):
    """One recurrent layer over (B, T, width), and a class from its last state."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], width: int) -> None:
        super().__init__()
        self.recurrent = kind(width, width, batch_first=True)
        self.head = nn.Linear(width, _RECURRENT_CLASSES)

    def forward(self, x: Tensor, _target: Tensor) -> Tensor:
        states, _ = self.recurrent(x)
        logits: Tensor = self.head(states[:, -1])
        return logits


class Perceptron(nn.Module):
    """Five fully connected layers over 784 values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inside = 784
        for _ in range(4):
            layers += [nn.Linear(inside, width), nn.ReLU()]
            inside = width
        self.layers = nn.Sequential(*layers, nn.Linear(inside, _CLASSES))

    def forward(self, x: Tensor, _target: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


class Layers(nn.Module):
    """Layers of one width, without bias."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))

    def forward(self, x: Tensor, _target: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


def class_loss(logits: Tensor, _x: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(logits, target)


def two_losses(logits: tuple[Tensor, Tensor], _x: Tensor, target: Tensor) -> Tensor:
    first, second = logits
    return cross_entropy(first, target) + _AUXILIARY_SHARE * cross_entropy(second, target)


@dataclass(frozen=True, slots=True)
class PaperModel:
    """How a model is made and fed.

    make: takes the divisor of widths. shape: of a rank's batch here, chosen for two cores; also by
        the divisor, since what the recurrent ones take is as wide as they are. bucket_mib: of
        DistributedDataParallel; None: its default.
    """

    make: Callable[[int], nn.Module]
    shape: Callable[[int], tuple[int, ...]]
    classes: int = _CLASSES
    loss_fn: Callable[..., Tensor] = class_loss
    bucket_mib: float | None = None

    def batch(self, divisor: int, seed: int) -> tuple[Tensor, Tensor]:
        shape = self.shape(divisor)
        chance = torch.Generator().manual_seed(seed)
        target = torch.randint(0, self.classes, shape[:1], generator=chance)
        return torch.randn(*shape, generator=chance), target

    def lessons(self, divisor: int, seed: int) -> list[tuple[Tensor, Tensor]]:
        """Return batches with the classes of a teacher, the same one for every seed.

        The teacher is linear, and sees values (B, F), the last step of sequences (B, T, F), or the
        mean column of images (B, C, H, F).
        """
        shape = self.shape(divisor)
        teacher = torch.randn(
            shape[-1], _TAUGHT_CLASSES, generator=torch.Generator().manual_seed(7)
        )
        found = []
        for number in range(_LESSONS):
            x, _ = self.batch(divisor, _LESSONS * seed + number)
            seen = x if x.dim() == 2 else x[:, -1] if x.dim() == 3 else x.mean((1, 2))
            found.append((x, (seen @ teacher).argmax(1)))
        return found


def _images(batch: int, side: int) -> Callable[[int], tuple[int, ...]]:
    return lambda _: (batch, 3, side, side)


def _recurrent(kind: type[nn.LSTM] | type[nn.GRU]) -> PaperModel:
    return PaperModel(
        lambda divisor: Recurrent(kind, 1024 // divisor),
        lambda divisor: (8, 20, 1024 // divisor),
        _RECURRENT_CLASSES,
    )


MODELS = {
    "alexnet": PaperModel(alexnet, _images(4, 224)),
    "inception_v3": PaperModel(InceptionV3, _images(4, 149), loss_fn=two_losses),
    "vgg16": PaperModel(vgg16, _images(2, 56)),
    "lstm": _recurrent(nn.LSTM),
    "gru": _recurrent(nn.GRU),
    "fcn5": PaperModel(lambda divisor: Perceptron(4096 // divisor), lambda _: (8, 784)),
    # None of the paper's: as many buckets as layers, which leave during the backward pass.
    "layers": PaperModel(
        lambda divisor: Layers(20, 512 // divisor),
        lambda divisor: (256, 512 // divisor),
        bucket_mib=1.0,
    ),
}
