"""Compress a model in rounds, each of which is kept or undone."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from tqdm import tqdm

from rdmatensor._native.arguments import invalid
from rdmatensor.compress import masks, scores, sizes
from rdmatensor.compress.policy import Item, Policy, unwrapped
from rdmatensor.compress.ranks import Ranks
from rdmatensor.compress.result import Result, Round, model_bytes
from rdmatensor.compress.sensitivity import Curve, Evaluate, allocate, fingerprint
from rdmatensor.compress.sent import send_live_blocks

_EPSILON = 1e-9  # degrees are sums of steps


def run(
    model: torch.nn.Module,
    policy: Policy,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    evaluate: Evaluate | None = None,
    curve: Curve | None = None,
    score: Callable[[torch.nn.Module], object] | None = None,
    group: dist.ProcessGroup | None = None,
    progress: bool = True,
) -> Result:
    """Compress a model by a policy.

    All ranks call it: they take the same masks, and rank 0 decides what is accepted. A round prunes
    every tensor by a step more, retrains, and is kept or undone with weights, buffers, optimizer
    state and masks as they were, to the bit. The last round quantizes.

    Args:
        model: Also inside DistributedDataParallel or a planned model. Its parameters stay the same
            objects and keep what masks hide. A planned model then sends gradients of live blocks
            only, from each round's first step on.
        policy: Rules, target and rounds.
        optimizer: Its state of masked weights becomes zero each round, so that momentum does not
            move them.
        evaluate: Returns the loss of the model that it gets; ranks' losses are averaged. Needed for
            Target.loss_at_most.
        curve: What sensitivity() returned; needed where a rule has to="auto".
        score: Runs forward and backward on the model that it gets, for by="contribution". Each
            backward pass counts once. Use small batches, for example of 8 samples: in large ones
            the gradients of samples cancel.
        group: The ranks; None: the default group, or this process alone.
        progress: Whether rank 0 shows a bar.

    Returns:
        The result; the model is compressed.

    Raises:
        InvalidArgumentError: As Policy.items(); an argument that the policy needs is missing; no
            degrees reach the target.
        PlanMismatchError: Ranks have other weights, rules or masks; the message names the tensor.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4))
        >>> policy = Policy(Prune("0", to=0.5), process=Progressive(step=0.25))
        >>> [entry.degrees["0.weight"] for entry in run(model, policy).history]
        [0.25, 0.5]
    """
    ranks, inner = Ranks(group), unwrapped(model)
    items = policy.items(inner)
    _check(items, policy, evaluate, curve)
    ranks.check_same("the weights or the rule", fingerprint(items))
    check_masks(items, ranks)
    targets = allocate(inner, items, policy, curve) if curve else _fixed(items)
    shown = progress and (ranks.is_alone or dist.get_rank(group) == 0)
    return _Rounds(model, policy, items, optimizer, evaluate, score, ranks, targets).run(shown)


def check_masks(items: Iterable[Item], ranks: Ranks) -> None:
    """Raise PlanMismatchError, which names the tensor, on all ranks if their masks differ."""
    mine = {}
    for item in items:
        masked, _ = masks.parts(item)
        if masked is not None:
            mine[item.name] = hashlib.sha256(masked.alive.numpy().tobytes()).hexdigest()
    ranks.check_same("the mask", mine)


class _Rounds:
    """The loop of run()."""

    def __init__(
        self,
        model: torch.nn.Module,
        policy: Policy,
        items: list[Item],
        optimizer: torch.optim.Optimizer | None,
        evaluate: Evaluate | None,
        score: Callable[[torch.nn.Module], object] | None,
        ranks: Ranks,
        targets: dict[str, float],
    ) -> None:
        self.model, self.policy, self.items, self.optimizer = model, policy, items, optimizer
        self.evaluate, self.score, self.ranks, self.targets = evaluate, score, ranks, targets
        inner = unwrapped(model)
        self.inner = inner
        self.result = Result(model, items, self.loss(), sizes.dense_bytes(inner))

    def run(self, shown: bool) -> Result:
        """Prune round after round, then quantize."""
        process = self.policy.process
        pruned = [item for item in self.items if item.prune is not None]
        top = max(self.targets.values(), default=0.0)
        now = {item.name: self.degree_of(item) for item in pruned}
        way, step = self.way_gone(now), process.step
        with tqdm(total=100, unit="%", desc="compress", disable=not shown) as bar:
            bar.update(round(100 * way))
            while way < 1 - _EPSILON and step >= process.least - _EPSILON:
                further = min(1.0, way + step / top)
                share = 1 - (1 - further) ** 3 if process.pace == "cubic" else further
                wanted = {name: max(now[name], share * self.targets[name]) for name in now}
                if self.round(partial(self.prune, pruned, wanted), wanted):
                    bar.update(round(100 * further) - round(100 * way))
                    now, way = wanted, further
                else:
                    step *= process.backoff
                bar.set_postfix(loss=self.result.history[-1].loss, step=step)
            few = [item for item in self.items if item.quantize and masks.parts(item)[1] is None]
            if few:
                self.round(partial(self.quantize, few), now)
        return self.result

    def way_gone(self, now: dict[str, float]) -> float:
        """Return how much of the way to the targets is behind the tensor that is furthest back."""
        shares = [now[name] / target for name, target in self.targets.items() if target > 0]
        least = min(1.0, *shares, 1.0)
        if not shares:
            return 1.0
        return 1 - (1 - least) ** (1 / 3) if self.policy.process.pace == "cubic" else least

    def degree_of(self, item: Item) -> float:
        masked, _ = masks.parts(item)
        return 0.0 if masked is None else 1 - float(masked.alive.double().mean())

    def round(self, change: Callable[[], None], degrees: dict[str, float]) -> bool:
        """Change the model, retrain it, and keep it or go back; return whether it is kept."""
        process, before = self.policy.process, _Snapshot(self.inner, self.optimizer, self.items)
        with before.back_on_error():
            change()
            if process.retrain is not None:
                process.retrain(self.model)
                self.quiet_optimizer()
            loss = self.loss()
            kept = self.ranks.first(self.is_good(loss))
            quantized = any(masks.parts(item)[1] is not None for item in self.items)
            size = model_bytes(self.model, self.items)
            self.result.history.append(Round(dict(degrees), quantized, loss, kept, size))
        if not kept:
            before.restore()
        return kept

    def is_good(self, loss: float | None) -> bool:
        process, limit = self.policy.process, self.policy.total.loss_at_most
        if process.accept is not None:
            with torch.no_grad():
                return bool(process.accept(self.model))
        if limit is not None and loss is not None and self.result.base is not None:
            return loss <= limit * self.result.base
        return loss is None or loss == loss  # NaN is not good

    def prune(self, pruned: list[Item], wanted: dict[str, float]) -> None:
        """Mask as many blocks as each degree says; rank 0's choice counts."""
        scored = scores.measure(self.model, pruned, self.score, self.ranks)
        chosen = {}
        for item in pruned:
            part = masks.masked_part(item)
            chosen[item.name] = masks.choose_alive(scored[item.name], part.alive, wanted[item.name])
        for item, alive in zip(pruned, self.ranks.first(list(chosen.values())), strict=True):
            masks.masked_part(item).set(alive)
        send_live_blocks(self.items)
        self.quiet_optimizer()

    def quantize(self, few: list[Item]) -> None:
        for item in few:
            masks.quantized_part(item)

    @torch.no_grad()
    def quiet_optimizer(self) -> None:
        """Set the optimizer's state of masked weights to zero."""
        if self.optimizer is None:
            return
        for item in self.items:
            masked, _ = masks.parts(item)
            if masked is None:
                continue
            alive = masks.expanded(masked.alive, masked.rule.block, masked.shape)
            for value in self.optimizer.state.get(item.tensor, {}).values():
                if isinstance(value, torch.Tensor) and value.shape == item.tensor.shape:
                    value.mul_(alive.to(value.dtype))

    def loss(self) -> float | None:
        """Return the mean loss of all ranks."""
        if self.evaluate is None:
            return None
        with torch.no_grad():
            return self.ranks.mean(self.evaluate(self.model))


