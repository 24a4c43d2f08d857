"""What a user asks for: which tensors, by which method, to which degree, in which steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch.nn.utils import parametrize

from rdmatensor._native.arguments import invalid

What = str | type[torch.nn.Module] | Callable[[str, torch.nn.Module], bool]
BITS_MIN, BITS_MAX = 2, 8


@dataclass(frozen=True)
class Prune:
    """Set blocks of weights to zero, those with the least score first.

    A weight counts as a matrix: its first dimension by all others. Blocks at the lower and right
    edge may be smaller. Only parameters of two or more dimensions are pruned.

    Attributes:
        what: A pattern as in fnmatch of module or parameter names, a module type, or a function of
            (name, module).
        by: "near_zero": the score of a block is its sum of abs(w). "contribution": the sum of
            abs(w * gradient), averaged over the backward passes of run(score=...) on all ranks.
        block: Rows and columns of a block.
        to: The share of blocks that become zero, or "auto": by the measured curve.

    Example:
        >>> Prune("conv*", by="near_zero", block=(1, 16), to=0.9).to
        0.9
    """

    what: What
    by: Literal["near_zero", "contribution"] = "near_zero"
    block: tuple[int, int] = (1, 1)
    to: float | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        """Check the values."""
        if self.by not in ("near_zero", "contribution"):
            raise invalid("Prune", f"by={self.by!r} is neither 'near_zero' nor 'contribution'")
        if len(self.block) != 2 or any(type(side) is not int or side < 1 for side in self.block):
            raise invalid("Prune", f"block={self.block!r} is not two positive numbers")
        if self.to != "auto":
            _check_share("Prune", "to", self.to)


@dataclass(frozen=True)
class Quantize:
    """Let weights take few values only.

    Attributes:
        what: As in Prune.
        points: "uniform": whole multiples of a scale, symmetric about zero. "clustered": the
            centres of clusters of the weights.
        bits: 2 to 8; a weight takes one of 2^bits values.
        group: Only uniform: so many neighbours of a row share one scale; None: a whole row does.

    Example:
        >>> Quantize("embed", points="clustered", bits=4).bits
        4
    """

    what: What
    points: Literal["uniform", "clustered"] = "uniform"
    bits: int = 8
    group: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.points not in ("uniform", "clustered"):
            raise invalid("Quantize", f"points={self.points!r} is not 'uniform' or 'clustered'")
        if type(self.bits) is not int or not BITS_MIN <= self.bits <= BITS_MAX:
            raise invalid("Quantize", f"bits={self.bits!r} is not from {BITS_MIN} to {BITS_MAX}")
        if self.group is not None and (type(self.group) is not int or self.group < 1):
            raise invalid("Quantize", f"group={self.group!r} is not a positive number or None")
        if self.group is not None and self.points == "clustered":
            raise invalid("Quantize", "clusters are of the whole tensor: group must be None")


@dataclass(frozen=True)
class Target:
    """What the whole model shall come to.

    Attributes:
        bytes: Share of the dense model's parameter bytes; needs rules with to="auto".
        loss_at_most: Share of the loss before compression that must not be exceeded.

    Example:
        >>> Target(bytes=0.25, loss_at_most=1.01).bytes
        0.25
    """

    bytes: float | None = None
    loss_at_most: float | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.bytes is not None and not 0 < self.bytes <= 1:
            raise invalid("Target", f"bytes={self.bytes!r} is not above 0 and at most 1")
        if self.loss_at_most is not None and not self.loss_at_most > 0:
            raise invalid("Target", f"loss_at_most={self.loss_at_most!r} is not positive")


@dataclass(frozen=True)
class Progressive:
    """Compress in rounds: a step more, retrain, accept or go back.

    Attributes:
        step: What the largest degree grows by in a round, at most to its target; the others grow
            in proportion.
        pace: "even": each round adds as much. "cubic": as many rounds, of which the first add most,
            so that more of the retraining comes at high degrees.
        retrain: Trains the model that it gets; None: rounds do not retrain.
        accept: Whether the round's model is good enough; None: Target.loss_at_most decides, or all
            rounds are accepted. Rank 0's answer counts.
        backoff: A refused round is undone, and the step multiplied by it.
        least: Rounds end once the step is smaller.

    Example:
        >>> Progressive(step=0.1).backoff
        0.5
    """

    step: float = 0.10
    retrain: Callable[[torch.nn.Module], object] | None = None
    accept: Callable[[torch.nn.Module], bool] | None = None
    backoff: float = 0.5
    least: float = 0.01
    pace: Literal["even", "cubic"] = "even"

    def __post_init__(self) -> None:
        """Check the values."""
        if self.pace not in ("even", "cubic"):
            raise invalid("Progressive", f"pace={self.pace!r} is not 'even' or 'cubic'")
        for name in ("step", "backoff", "least"):
            _check_share("Progressive", name, getattr(self, name))
        if self.backoff == 1 or 0 in (self.step, self.backoff, self.least):
            raise invalid("Progressive", "step, least and backoff are above 0, backoff below 1")


class Policy:
    """Rules for the tensors of a model, and how to reach them.

    Args:
        rules: Prune and Quantize. A tensor may have one of each; it is pruned first.
        total: What the whole model shall come to.
        process: The rounds; default: steps of 0.1 without retraining.

    Raises:
        InvalidArgumentError: No rule is given.

    Example:
        >>> policy = Policy(Prune("0", to=0.5), Quantize("2", bits=4))
        >>> [item.name for item in policy.items(torch.nn.Sequential(
        ...     torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)))]
        ['0.weight', '2.weight']
    """

    def __init__(
        self,
        *rules: Prune | Quantize,
        total: Target | None = None,
        process: Progressive | None = None,
    ) -> None:
        if not rules or not all(isinstance(rule, (Prune, Quantize)) for rule in rules):
            raise invalid("Policy", "give at least one Prune or Quantize")
        self.rules = rules
        self.total = total or Target()
        self.process = process or Progressive()

    def items(self, model: torch.nn.Module) -> list[Item]:
        """Return the model's tensors that rules are for, in the order of the model.

        Args:
            model: Not changed.

        Returns:
            Each tensor once, under its first name, with its rules.

        Raises:
            InvalidArgumentError: A rule matches no tensor, two rules of one kind match one tensor,
                a tensor is not of floats, or some of its values are not finite.

        Example:
            >>> [item.name for item in Policy(Prune("*")).items(torch.nn.Linear(2, 2))]
            ['weight']
        """
        matched: dict[int, dict[int, Prune | Quantize]] = {}
        owners: dict[int, list[tuple[torch.nn.Module, str]]] = {}
        first: dict[int, tuple[str, torch.nn.Parameter]] = {}
        for module_name, module, name, tensor in _weights(model):
            full = f"{module_name}.{name}" if module_name else name
            first.setdefault(id(tensor), (full, tensor))
            owners.setdefault(id(tensor), []).append((module, name))
            for rule in self.rules:
                if _matches(rule.what, module_name, module, full):
                    matched.setdefault(id(tensor), {})[id(rule)] = rule
        for rule in self.rules:
            if not any(id(rule) in rules for rules in matched.values()):
                raise invalid("Policy", f"{rule} matches no parameter of two or more dimensions")
        items = [
            Item(name, tuple(owners[key]), tensor, *_one_of_each(name, matched[key].values()))
            for key, (name, tensor) in first.items()
            if key in matched
        ]
        _check(items)
        return items


@dataclass(frozen=True)
class Item:
    """A tensor of the model with its rules.

    Attributes:
        name: Of the parameter in the uncompressed model, its first where several modules share it.
        owners: The modules that have it, and its name there.
        tensor: The parameter, which also holds what masks hide.
        prune: Its rule, or None.
        quantize: Its rule, or None.
    """

    name: str
    owners: tuple[tuple[torch.nn.Module, str], ...]
    tensor: torch.nn.Parameter
    prune: Prune | None
    quantize: Quantize | None

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns that blocks and groups are of."""
        rows = self.tensor.shape[0]
        return rows, math.prod(self.tensor.shape[1:])


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the user's model, inside DistributedDataParallel or a planned model or not."""
    inner = getattr(model, "module", None)
    children = [name for name, _ in model.named_children()]
    if isinstance(inner, torch.nn.Module) and children == ["module"]:
        return unwrapped(inner)
    return model


