"""Training by thin plans: what masks hide is not sent; see test_thin.py."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from roles_counts import COUNTED, witnessed
from roles_plan import TIMEOUT, bits_of, loss_of, make, plan_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.plan
from graph_analysis import DataParallel, Mask, TransferPlan, analyze, thin
from rdmatensor import compress
from rdmatensor.errors import PlanMismatchError

STEPS = 4


def expanded(parameter: torch.Tensor, mask: Mask) -> torch.Tensor:
    """Return which weights are live, one by one."""
    rows = parameter.shape[0]
    flat = torch.zeros(rows, parameter.shape[1:].numel(), dtype=torch.bool)
    wide = -(-flat.shape[1] // mask.block[1])
    for number in mask.live:
        row, column = number // wide * mask.block[0], number % wide * mask.block[1]
        flat[row : row + mask.block[0], column : column + mask.block[1]] = True
    return flat.view(parameter.shape)


def random_masks(model: nn.Module, seed: int) -> dict[str, Mask]:
    """Blocks of any shape, also such as fit no side, of all, some or none of which are live."""
    generator = torch.Generator().manual_seed(seed)

    def number(high: int) -> int:
        return int(torch.randint(high, (), generator=generator))

    found = {}
    for index, (name, parameter) in enumerate(model.named_parameters()):
        block = ((1, 16), (1, 4), (3, 5), (2, 8), (1, 1))[(index + seed) % 5]
        rows, columns = parameter.shape[0], parameter.shape[1:].numel()
        count = -(-rows // block[0]) * -(-columns // block[1])
        share = (0.1, 0.5, 0.0, 1.0, 0.05)[number(5)]
        live = (torch.rand(count, generator=generator) < share).nonzero().flatten().tolist()
        if parameter.dim() > 1 or number(3) == 0:
            found[name] = Mask(block, tuple(live))
    return found


def keep_views(model: nn.Module) -> list[Any]:
    """Hold a view of each gradient: none of them can be sent in place."""
    return [None if p.grad is None else p.grad.view(-1) for p in model.parameters()]


def difference(mine: nn.Module, theirs: nn.Module, live: dict[str, torch.Tensor]) -> float:
    """Set the other model's masked gradients to zero; return how far any gradients are apart."""
    wrong = 0.0
    for (name, one), other in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        if name in live:
            other.grad.mul_(live[name])
        wrong = max(wrong, float((one.grad - other.grad).abs().max()))
    return wrong


def masked(model: nn.Module, live: dict[str, torch.Tensor]) -> float:
    """Return the largest gradient of a masked weight."""
    grads = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return max([0.0, *(float((grads[name] * ~live[name]).abs().max()) for name in live)])


def against_ddp(
    rank: int, world: int, model: str, seed: int = 0, how: str = "plain"
) -> dict[str, Any]:
    """Gradients by a thin plan, and DDP's on Gloo, whose masked elements are then set to zero."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    theirs, batch_of = make(model)
    if how == "channels_last":
        theirs = theirs.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    mine = copy.deepcopy(theirs)
    masks = random_masks(mine, seed)
    plan = thin(plan_of(model, world), masks)
    assert plan.live
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (mine, theirs)]
    planned = rdmatensor.plan.apply(mine, plan, optimizers[0])
    oracle: Any = DistributedDataParallel(theirs, process_group=gloo)
    live = {n: expanded(p, masks[n]) for n, p in theirs.named_parameters() if n in masks}
    held: list[Any] = []
    wrong, dead = 0.0, 0.0
    for step in range(STEPS):
        for trained, optimizer in zip((planned, oracle), optimizers, strict=True):
            optimizer.zero_grad(set_to_none=how != "kept")
            if how == "accumulate":
                with trained.no_sync():
                    loss_of(trained(batch_of(100 + step, rank))).backward()
            if how == "held" and step:
                held.append(keep_views(mine))
            loss_of(trained(batch_of(step, rank))).backward()
            if how == "held":
                held.append(keep_views(mine))
        wrong, dead = max(wrong, difference(mine, theirs, live)), max(dead, masked(mine, live))
        for optimizer in optimizers:
            optimizer.step()
    described = planned.describe()
    planned.close()
    del oracle
    gc.collect()
    found = {
        "wrong": wrong,
        "dead": dead,
        "bits": bits_of(mine),
        "sent_bytes": described["sent_bytes"],
        "span_bytes": STEPS * sum(b.span_bytes for b in plan.buckets if b.phase == "backward"),
        "thinned_bytes": described["thinned_bytes"],
    }
    dist.destroy_process_group()
    return found


def net(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64))
    )


def data(step: int, rank: int) -> torch.Tensor:
    return torch.randn(8, 256, generator=torch.Generator().manual_seed(1000 * step + rank))


def train(model: Any, optimizer: torch.optim.Optimizer, rank: int, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model(data(step, rank))).backward()
        optimizer.step()


def pruned(model: nn.Module, degree: float = 0.9) -> compress.Result:
    policy = compress.Policy(
        compress.Prune("*", block=(1, 16), to=degree), process=compress.Progressive(step=1.0)
    )
    return compress.run(model, policy, progress=False)


def twins(rank: int, world: int) -> dict[str, Any]:
    """Fifty steps of one pruned model by a thin plan, a dense plan and DDP."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    plan = analyze(net(), (data(0, 0),), strategy=DataParallel(world))
    found: dict[str, Any] = {"weights": [], "sent": []}
    for kind in ("thin", "dense", "ddp"):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        trained: Any = model
        if kind == "thin":
            trained = rdmatensor.plan.apply(model, plan, optimizer)
        pruned(model)
        if kind == "dense":
            trained = rdmatensor.plan.apply(model, plan, optimizer)
        if kind == "ddp":
            trained = DistributedDataParallel(model)
        train(trained, optimizer, rank, 50)
        weights = [layer.weight.detach() for layer in model if isinstance(layer, nn.Linear)]
        zeros = sum(int((weight == 0).sum()) for weight in weights)
        assert zeros > 0.88 * sum(weight.numel() for weight in weights)
        digest = nn.ParameterList([nn.Parameter(w) for w in weights])
        found["weights"].append(bits_of(digest))
        if kind != "ddp":
            found["sent"].append(trained.describe()["sent_bytes"])
            trained.close()
        del trained
        gc.collect()
    dist.destroy_process_group()
    return found


