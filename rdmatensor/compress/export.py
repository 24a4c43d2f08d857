"""Compressed models as data, and back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from rdmatensor._native.arguments import invalid
from rdmatensor.compress import masks, points
from rdmatensor.compress.between import Part, detach
from rdmatensor.compress.policy import Item, Quantize

FORMAT = "rdmatensor.compress"
VERSION = 1


def export(model: torch.nn.Module, items: list[Item], kind: str) -> Any:  # noqa: ANN401
    """Return a compressed model as data; see Result.export."""
    if kind == "torchao":
        return _torchao(model, items)
    makers: dict[str, Callable[[Item], Any]] = {
        "dense": masks.effective,
        "bsr": _bsr,
        "codebook": _codebook,
    }
    if kind not in makers:
        known = ", ".join([*makers, "torchao"])
        raise invalid("export", f"kind={kind!r} is unknown; expected one of {known}")
    state = dense_state(model)
    for item in items:
        made = makers[kind](item)
        state[item.name] = made.clone() if isinstance(made, torch.Tensor) else made
        for name in _other_names(model, item):
            state[name] = state[item.name]
    if kind == "codebook":
        return {"format": FORMAT, "version": VERSION, "state": state}
    return state


def dense_state(model: torch.nn.Module) -> dict[str, Any]:
    """Return the state dict without what was put between parameters and modules."""
    hidden = {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, Part)
        for name, _ in module.named_buffers()
    }
    state = model.state_dict()
    return {name: state[name].detach().clone() for name in state if name not in hidden}


def load(model: torch.nn.Module, exported: Mapping[str, Any]) -> None:
    """Load what Result.export() returned, of any kind but "torchao", into an uncompressed model.

    Args:
        model: Of the same shapes; its tensors keep their identity and take the values.
        exported: Also after torch.save() and torch.load().

    Raises:
        InvalidArgumentError: The data is of another format or version, or damaged.
        RuntimeError: torch says that names or shapes differ.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4))
        >>> small = run(model, Policy(Prune("0", to=0.5))).export("codebook")
        >>> other = torch.nn.Sequential(torch.nn.Linear(4, 4))
        >>> load(other, small)
        >>> torch.equal(other[0].weight, model[0].weight)
        True
    """
    state: Mapping[str, Any] = exported
    if "format" in exported:
        if exported["format"] != FORMAT or exported.get("version") != VERSION:
            raise invalid(
                "load",
                f"format {exported['format']!r}, version {exported.get('version')!r}: "
                f"{FORMAT!r}, version {VERSION} is known",
            )
        state = exported["state"]
    model.load_state_dict({name: _dense(name, value) for name, value in state.items()})


def _dense(name: str, value: Any) -> torch.Tensor:  # noqa: ANN401 - what a file holds
    if isinstance(value, torch.Tensor):
        return value if value.layout == torch.strided else value.to_dense()
    try:
        return _from_codebook(value)
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise invalid("load", f"{name} is damaged: {error!r}") from error


def _bsr(item: Item) -> torch.Tensor:
    masked, _ = masks.parts(item)
    weight = masks.effective(item)
    if masked is None:
        return weight
    block = masked.rule.block
    if weight.dim() != 2 or weight.shape[0] % block[0] or weight.shape[1] % block[1]:
        raise invalid(
            "export",
            f"{item.name} of shape {tuple(weight.shape)} is not a matrix of whole blocks of "
            f"{block}: torch's block-sparse tensors hold nothing else",
        )
    return weight.to_sparse_bsr(block)


def _codebook(item: Item) -> torch.Tensor | dict[str, Any]:
    """Return live blocks one after another, as values or as packed codes."""
    masked, few = masks.parts(item)
    weight = masks.effective(item)
    if masked is None and few is None:
        return weight
    made: dict[str, Any] = {"shape": list(weight.shape), "dtype": str(weight.dtype)}
    alive = torch.ones(weight.shape, dtype=torch.bool)
    if masked is not None:
        alive = masks.expanded(masked.alive, masked.rule.block, weight.shape)
        made["block"], made["blocks"] = list(masked.rule.block), list(masked.alive.shape)
        made["alive"] = torch.from_numpy(np.packbits(masked.alive.numpy().ravel()))
    if few is None:
        return made | {"values": weight[alive].clone()}
    made["bits"] = few.rule.bits
    if isinstance(few, masks.Clustered):
        parameter = item.tensor.detach()
        before = masked(parameter) if masked is not None else parameter
        count = 1 << few.rule.bits
        made["means"] = points.cluster_means(before, few.codes, few.counted, count)[0]
        return made | {"codes": _packed(few.codes[alive], few.rule.bits)}
    codes = points.uniform_codes(_before(item), few.scales, few.rule)
    rows, columns = weight.shape[0], weight.shape[1:].numel()
    flat = codes.reshape(rows, -1)[:, :columns].reshape(weight.shape)
    made["scales"], made["group"] = few.scales.clone(), few.rule.group
    shifted = (flat[alive].int() + points.largest_code(few.rule)).to(torch.uint8)
    return made | {"codes": _packed(shifted, few.rule.bits)}


def _before(item: Item) -> torch.Tensor:
    """Return the weight as it goes into the rounding: masked."""
    masked, _ = masks.parts(item)
    parameter = item.tensor.detach()
    return parameter if masked is None else masked(parameter)


def _from_codebook(made: Mapping[str, Any]) -> torch.Tensor:
    shape = torch.Size(made["shape"])
    dtype = getattr(torch, made["dtype"].removeprefix("torch."))
    alive = torch.ones(shape, dtype=torch.bool)
    if "alive" in made:
        high, wide = made["blocks"]
        bits = np.unpackbits(made["alive"].numpy(), count=high * wide).reshape(high, wide)
        alive = masks.expanded(torch.from_numpy(bits.astype(bool)), tuple(made["block"]), shape)
    weight = torch.zeros(shape, dtype=dtype)
    if "values" in made:
        weight[alive] = made["values"]
        return weight
    codes = _unpacked(made["codes"], made["bits"], int(alive.sum()))
    if "means" in made:
        weight[alive] = made["means"][codes.long()].to(dtype)
        return weight
    rule = Quantize("", "uniform", made["bits"], made["group"])
    full = torch.zeros(shape, dtype=torch.int8)
    full[alive] = (codes.int() - points.largest_code(rule)).to(torch.int8)
    columns = shape[1:].numel()
    size = min(rule.group or columns, columns)
    grouped = torch.nn.functional.pad(full.reshape(shape[0], -1), (0, -columns % size))
    return points.uniform_values(grouped.reshape(-1, size), made["scales"], rule, shape).to(dtype)


def _packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Return codes of `bits` bits each, one after another."""
    spread = np.unpackbits(codes.numpy().astype(np.uint8)[:, None], axis=1)[:, 8 - bits :]
    return torch.from_numpy(np.packbits(spread.ravel()))


