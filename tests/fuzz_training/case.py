"""A case: which pieces a random model has, and what its training loop does, as a seed says.

All else that is random in a case comes from its seed and names, not from one stream of numbers, so
that a piece or a feature can be taken out and the rest stays as it was.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.fuzz_training.kinds import RARE, kinds
from tests.fuzz_training.pieces import LONGEST

MODES = ("ddp", "ddp-view", "plan")

# What a loop may do: by name how often, of 100 cases, and in which ways.
FEATURES: Mapping[str, tuple[int, tuple[Any, ...]]] = {
    "zero": (35, ("zeros", "none_by_hand", "zeros_by_hand", "new_zeros", "every_other", "late")),
    "optimizer": (50, ("momentum", "adamw", "lr0")),
    "micro": (25, (2, 3)),
    "passes": (
        30,
        ("retain", "two_losses", "two_forwards", "sum_of_two", "penalty", "input_penalty"),
    ),
    "create_graph": (2, (True,)),
    "checkpoint": (15, ("reentrant", "other", "whole")),
    "autocast": (6, (True,)),
    "clip": (20, ("norm", "value", "replaced")),
    "group_later": (8, (True,)),
    "ema": (8, (True,)),
    "held": (15, ("gradients", "views", "data")),
    "tensor_hook": (10, ("before", "after", "output")),
    "accumulated_hook": (14, ("before", "after", "replace", "keep")),
    "module_hook": (8, ("full", "pre", "forward")),
    "compiled": (2, (True,)),
    "raises": (4, (1, 2)),
    "shapes": (20, ("batch", "length", "both")),
    "second": (8, ("chained", "by_turns", "shared")),
    "wrap_again": (5, (1, 2)),
    "init_again": (3, (1, 2)),
    "evaluate": (12, ("first", "last", "all")),
    "unused": (14, ("by_rank", "by_step", "first_only")),  # by a piece that has branches
    "thread": (5, (True,)),
    "caps": (50, (0.0002, 0.01, 0.05)),
    "output": (20, ("dict", "tuple", "leaf")),
    "copied": (5, ("deepcopy", "save")),
    "reduced": (8, (True,)),
    "buffers_stay": (10, (True,)),
    "finds_unused": (8, (True,)),
    "data": (5, ("same", "moved")),
    "frozen_later": (2, (True,)),
    "unfrozen_later": (2, (True,)),
    "each_analyzes": (15, (True,)),
    "static_graph": (8, (True,)),
    "comm_hook": (8, ("allreduce", "fp16")),
    "usual_births": (25, (True,)),  # small gradients are not allocated in DDP's buckets
}
ONLY_DDP = frozenset({"static_graph", "comm_hook", "usual_births"})
ONLY_PLAN = frozenset({"each_analyzes"})


@dataclass(frozen=True)
class Case:
    """What one seed makes. pieces: "number.kind", so that one keeps its weights if others go."""

    seed: int
    mode: str
    world: int
    width: int
    batch: int
    length: int
    steps: int
    pieces: tuple[str, ...]
    features: Mapping[str, Any] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """Return how a feature is used; None: not."""
        assert name in FEATURES, name
        return self.features.get(name)

    def number(self, *of: object) -> int:
        """Return a random number that is this case's and belongs to a name."""
        return zlib.crc32(repr((self.seed, *of)).encode())

    def has(self, kind: str) -> bool:
        """Whether the model has a piece of this kind."""
        return any(piece.partition(".")[2] == kind for piece in self.pieces)

    def is_summed_by_rank(self) -> bool:
        """Whether the oracle adds gradients as rdmatensor does, whatever the number of ranks.

        With views of its buckets DistributedDataParallel divides what lies there already, and
        multiplies what it brings there, which is not the same for three ranks.
        """
        return not (self.mode == "ddp-view" or self.has("sparse") or self.get("comm_hook"))

    def is_short(self) -> bool:
        """Whether a part of the training has numbers of two bytes."""
        is_sent_short = self.get("comm_hook") == "fp16"
        return self.has("fp16") or self.has("bf16") or bool(self.get("autocast")) or is_sent_short

    def is_by_hand(self) -> bool:
        """Whether the oracle is sums by hand: where a plan does what DDP does not.

        DDP halves float16 before the sum, which costs small numbers bits.
        """
        more_than_ddp = (
            self.get("passes") in ("retain", "two_losses", "two_forwards"),
            self.get("raises") is not None,
            self.has("fp16"),
            # Made again, a plan sends buffers once, and DDP none.
            self.get("buffers_stay") and (self.get("wrap_again") or self.get("init_again")),
        )
        return self.mode == "plan" and any(more_than_ddp)

    def without(self, names: Collection[str]) -> Case:
        """Return the case without some kinds of pieces, and some features."""
        pieces = tuple(one for one in self.pieces if one.partition(".")[2] not in names)
        features = {name: how for name, how in self.features.items() if name not in names}
        return replace(self, pieces=pieces, features=features)

    def without_piece(self, piece: str) -> Case:
        return replace(self, pieces=tuple(one for one in self.pieces if one != piece))

    def without_feature(self, name: str) -> Case:
        return replace(self, features={k: v for k, v in self.features.items() if k != name})

    def to_json(self) -> str:
        return json.dumps({**self.__dict__, "features": dict(self.features)})

    @staticmethod
    def from_json(text: str) -> Case:
        values = json.loads(text)
        return Case(**{**values, "pieces": tuple(values["pieces"])})

    def __str__(self) -> str:
        shape = f"batch {self.batch} x {self.length} x {self.width}, {self.steps} steps"
        does = " ".join(f"{name}={how}" for name, how in self.features.items())
        return f"{shape}; {' '.join(self.pieces)}; {does or 'plain'}"


def make_case(seed: int, mode: str, world: int) -> Case:
    """Return the seed's case. Its model is the same in each mode."""
    chosen = random.Random(f"model {seed}")
    width = chosen.choice((2, 4, 8, 32, 32, 64, 96))
    names = sorted(kinds(width))
    common = [name for name in names if name not in RARE]
    count = chosen.randint(1, 6)
    parts = tuple(
        f"{number}.{chosen.choice(sorted(RARE) if chosen.random() < 0.1 else common)}"
        for number in range(count)
    )
    features = _features(seed, mode)
    if "unused" in features:
        parts = (*parts, f"{count}.branches")
        features.setdefault("finds_unused", True)
    return Case(
        seed=seed,
        mode=mode,
        world=world,
        width=width,
        batch=chosen.choice((1, 1, 1, 2, 3)),
        length=chosen.choice((1, 2, LONGEST, LONGEST)),
        steps=chosen.randint(4, 10),
        pieces=parts,
        features=features,
    )


def _features(seed: int, mode: str) -> dict[str, Any]:
    chosen = random.Random(f"loop {seed}")
    found: dict[str, Any] = {}
    is_plain = chosen.random() < 0.15
    for name, (of_hundred, ways) in FEATURES.items():
        is_on, way = chosen.randrange(100) < of_hundred, chosen.choice(ways)
        is_here = name not in (ONLY_DDP if mode == "plan" else ONLY_PLAN)
        if is_on and is_here and not is_plain:
            found[name] = way
    return found