def is_of_masks(plan: TransferPlan, result: compress.Result) -> bool:
    """Whether a plan sends what the masks leave of three weights."""
    live = {one.tensor: one.live for one in plan.live}
    return len(live) == 3 and all(
        result.masks[tensor.parameter].flatten().nonzero().flatten().tolist()
        == list(live[tensor.name])
        for tensor in plan.tensors
        if tensor.name in live and tensor.parameter is not None
    )


def rounds(rank: int, world: int) -> dict[str, Any]:
    """Compress under a plan in rounds, of which one is refused; what each step costs."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    aside = dist.new_group(timeout=TIMEOUT)
    dist.barrier(group=aside)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    plan = analyze(model, (data(0, 0),), strategy=DataParallel(world))
    planned = rdmatensor.plan.apply(model, plan, optimizer)
    seen: list[list[dict[str, float]]] = []
    plans: list[TransferPlan] = []

    def retrain(trained: Any) -> None:
        seen.append([])
        for step in range(6):
            optimizer.zero_grad()
            loss_of(trained(data(step, rank))).backward()
            optimizer.step()
            seen[-1].append({name: planned.describe()["last_step"][name] for name in COUNTED})
        plans.append(planned.plan)

    answers = iter((True, False, True, True, True))
    policy = compress.Policy(
        compress.Prune("*", block=(1, 16), to=0.9),
        process=compress.Progressive(step=0.45, retrain=retrain, accept=lambda _: next(answers)),
    )
    result = compress.run(planned, policy, optimizer, progress=False)
    witness: dict[str, Any] = {}
    train(planned, optimizer, rank, 2)
    with witnessed(witness, aside):
        train(planned, optimizer, rank, 5)
    found = {
        "degrees": [max(entry.degrees.values()) for entry in result.history],
        "accepted": [entry.is_accepted for entry in result.history],
        "steps": seen,
        "payload": [payload(one) for one in plans],
        "dense": payload(plan),
        "witness": witness,
        "steps_counted": planned.describe()["steps"],
        "is_of_masks": is_of_masks(planned.plan, result),
    }
    planned.close()
    dist.destroy_process_group()
    return found


def loaded(rank: int, world: int) -> list[bool]:
    """Masks come with a checkpoint: with fewer live blocks, then with more; copies have no plan."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    plan = analyze(model, (data(0, 0),), strategy=DataParallel(world))
    planned = rdmatensor.plan.apply(model, plan, optimizer)
    states = []
    for degree in (0.5, 0.9):
        pruned(model, degree)
        train(planned, optimizer, rank, 1)
        states.append(copy.deepcopy(model.state_dict()))
    found = []
    for state, degree in ((states[0], 0.5), (states[1], 0.9)):
        model.load_state_dict(state)
        other = copy.deepcopy(model)
        other.load_state_dict(states[0])
        train(planned, optimizer, rank, 1)
        blocks = [layer.weight.numel() // 16 for layer in model if isinstance(layer, nn.Linear)]
        live = sum(count - round(degree * count) for count in blocks)
        biases = sum(layer.bias.nbytes for layer in model if isinstance(layer, nn.Linear))
        found.append(payload(planned.plan) == live * 64 + biases)
    planned.close()
    dist.destroy_process_group()
    return found


def payload(plan: TransferPlan) -> int:
    return sum(bucket.payload_bytes for bucket in plan.buckets if bucket.phase == "backward")


def said_by(call: Callable[[], object]) -> str:
    try:
        call()
    except PlanMismatchError as error:
        return str(error)
    return "nothing was said"


def differing(rank: int, world: int) -> dict[str, Any]:
    """The last rank has other masks: at apply(), in a later forward pass; then all agree again."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    is_last = rank == world - 1
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    plan = analyze(model, (data(0, 0),), strategy=DataParallel(world))
    few = {"2.weight": Mask((1, 16), tuple(range(0, 4096, 10)))}
    other = {"2.weight": Mask((1, 16), tuple(range(0, 4096, 11)))} if is_last else few
    apply = rdmatensor.plan.apply
    found = {"apply": said_by(lambda: apply(model, thin(plan, other), optimizer))}
    planned = apply(model, plan, optimizer)
    train(planned, optimizer, rank, 1)
    planned.thin(other)
    found["forward"] = said_by(lambda: planned(data(0, rank)))
    found["again"] = said_by(lambda: planned(data(0, rank)))
    planned.thin(few)
    train(planned, optimizer, rank, 2)
    found["bits"] = bits_of(model)
    planned.close()
    dist.destroy_process_group()
    return found
