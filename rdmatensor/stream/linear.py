"""A linear layer whose weight lies in a lender's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rdmatensor._lend.lent import Lent
from rdmatensor._native.arguments import invalid
from rdmatensor.errors import InvalidArgumentError
from rdmatensor.stream.product import Epilogue, Trained, epilogue_of, product_of
from rdmatensor.stream.remote import SEGMENT_BYTES, Remote, place


class Linear(nn.Module):
    """A linear layer whose weight, and its gradient, lie in a lender's memory.

    The bias is an ordinary parameter. The weight is not a parameter: update() steps it. So
    optimizers do not see it, ranks do not average its gradient (only one rank may train it), and
    its gradient accumulates until update() or zero_grad() of this layer: zero_grad() of the model
    or of an optimizer does not drop it. state_dict() reads the weight, whole, under the name
    "weight" as that of a resident layer, and load_state_dict() writes it.

    Args:
        weight: What place() returned.
        bias: A parameter, or None.
        epilogue: As for linear().
        gradient: Where the weight's gradient is written, or None if it does not train.

    Attributes:
        weight: The matrix.
        bias: The parameter, or None.

    Example:
        >>> layer = Linear.of(torch.nn.Linear(4, 4), lent)  # doctest: +SKIP
        >>> layer(torch.ones(2, 4)).shape  # doctest: +SKIP
        torch.Size([2, 4])
    """

    def __init__(
        self,
        weight: Remote,
        bias: nn.Parameter | None = None,
        *,
        epilogue: Epilogue | str | None = None,
        gradient: Remote | None = None,
    ) -> None:
        super().__init__()
        self.weight, self._epilogue = weight, epilogue_of(epilogue)
        self.bias = bias
        self._trained = None if gradient is None else Trained(gradient)
        self._anchor = None if gradient is None else torch.zeros((), requires_grad=True)

    @classmethod
    def of(
        cls,
        layer: nn.Linear,
        lent: Lent,
        *,
        epilogue: Epilogue | str | None = None,
        trains: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> Linear:
        """Move the weight of a linear layer into borrowed memory.

        Args:
            layer: The layer; drop it afterwards, and with it the weight in this process.
            lent: What lend() returned.
            epilogue: As for linear().
            trains: Whether the weight gets a gradient, which takes as much borrowed memory again.
            segment_bytes: As for place().

        Returns:
            The layer that replaces it.

        Raises:
            InvalidArgumentError: It is not a Linear, the lender lends too little, or several ranks
                borrow and it trains: their gradients would not be averaged.
            PeerError: The lender died or left.

        Example:
            >>> Linear.of(torch.nn.Linear(4, 4), lent, epilogue="gelu")  # doctest: +SKIP
            Linear(<Remote (4, 4) of torch.float32 at rank 1>)
        """
        if not isinstance(layer, nn.Linear):
            raise invalid("Linear.of", f"layer is a {type(layer).__name__}, not a torch.nn.Linear")
        if trains:
            _check_trains_here(lent, "Linear.of")
        function = epilogue_of(epilogue)
        size = layer.weight.numel() * layer.weight.element_size()
        lent._check_free((2 if trains else 1) * size, "Linear.of")
        weight = place(layer.weight.detach(), lent, segment_bytes=segment_bytes)
        gradient = None
        if trains:
            taken = lent._take(size, "Linear.of")
            gradient = Remote(taken, weight.shape, weight.dtype, segment_bytes)
        return cls(weight, layer.bias, epilogue=function, gradient=gradient)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return epilogue(x @ weight.T + bias).

        Args:
            x: As for linear().

        Returns:
            As linear().

        Raises:
            InvalidArgumentError: As linear().
            PeerError: The lender died or left.

        Example:
            >>> Linear.of(torch.nn.Linear(4, 4), lent)(torch.ones(4)).shape  # doctest: +SKIP
            torch.Size([4])
        """
        return product_of(x, self.weight, self.bias, self._epilogue, self._anchor, self._trained)

    def update(self, step: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        """Step the weight, segment by segment, and drop its gradient.

        Args:
            step: step(weight, gradient) changes rows of the weight in place; rows are independent.

        Raises:
            InvalidArgumentError: No backward pass has made a gradient since the last update.
            PeerError: The lender died or left.

        Example:
            >>> layer.update(lambda w, g: w.add_(g, alpha=-0.1))  # doctest: +SKIP
        """
        if self._trained is None or not self._trained.is_there:
            raise invalid("update", "the weight has no gradient: run a backward pass before")
        pairs = zip(self.weight._segments(), self._trained.remote._segments(), strict=True)
        for (start, _, rows), (_, _, gradient) in pairs:
            step(rows, gradient)
            if self.weight.is_mapped:
                self.weight._map()  # rows of a lender that died meanwhile are lost
            else:
                self.weight._put(start, rows)
        self._trained.is_there = False

    def gradient(self) -> torch.Tensor | None:
        """Read the weight's gradient.

        Returns:
            A copy, or None if there is none.

        Raises:
            PeerError: The lender died or left.

        Example:
            >>> layer.gradient()  # doctest: +SKIP
        """
        if self._trained is None or not self._trained.is_there:
            return None
        return self._trained.remote.fetch()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of weight and bias.

        Call it on this layer: zero_grad() of the model or an optimizer drops the bias's only.

        Args:
            set_to_none: As for torch.nn.Module.zero_grad().

        Example:
            >>> layer.zero_grad()  # doctest: +SKIP
        """
        super().zero_grad(set_to_none)
        if self._trained is not None:
            self._trained.is_there = False

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        destination[f"{prefix}weight"] = self.weight.fetch()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key = f"{prefix}weight"
        others = {name: one for name, one in state_dict.items() if name != key}
        super()._load_from_state_dict(
            others, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if key not in state_dict:
            missing_keys.extend([key] if strict else [])
            return
        try:
            self.weight.put(state_dict[key].to("cpu", self.weight.dtype))
        except InvalidArgumentError as error:
            error_msgs.append(f"{key}: {error}")

    def extra_repr(self) -> str:
        """Return the weight, for repr().

        Returns:
            Shape, dtype and lender.

        Example:
            >>> layer.extra_repr()  # doctest: +SKIP
        """
        return repr(self.weight)


def _check_trains_here(lent: Lent, call: str) -> None:
    """Raise InvalidArgumentError if other ranks would train a copy of the weight."""
    count = 1 if lent.group is None else dist.get_world_size(lent.group)
    if count > 1:
        raise invalid(
            call,
            f"{count} ranks borrow, and each would train a weight of its own, as gradients of "
            "weights at a lender are not averaged: let one rank borrow, or freeze the weight "
            "(requires_grad_(False) before replace(), trains=False for Linear.of())",
        )


def replace(
    model: nn.Module, name: str, lent: Lent, *, epilogue: Epilogue | str | None = None
) -> Linear:
    """Replace a linear layer of a model by one whose weight lies in borrowed memory.

    Only one rank may train it. A weight that does not require a gradient may be borrowed by
    several ranks, each of which has its own copy.

    Args:
        model: The model.
        name: Qualified name of the layer.
        lent: What lend() returned.
        epilogue: As for linear().

    Returns:
        The new layer, which is in the model.

    Raises:
        InvalidArgumentError: The model lacks the layer, its weight is used by another module too
            (tied), the lender lends too little, or the weight trains and several ranks borrow:
            their gradients would not be averaged. The model is unchanged.
        PeerError: The lender died or left.

    Example:
        >>> replace(model, "head", lent)  # doctest: +SKIP
        Linear(<Remote (10, 64) of torch.float32 at rank 1>)
    """
    modules = dict(model.named_modules())
    layer = modules.get(name)
    if not isinstance(layer, nn.Linear):
        raise invalid("replace", f"{name!r} is not a torch.nn.Linear of the model")
    tied = [
        other
        for other, one in model.named_parameters(remove_duplicate=False)
        if one is layer.weight and other != f"{name}.weight"
    ]
    if tied:
        raise invalid(
            "replace", f"{name}.weight is {tied[0]} too: a tied weight stays in this process"
        )
    made = Linear.of(layer, lent, epilogue=epilogue, trains=layer.weight.requires_grad)
    outer, _, last = name.rpartition(".")
    setattr(modules[outer], last, made)
    return made