class _Snapshot:
    """All that a round changes, to the bit."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        items: list[Item],
    ) -> None:
        self.items, self.optimizer = items, optimizer
        self.parts = [masks.parts(item) for item in items]
        self.alive = [None if part[0] is None else part[0].alive.clone() for part in self.parts]
        self.tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.values = {name: tensor.detach().clone() for name, tensor in self.tensors.items()}
        self.state = None if optimizer is None else copy.deepcopy(optimizer.state_dict())

    @contextmanager
    def back_on_error(self) -> Iterator[None]:
        """Go back if the block raises."""
        try:
            yield
        except BaseException:
            self.restore()
            raise

    @torch.no_grad()
    def restore(self) -> None:
        """Take everything back."""
        for item, (masked, few), alive in zip(self.items, self.parts, self.alive, strict=True):
            if few is None:
                masks.remove(item, (masks.Uniform, masks.Clustered))
            if masked is None:
                masks.remove(item, (masks.Masked,))
            elif alive is not None:
                masked.set(alive)
        for name, tensor in self.tensors.items():
            tensor.copy_(self.values[name])
        send_live_blocks(self.items)
        if self.optimizer is not None and self.state is not None:
            self.optimizer.load_state_dict(self.state)


def _fixed(items: list[Item]) -> dict[str, float]:
    return {item.name: float(item.prune.to) for item in items if item.prune}


def _check(
    items: list[Item], policy: Policy, evaluate: Evaluate | None, curve: Curve | None
) -> None:
    automatic = [item.name for item in items if item.prune and item.prune.to == "auto"]
    if automatic and curve is None:
        raise invalid("run", f'{automatic[0]} has to="auto": give curve=sensitivity(...)')
    if policy.total.bytes is not None and curve is None:
        raise invalid("run", "Target.bytes needs curve=sensitivity(...)")
    needs_loss = policy.total.loss_at_most is not None and policy.process.accept is None
    if needs_loss and evaluate is None:
        raise invalid("run", "Target.loss_at_most needs evaluate=")