def _weights(
    model: torch.nn.Module,
) -> Iterator[tuple[str, torch.nn.Module, str, torch.nn.Parameter]]:
    for module_name, module in model.named_modules():
        if isinstance(module, parametrize.ParametrizationList):
            continue  # not weights, but what weights are made from
        for name, tensor in module.named_parameters(recurse=False):
            if tensor.dim() >= 2:
                yield module_name, module, name, tensor


def _matches(what: What, module_name: str, module: torch.nn.Module, full: str) -> bool:
    if isinstance(what, str):
        return fnmatchcase(module_name, what) or fnmatchcase(full, what)
    if isinstance(what, type):
        return isinstance(module, what)
    return bool(what(module_name, module))


def _one_of_each(
    name: str, rules: Iterable[Prune | Quantize]
) -> tuple[Prune | None, Quantize | None]:
    prunes = [rule for rule in rules if isinstance(rule, Prune)]
    quantizes = [rule for rule in rules if isinstance(rule, Quantize)]
    for several in (prunes, quantizes):
        if len(several) > 1:
            raise invalid("Policy", f"{name} has two rules: {several[0]} and {several[1]}")
    return next(iter(prunes), None), next(iter(quantizes), None)


def _check(items: Iterable[Item]) -> None:
    for item in items:
        for module, name in item.owners:
            if isinstance(module, torch.nn.RNNBase):
                raise invalid(
                    "Policy",
                    f"{item.name}: {type(module).__name__} reads {name} past parametrizations; "
                    "only modules that read their weights in forward can be compressed",
                )
        if not item.tensor.is_floating_point():
            raise invalid("Policy", f"{item.name} has {item.tensor.dtype}: only floats are taken")
        bad = int((~torch.isfinite(item.tensor.detach())).sum())
        if bad:
            raise invalid("Policy", f"{item.name} has {bad} values that are NaN or infinite")


def _check_share(what: str, name: str, value: object) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1:  # type: ignore[operator]  # a number
        raise invalid(what, f"{name}={value!r} is not from 0 to 1")
