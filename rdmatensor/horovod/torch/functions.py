"""Broadcasts of models, optimizers and objects."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import cloudpickle
import torch

from rdmatensor.horovod import basics
from rdmatensor.horovod.process_sets import ProcessSet, global_process_set
from rdmatensor.horovod.torch.handles import synchronize
from rdmatensor.horovod.torch.moves import allgather, broadcast_, broadcast_async_

T = TypeVar("T")


def broadcast_parameters(params: object, root_rank: int) -> None:
    """Copy tensors of one rank into those of all ranks.

    Args:
        params: A dictionary, such as `model.state_dict()`, or a list of tensors or of pairs of a
            name and a tensor, such as `list(model.named_parameters())`.
        root_rank: The rank whose tensors all get.

    Raises:
        ValueError: params is neither; or a tensor is not contiguous.
        HorovodInternalError: Ranks disagree on a tensor, a rank died or left.

    Example:
        >>> broadcast_parameters(torch.nn.Linear(2, 2).state_dict(), root_rank=0)
    """
    if isinstance(params, dict):
        pairs = sorted(params.items())
    elif isinstance(params, list):
        pairs = [one if isinstance(one, tuple) else (None, one) for one in params]
    else:
        raise ValueError(f"params is a {type(params).__name__}: give a dictionary or a list")
    for handle in [broadcast_async_(tensor, root_rank, name) for name, tensor in pairs]:
        synchronize(handle)


def broadcast_object(
    obj: T,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> T:
    """Return one rank's object on all ranks, by cloudpickle.

    Args:
        obj: What cloudpickle can serialise; used on the root only.
        root_rank: The global rank whose object all get.
        name: On which ranks agree; None takes the name of the object's type.
        process_set: The ranks that take part.

    Returns:
        The object on the root, a copy on the others.

    Raises:
        ValueError: This rank or the root is not in the set.
        HorovodInternalError: A rank died or left.

    Example:
        >>> broadcast_object({"epoch": 3})
        {'epoch': 3}
    """
    label = type(obj).__name__ if name is None else name
    is_root = basics.rank() == root_rank
    data = _dumped(obj) if is_root else torch.empty(0, dtype=torch.uint8)
    count = broadcast_(torch.tensor([len(data)]), root_rank, f"{label}.sz", process_set)
    if not is_root:
        data = torch.empty(int(count), dtype=torch.uint8)
    broadcast_(data, root_rank, f"{label}.t", process_set)
    return obj if is_root else _loaded(data)


def allgather_object(obj: T, name: str | None = None) -> list[T]:
    """Return the objects of all ranks, by cloudpickle.

    Args:
        obj: What cloudpickle can serialise.
        name: On which ranks agree; None takes the name of the object's type.

    Returns:
        The objects in the order of the ranks.

    Raises:
        HorovodInternalError: A rank died or left.

    Example:
        >>> allgather_object("one")
        ['one']
    """
    label = type(obj).__name__ if name is None else name
    data = _dumped(obj)
    counts = allgather(torch.tensor([len(data)]), name=f"{label}.sz").tolist()
    gathered = allgather(data, name=f"{label}.t")
    return [_loaded(one) for one in torch.split(gathered, counts)]


def _dumped(obj: object) -> torch.Tensor:
    return torch.frombuffer(bytearray(cloudpickle.dumps(obj)), dtype=torch.uint8)


def _loaded(data: torch.Tensor) -> Any:  # noqa: ANN401 - whatever was dumped
    return cloudpickle.load(io.BytesIO(data.numpy().tobytes()))


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Copy the state of one rank's optimizer into those of all ranks.

    An optimizer without state makes it in one step with gradients of zeros, which changes no
    parameter; gradients that were None are zeros then.

    Args:
        optimizer: A torch optimizer, or one that DistributedOptimizer() returned.
        root_rank: The rank whose state all get.
        model: Has sparse embeddings, whose gradients are sparse.

    Raises:
        ValueError: The optimizer is torch.optim.LBFGS, whose state differs with its history.
        HorovodInternalError: Ranks disagree on a tensor, a rank died or left.

    Example:
        >>> model = torch.nn.Linear(2, 2)
        >>> broadcast_optimizer_state(torch.optim.Adam(model.parameters()), root_rank=0)
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of torch.optim.LBFGS cannot be broadcast: it depends on calls")
    if not optimizer.state_dict()["state"]:
        _make_state(optimizer, _sparse_parameters(model))
    tensors: list[tuple[str, torch.Tensor]] = []
    others: dict[str, object] = {}
    places: dict[str, Callable[[Any], None]] = {}
    for label, target, key in _values_of(optimizer):
        value = target[key]
        if isinstance(value, torch.Tensor):
            tensors.append((label, value))
        else:
            others[label], places[label] = value, _setter(target, key)
    _broadcast_tensors(tensors, root_rank)
    for label, value in broadcast_object(others, root_rank, "optimizer").items():
        places[label](value)


def _values_of(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a name, and the place, of each option and each value of the state."""
    for index, group in enumerate(optimizer.param_groups):
        yield from ((f"option.{index}.{key}", group, key) for key in group if key != "params")
    for index, values in optimizer.state_dict()["state"].items():
        yield from ((f"state.{index}.{key}", values, key) for key in values)


def _broadcast_tensors(tensors: list[tuple[str, torch.Tensor]], root_rank: int) -> None:
    """Broadcast tensors, also those that are not contiguous."""
    copies = [(label, tensor.contiguous()) for label, tensor in tensors]
    broadcast_parameters(copies, root_rank)
    for (_, tensor), (_, copy) in zip(tensors, copies, strict=True):
        if copy is not tensor:
            tensor.copy_(copy)


def _setter(target: dict[str, Any], key: str) -> Callable[[Any], None]:
    def put(value: object) -> None:
        target[key] = value

    return put


def _sparse_parameters(model: torch.nn.Module | None) -> set[int]:
    modules: Iterable[torch.nn.Module] = () if model is None else model.modules()
    return {
        id(module.weight)
        for module in modules
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse
    }


def _make_state(optimizer: torch.optim.Optimizer, sparse: set[int]) -> None:
    """Make one step with gradients of zeros; undo its other effects."""
    parameters = [
        one for group in optimizer.param_groups for one in group["params"] if one.requires_grad
    ]
    grads = [one.grad for one in parameters]
    values = [one.detach().clone() for one in parameters]
    decays = [group.get("weight_decay") for group in optimizer.param_groups]
    is_sparse = isinstance(optimizer, torch.optim.SparseAdam)
    for one in parameters:
        zeros = torch.zeros_like(one)
        one.grad = zeros.to_sparse() if is_sparse or id(one) in sparse else zeros
    for group, decay in zip(optimizer.param_groups, decays, strict=True):
        if decay is not None:
            group["weight_decay"] = 0.0  # it would put the parameters into the state
    getattr(optimizer, "_local_step", optimizer.step)()
    for group, decay in zip(optimizer.param_groups, decays, strict=True):
        if decay is not None:
            group["weight_decay"] = decay
    for state in optimizer.state.values():
        if "step" in state:
            state["step"] = state["step"] * 0
    with torch.no_grad():
        for one, grad, value in zip(parameters, grads, values, strict=True):
            one.copy_(value)
            if grad is not None:
                one.grad = grad
