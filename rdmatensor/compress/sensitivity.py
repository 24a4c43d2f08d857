"""How much each tensor alone bears: the loss at several degrees, and what to choose by it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm import tqdm

from rdmatensor._native.arguments import invalid
from rdmatensor.compress import masks, scores, sizes
from rdmatensor.compress.policy import Item, Policy, unwrapped
from rdmatensor.compress.ranks import Ranks

DEGREES = (0.5, 0.7, 0.8, 0.9, 0.95)
BINS = 2000  # of bytes, in which allocate() counts
_VERSION = 1

Evaluate = Callable[[torch.nn.Module], float]


@dataclass(frozen=True)
class Curve:
    """Losses of a model with one tensor compressed and all others as they are.

    Attributes:
        base: The loss of the dense model.
        pruned: Tensor -> degree -> loss; degrees are shares of blocks that are zero.
        quantized: Tensor -> loss with the values of its rule.
        fingerprint: Of the weights and rules that were measured.

    Example:
        >>> Curve(1.0, {"fc": {0.5: 1.1}}, {}, "").pruned["fc"][0.5]
        1.1
    """

    base: float
    pruned: Mapping[str, Mapping[float, float]]
    quantized: Mapping[str, float]
    fingerprint: str

    def save(self, path: str | Path) -> None:
        """Write it as JSON.

        Args:
            path: The file; replaced in one step.

        Raises:
            OSError: The file cannot be written.

        Example:
            >>> Curve(1.0, {}, {}, "").save("curve.json")
            >>> Curve.load("curve.json").base
            1.0
        """
        target = Path(path)
        part = target.with_name(target.name + ".part")
        part.write_text(json.dumps({"version": _VERSION, **asdict(self)}, indent=1), "utf-8")
        part.replace(target)

    @classmethod
    def load(cls, path: str | Path) -> Curve:
        """Read what save() wrote.

        Args:
            path: The file.

        Returns:
            The curve.

        Raises:
            InvalidArgumentError: The file is damaged or of another version.
            OSError: The file cannot be read.

        Example:
            >>> Curve(1.0, {}, {}, "").save("curve.json")
            >>> Curve.load("curve.json").pruned
            {}
        """
        try:
            found = json.loads(Path(path).read_text("utf-8"))
            if found["version"] != _VERSION:
                raise ValueError(f"version {found['version']}, {_VERSION} is known")
            pruned = {
                str(name): {float(degree): float(loss) for degree, loss in curve.items()}
                for name, curve in found["pruned"].items()
            }
            quantized = {str(name): float(loss) for name, loss in found["quantized"].items()}
            return cls(float(found["base"]), pruned, quantized, str(found["fingerprint"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise invalid("Curve.load", f"{path} is not a sensitivity curve: {error}") from error

    def picture(self, path: str | Path) -> None:
        """Draw the losses over the degrees, a line for each tensor.

        Args:
            path: The file; its ending chooses the format, for example .svg.

        Raises:
            ImportError: matplotlib is not installed.
            OSError: The file cannot be written.

        Example:
            >>> Curve(1.0, {"fc": {0.5: 1.1}}, {}, "").picture("curve.svg")
        """
        from matplotlib.figure import Figure  # slow to import, and few need it

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        for name, curve in self.pruned.items():
            degrees = sorted(curve)
            losses = [self.base, *(curve[degree] for degree in degrees)]
            axes.plot([0, *degrees], losses, marker="o", label=name)
        for name, loss in self.quantized.items():
            axes.plot([0], [loss], marker="x", linestyle="", label=f"{name}, few values")
        axes.axhline(self.base, color="grey", linewidth=0.8)
        axes.set(
            xlabel="share of blocks that are zero", ylabel="loss", title="One tensor at a time"
        )
        axes.legend(fontsize="small")
        figure.savefig(path)


def sensitivity(
    model: torch.nn.Module,
    policy: Policy,
    evaluate: Evaluate,
    *,
    score: Callable[[torch.nn.Module], object] | None = None,
    cache: str | Path | None = None,
    group: dist.ProcessGroup | None = None,
    progress: bool = True,
) -> Curve:
    """Measure what each tensor bears alone.

    All ranks call it. The model is as before when it returns.

    Args:
        model: Also inside DistributedDataParallel or a planned model.
        policy: Its rules choose the tensors.
        evaluate: Returns the loss of the model that it gets; ranks' losses are averaged.
        score: As in run().
        cache: A JSON file: read if it is of these weights and rules, else written by rank 0.
        group: The ranks; None: the default group, or this process alone.
        progress: Whether rank 0 shows a bar.

    Returns:
        The curve, the same on all ranks.

    Raises:
        InvalidArgumentError: As Policy.items(), the model is compressed by now, or a loss is NaN.
        PlanMismatchError: Ranks have other weights or rules.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4))
        >>> curve = sensitivity(model, Policy(Prune("0")), lambda m: m[0].weight.norm().item())
        >>> curve.pruned["0.weight"][0.9] < curve.base
        True
    """
    ranks, inner = Ranks(group), unwrapped(model)
    items = policy.items(inner)
    _check_dense(items)
    mine = fingerprint(items)
    ranks.check_same("the weights or the rule", mine)
    whole = _digest(sorted(mine.items()))
    cached = ranks.first(_cached(cache, whole))
    if cached is not None:
        return cached
    scored = scores.measure(model, items, score, ranks)
    base = _loss(evaluate, model, ranks)
    steps = [(item, degree) for item in items if item.prune for degree in DEGREES]
    few = [item for item in items if item.quantize]
    pruned: dict[str, dict[float, float]] = {}
    quantized: dict[str, float] = {}
    is_shown = progress and (ranks.is_alone or dist.get_rank(group) == 0)
    with tqdm(total=len(steps) + len(few), desc="sensitivity", disable=not is_shown) as bar:
        for item, degree in steps:
            part = masks.masked_part(item)
            try:
                part.set(masks.choose_alive(scored[item.name], part.alive, degree))
                pruned.setdefault(item.name, {})[degree] = _loss(evaluate, model, ranks)
            finally:
                masks.remove(item, (masks.Masked,))
            bar.update()
        for item in few:
            masks.quantized_part(item)
            try:
                quantized[item.name] = _loss(evaluate, model, ranks)
            finally:
                masks.remove(item, (masks.Uniform, masks.Clustered))
            bar.update()
    curve = Curve(base, pruned, quantized, whole)
    if cache is not None and (ranks.is_alone or dist.get_rank(group) == 0):
        curve.save(cache)
    return curve


def allocate(
    model: torch.nn.Module, items: list[Item], policy: Policy, curve: Curve
) -> dict[str, float]:
    """Return the degree of each tensor that has a Prune.

    Of the degrees that "auto" may take, those are chosen whose losses, added, rise least while the
    model keeps to Target.bytes: dynamic programming over the bytes, counted in BINS. Without
    Target.bytes each takes the largest degree that alone keeps to Target.loss_at_most.

    Raises:
        InvalidArgumentError: The curve is of other tensors, or no degrees reach the target; the
            message has the least bytes on offer.
    """
    fixed = {
        item.name: float(item.prune.to) for item in items if item.prune and item.prune.to != "auto"
    }
    free = [item for item in items if item.prune and item.prune.to == "auto"]
    for item in free:
        if item.name not in curve.pruned:
            raise invalid("run", f"the curve has nothing of {item.name}: measure it by this policy")
    if policy.total.bytes is None:
        return fixed | {item.name: _alone(item, policy, curve) for item in free}
    others = sizes.dense_bytes(model) - sum(_bytes(item, 0.0, dense=True) for item in items)
    others += sum(_bytes(item, fixed.get(item.name, 0.0)) for item in items if item not in free)
    limit = int(policy.total.bytes * sizes.dense_bytes(model)) - others
    least = sum(
        min(_bytes(item, degree) for degree in (0.0, *curve.pruned[item.name])) for item in free
    )
    if least > limit:
        share = (least + others) / sizes.dense_bytes(model)
        raise invalid(
            "run",
            f"Target(bytes={policy.total.bytes}) cannot be reached: these rules "
            f"come to {share:.4f} of the dense model at least",
        )
    return fixed | _cheapest(free, limit, curve)


def _cheapest(free: list[Item], limit: int, curve: Curve) -> dict[str, float]:
    """Return the degrees with the least summed rise of the loss within `limit` bytes."""
    bin_bytes = max(1, -(-limit // BINS))
    room = limit // bin_bytes
    # best[b]: the least rise with at most b bins, and the degrees that give it
    best: list[tuple[float, tuple[float, ...]] | None] = [(0.0, ())] * (room + 1)
    for item in free:
        ways = [(0.0, 0.0)] + [
            (degree, loss - curve.base) for degree, loss in sorted(curve.pruned[item.name].items())
        ]
        costs = [(-(-_bytes(item, degree) // bin_bytes), rise, degree) for degree, rise in ways]
        best = [
            min(
                (
                    (before[0] + rise, (*before[1], degree))
                    for cost, rise, degree in costs
                    if cost <= bins and (before := best[bins - cost]) is not None
                ),
                default=None,
            )
            for bins in range(room + 1)
        ]
    chosen = best[room]
    if chosen is None:  # bins round up: take what is smallest
        return {item.name: max(curve.pruned[item.name]) for item in free}
    return dict(zip((item.name for item in free), chosen[1], strict=True))


def _alone(item: Item, policy: Policy, curve: Curve) -> float:
    if policy.total.loss_at_most is None:
        raise invalid("run", f'{item.name} has to="auto": give Target a loss_at_most or bytes')
    limit = policy.total.loss_at_most * curve.base
    fitting = [degree for degree, loss in curve.pruned[item.name].items() if loss <= limit]
    return max(fitting, default=0.0)


def _bytes(item: Item, degree: float, *, dense: bool = False) -> int:
    if dense:
        return item.tensor.numel() * item.tensor.element_size()
    return sizes.item_bytes(item, degree, is_quantized=True)


def _loss(evaluate: Evaluate, model: torch.nn.Module, ranks: Ranks) -> float:
    with torch.no_grad():
        loss = ranks.mean(evaluate(model))
    if loss != loss:
        raise invalid("evaluate", "the loss is NaN")
    return loss


def fingerprint(items: Iterable[Item]) -> dict[str, str]:
    """Return what ranks compare: of each tensor its bits and its rules."""
    return {
        item.name: _digest([repr(item.prune), repr(item.quantize)])
        + hashlib.sha256(
            item.tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()
        ).hexdigest()
        for item in items
    }


def _digest(values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def _cached(cache: str | Path | None, whole: str) -> Curve | None:
    if cache is None or not Path(cache).exists():
        return None
    found = Curve.load(cache)
    return found if found.fingerprint == whole else None


def _check_dense(items: Iterable[Item]) -> None:
    for item in items:
        if masks.parts(item) != (None, None):
            raise invalid("sensitivity", f"{item.name} is compressed by now; measure before run()")
