"""What may happen to the tensors that each unit of a step saves for the backward pass.

A chain is a step as seen from its memory: units in the order of the forward pass, each with one or
several ways. All numbers are whole, so that every process that solves a chain finds the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from graph_analysis.errors import ArgumentError

WayName = Literal["keep", "recompute", "peer"]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to treat what a unit saves.

    Bytes are counted from what lies in memory when the unit's forward pass begins.

    Attributes:
        name: keep: in memory; recompute: made again in the backward pass; peer: in the memory of
            another process meanwhile.
        held_bytes: What remains until the unit's backward pass; negative if the unit frees more.
        forward_bytes: The most at one moment of the forward pass.
        backward_bytes: The most at one moment of the backward pass, with the gradients until then.
        added_ns: Time added to the step by computing.
        write_ns: Time that the link takes to move the tensors out.
        read_ns: Time that the link takes to move them back.
    """

    name: WayName
    held_bytes: int
    forward_bytes: int
    backward_bytes: int
    added_ns: int = 0
    write_ns: int = 0
    read_ns: int = 0


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of the model whose saved tensors are treated in one way.

    Attributes:
        name: Qualified name of the module.
        forward_ns: Time of its forward pass.
        backward_ns: Time of its backward pass, without recomputation.
        ways: What is possible; the first is the one without a budget.
    """

    name: str
    forward_ns: int
    backward_ns: int
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """A step: units in the order of the forward pass.

    Attributes:
        base_bytes: What lies in memory when the first unit begins.
        tail_bytes: The most between the last unit's forward and backward pass, counted from the
            end of the forward pass.
        end_bytes: The most after the backward pass of the first unit: the optimizer's step.
        units: The units.
    """

    base_bytes: int
    tail_bytes: int
    end_bytes: int
    units: tuple[Unit, ...]

    def __post_init__(self) -> None:
        for unit in self.units:
            if not unit.ways:
                raise ArgumentError(f"unit {unit.name!r} has no way")
            for way in unit.ways:
                if min(way.added_ns, way.write_ns, way.read_ns) < 0:
                    raise ArgumentError(f"unit {unit.name!r}: way {way.name!r} has a negative time")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a choice of ways comes to.

    Attributes:
        peak_bytes: The most bytes at one moment of the step.
        added_ns: Time added to the step by computing.
        exposed_ns: Time added because the link is slower than the computation that hides it.
    """

    peak_bytes: int
    added_ns: int
    exposed_ns: int