def _unpacked(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    spread = np.unpackbits(packed.numpy(), count=count * bits).reshape(count, bits)
    full = np.zeros((count, 8), np.uint8)
    full[:, 8 - bits :] = spread
    return torch.from_numpy(np.packbits(full, axis=1).ravel())


def _torchao(model: torch.nn.Module, items: list[Item]) -> torch.nn.Module:
    """Return a plain copy in which torchao's int8 linear layers stand for the rules."""
    try:
        from torchao.quantization import Int8WeightOnlyConfig, PerGroup, PerRow, quantize_
    except ImportError as error:
        raise invalid("export", f"kind='torchao' needs the package torchao: {error}") from error
    for item in items:
        _check_torchao(item)
    names = {id(module): name for name, module in model.named_modules()}
    plain = copy.deepcopy(model)
    for item in items:
        owners = [(plain.get_submodule(names[id(one)]), name) for one, name in item.owners]
        detach(owners, (Part,))
        with torch.no_grad():
            dict(owners[0][0].named_parameters())[owners[0][1]].copy_(_before(item))
        if item.quantize is not None:
            modules = [module for module, _ in owners]
            size = item.quantize.group
            config = Int8WeightOnlyConfig(granularity=PerGroup(size) if size else PerRow())
            quantize_(plain, config, lambda module, _, modules=modules: module in modules)
    return plain


def _check_torchao(item: Item) -> None:
    rule = item.quantize
    if rule is None:
        return
    if rule.points != "uniform" or rule.bits != 8:
        raise invalid("export", f"{item.name}: torchao has nothing that says {rule}")
    if not all(isinstance(module, torch.nn.Linear) for module, _ in item.owners):
        raise invalid("export", f"{item.name}: torchao's quantize_ takes torch.nn.Linear only")


def _other_names(model: torch.nn.Module, item: Item) -> list[str]:
    """Return the other names of a tensor that several modules share."""
    names = {id(module): name for name, module in model.named_modules()}
    full = [f"{names[id(module)]}.{name}".lstrip(".") for module, name in item.owners]
    return [name for name in full if name != item.name]
