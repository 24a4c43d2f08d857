"""Small real models, and factories as the command line takes them."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Block(nn.Module):
    """A transformer block that normalises first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """tokens (B, T) -> logits (B, T, 50), with the head tied to the embedding."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.position = nn.Embedding(128, width)
        self.blocks = nn.ModuleList([Block(width)])
        self.head = nn.Linear(width, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Recurrent(nn.Module):
    """(B, T, 4) -> (B, 3) through one LSTM layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Reducing(nn.Module):
    """A functional collective in the forward, and so its counterpart in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        import torch.distributed._functional_collectives as functional

        y = functional.all_reduce(self.linear(x), "sum", torch.distributed.group.WORLD)
        return y.relu()


class Branching(nn.Module):
    """Control flow that depends on data: torch.export refuses it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.second(y) if y.sum() > 0 else -self.second(y)


class Breaking(nn.Module):
    """Two layers, between which torch.compile breaks the graph: `how` says by what."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(2))
        self.how, self.largest = how, 0.0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.first(x)
        if self.how == "request":
            torch._dynamo.graph_break()  # type: ignore[no-untyped-call]
        elif self.how == "item":
            self.largest = float(y.detach().abs().max())
        else:
            self.largest = y.detach().numpy().max()
        z: Tensor = self.second(y)
        return z


class Selecting(nn.Module):
    """Keeps the rows whose first item is positive: a size that only data decides."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x[x[:, 0] > 0])


class PartlyUsed(nn.Module):
    """One layer in use, one frozen, one that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.idle = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(self.used(x))


class Mixed(nn.Module):
    """Takes a dictionary of tensors and two plain values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, batch: dict[str, Tensor], scale: float, mask: Tensor | None) -> Tensor:
        y = self.linear(batch["x"]) * scale + batch["y"]
        return y if mask is None else y * mask


def mlp() -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)]
    return nn.Sequential(*layers), (torch.randn(3, 4),)


def cnn() -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * 36, 10)), (torch.randn(2, 1, 8, 8),)


def lstm() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Recurrent(), (torch.randn(2, 3, 4),)


def transformer() -> tuple[nn.Module, tuple[Tensor, ...], object]:
    return Transformer(), (torch.randint(0, 50, (2, 6)),), next_token_loss


def branching() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Branching(), (torch.randn(3, 4),)


def not_a_model() -> tuple[int, int]:
    return 1, 2


def reducing() -> tuple[nn.Module, tuple[Tensor]]:
    """A model with a collective, and the group that it needs: torch's fake one of four ranks."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    return Reducing(), (torch.randn(8, 16),)
