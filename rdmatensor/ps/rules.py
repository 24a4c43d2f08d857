"""Update rules and first values of rows; the C library applies them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rdmatensor._native.arguments import invalid
from rdmatensor._native.ffi import CData, check, ffi, lib, new_error


@dataclass(frozen=True)
class Rule:
    """What a push does to a row; use one of the classes below.

    Attributes:
        lr: Learning rate; Worker.clock(lr_scale=...) multiplies it.
        momentum: Only SGD; 0 keeps no state.
        nesterov: Only SGD with momentum.
        weight_decay: Applied to the rows that a push touches, when it touches them.
        eps: Added to the root that a gradient is divided by.
        beta1: Only Adam and AdamW.
        beta2: Only Adam and AdamW.
        initial: Only Adagrad and RowAdagrad: what their sums begin with.
    """

    kind: str
    lr: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    eps: float = 0.0
    beta1: float = 0.0
    beta2: float = 0.0
    initial: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers as the C library does."""
        err = new_error()
        check(lib.rdt_ps_rule_check(self._struct(), err), type(self).__name__, err)

    def _struct(self) -> CData:
        """Make the struct rdt_ps_rule *."""
        struct = ffi.new("struct rdt_ps_rule *")
        self._fill(struct)
        return struct

    def _fill(self, struct: CData) -> None:
        struct.struct_size = ffi.sizeof("struct rdt_ps_rule")
        struct.kind = getattr(lib, f"RDT_PS_{self.kind}")
        struct.nesterov = int(self.nesterov)
        for name in ("lr", "momentum", "weight_decay", "eps", "beta1", "beta2", "initial"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise invalid(self.kind, f"{name}={value!r} is a {type(value).__name__}")
            setattr(struct, name, float(value))

    def _spec(self) -> dict[str, object]:
        """Return what workers compare and servers read."""
        return asdict(self)


@dataclass(frozen=True)
class Custom(Rule):
    """A PythonRule as processes compare it; made by pyrules.described().

    Attributes:
        name: Of its class, with the module.
        parameters: Its fields, as JSON.
        digest: Of the code of its class.
        state_floats: Floats of state of a row.
        is_sum: Whether pushes of several workers are summed, not averaged.
    """

    name: str = ""
    parameters: str = "{}"
    digest: str = ""
    state_floats: int = 0
    is_sum: bool = False

    def _fill(self, struct: CData) -> None:
        super()._fill(struct)
        struct.state_floats, struct.is_sum = self.state_floats, int(self.is_sum)


def rule_of(data: dict[str, Any]) -> Rule:
    """Read what _spec() returned; raises TypeError or InvalidArgumentError for something else."""
    return Custom(**data) if data.get("kind") == "CUSTOM" else Rule(**data)


def Assign() -> Rule:  # noqa: N802 - rules are named as torch's optimizers are
    """Make the rule by which a row becomes the pushed value; of several the last one counts.

    Returns:
        The rule.

    Example:
        >>> Assign().kind
        'ASSIGN'
    """
    return Rule("ASSIGN")


def Add() -> Rule:  # noqa: N802
    """Make the rule by which pushed values are added; workers' pushes are summed, not averaged.

    Returns:
        The rule.

    Example:
        >>> Add().kind
        'ADD'
    """
    return Rule("ADD")


def SGD(  # noqa: N802
    lr: float, momentum: float = 0.0, *, nesterov: bool = False, weight_decay: float = 0.0
) -> Rule:
    """Make the rule of torch.optim.SGD.

    Args:
        lr: Learning rate.
        momentum: A row's momentum changes only when the row is pushed.
        nesterov: Needs a momentum.
        weight_decay: Of the pushed rows.

    Returns:
        The rule.

    Raises:
        InvalidArgumentError: A number is out of range.

    Example:
        >>> SGD(0.1, momentum=0.9).kind
        'MOMENTUM'
    """
    kind = "MOMENTUM" if momentum else "SGD"
    return Rule(kind, lr, momentum, nesterov=nesterov, weight_decay=weight_decay)


def Adagrad(lr: float = 0.01, eps: float = 1e-10, *, initial: float = 0.0) -> Rule:  # noqa: N802
    """Make the rule of torch.optim.Adagrad, without its decays.

    Args:
        lr: Learning rate.
        eps: Added to the root.
        initial: What the sums of squares begin with.

    Returns:
        The rule.

    Raises:
        InvalidArgumentError: A number is out of range.

    Example:
        >>> Adagrad(0.1).lr
        0.1
    """
    return Rule("ADAGRAD", lr, eps=eps, initial=initial)


def RowAdagrad(lr: float = 0.01, eps: float = 1e-10, *, initial: float = 0.0) -> Rule:  # noqa: N802
    """Make Adagrad with one sum for a row, of its gradients' mean squares.

    Args:
        lr: Learning rate.
        eps: Added to the root.
        initial: What the sums begin with.

    Returns:
        The rule.

    Raises:
        InvalidArgumentError: A number is out of range.

    Example:
        >>> RowAdagrad(0.1).kind
        'ROW_ADAGRAD'
    """
    return Rule("ROW_ADAGRAD", lr, eps=eps, initial=initial)


def Adam(  # noqa: N802
    lr: float = 0.001,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    lazy: bool = True,
) -> Rule:
    """Make the rule of torch.optim.SparseAdam (lazy) or torch.optim.Adam.

    Args:
        lr: Learning rate.
        betas: Of the means of gradients and of their squares.
        eps: Added to the root.
        weight_decay: Not with lazy.
        lazy: Only pushed rows change. The bias corrections count the steps in which the table was
            pushed, not those of a row. False: eps is added as in torch.optim.Adam.

    Returns:
        The rule.

    Raises:
        InvalidArgumentError: A number is out of range.

    Example:
        >>> Adam(0.01, lazy=False).kind
        'ADAM'
    """
    kind = "LAZY_ADAM" if lazy else "ADAM"
    return Rule(kind, lr, eps=eps, weight_decay=weight_decay, beta1=betas[0], beta2=betas[1])


def AdamW(  # noqa: N802
    lr: float = 0.001,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> Rule:
    """Make the rule of torch.optim.AdamW; on a table it decays the pushed rows.

    Args:
        lr: Learning rate.
        betas: Of the means of gradients and of their squares.
        eps: Added to the root.
        weight_decay: Times lr, the part of a value that a step takes away.

    Returns:
        The rule.

    Raises:
        InvalidArgumentError: A number is out of range.

    Example:
        >>> AdamW(0.01).weight_decay
        0.01
    """
    return Rule("ADAMW", lr, eps=eps, weight_decay=weight_decay, beta1=betas[0], beta2=betas[1])


@dataclass(frozen=True)
class Init:
    """First values of a table's rows; they depend on the seed, the id and the column alone."""

    kind: str
    first: float = 0.0
    second: float = 0.0


def zeros() -> Init:
    """Make the description of rows that begin with zeros.

    Returns:
        The description.

    Example:
        >>> zeros().kind
        'ZERO'
    """
    return Init("ZERO")


def constant(value: float) -> Init:
    """Make the description of rows that begin with one value.

    Args:
        value: Of each element.

    Returns:
        The description.

    Example:
        >>> constant(0.5).first
        0.5
    """
    return Init("CONSTANT", value)


def uniform(low: float, high: float) -> Init:
    """Make the description of rows that begin with values from low to below high.

    Args:
        low: The least value.
        high: The bound.

    Returns:
        The description.

    Raises:
        InvalidArgumentError: low exceeds high.

    Example:
        >>> uniform(-0.1, 0.1).second
        0.1
    """
    if not low <= high:
        raise invalid("uniform", f"low={low} exceeds high={high}")
    return Init("UNIFORM", low, high)


def normal(mean: float = 0.0, std: float = 1.0) -> Init:
    """Make the description of rows that begin with values of a normal distribution.

    Args:
        mean: Of the values.
        std: Their standard deviation.

    Returns:
        The description.

    Raises:
        InvalidArgumentError: std is negative.

    Example:
        >>> normal(0.0, 0.01).second
        0.01
    """
    if not std >= 0:
        raise invalid("normal", f"std={std} is negative")
    return Init("NORMAL", mean, std)
