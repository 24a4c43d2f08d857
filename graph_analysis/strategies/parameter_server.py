"""Strategy: workers compute on parts of the batch, servers hold and update the parameters."""

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from graph_analysis.ir import Crossing, Group, Home, Lifetime, Stay, Value
from graph_analysis.strategies.base import Spread, StepFacts, require_count

_WORKER = "worker"


@dataclass(frozen=True, slots=True)
class ParameterServer:
    """Workers are ranks 0 to workers-1, and the shards of the parameters follow them.

    A shard holds whole parameters, the largest first each to the shard with the fewest bytes.
    In every step each worker pulls every parameter from its shard, and pushes its gradient
    there, into a place of its own: workers need not arrive together. Frozen parameters are
    pulled once, at set-up. Buffers stay with the workers, which start from worker 0's.
    """

    shards: int
    workers: int
    kind: ClassVar[str] = "parameter_server"

    def __post_init__(self) -> None:
        require_count("ParameterServer", "shards", self.shards)
        require_count("ParameterServer", "workers", self.workers)

    def spread(self, facts: StepFacts) -> Spread:
        """A group for each shard with all workers, whose root the shard is."""
        workers = tuple(range(self.workers))
        values = [v for v in facts.graph.values if v.alias_of is None]
        shard_of = _assign([v for v in values if v.role == "parameter"], self.shards)
        trained = {v.of for v in values if v.role == "gradient"}
        crossings: list[Crossing] = []
        stays: list[Stay] = []
        holders: dict[str, tuple[str, ...]] = {}
        for value in values:
            if value.role == "buffer" and self.workers > 1:
                crossings.append(Crossing(value.name, "broadcast", "setup", "workers", 0))
            owner = value.name if value.role == "parameter" else value.of
            if owner is None:
                holders[value.name] = (_WORKER,)
                continue
            shard = shard_of[owner]
            holders[value.name] = (_WORKER, f"shard{shard}")
            root = self.workers + shard
            if owner not in trained:
                crossings.append(Crossing(value.name, "pull", "setup", f"shard{shard}", root))
                continue
            origins: tuple[int | None, ...] = (None,)
            crossing = Crossing(value.name, "pull", "forward", f"shard{shard}", root)
            if value.role == "gradient":
                crossing = replace(crossing, operation="push", phase="backward")
                origins = workers
            crossings.append(crossing)
            stays += self._stays(value.name, shard, origins, facts.lives[value.name])
        return Spread(
            world_size=self.workers + self.shards,
            options=(("shards", self.shards), ("workers", self.workers)),
            groups=(
                *(Group(f"shard{s}", (*workers, self.workers + s)) for s in range(self.shards)),
                Group("workers", workers),
            ),
            homes=(
                Home(_WORKER, workers),
                *(Home(f"shard{s}", (self.workers + s,)) for s in range(self.shards)),
            ),
            crossings=tuple(crossings),
            stays=tuple(stays),
            holders=holders,
        )

    @staticmethod
    def _stays(
        tensor: str, shard: int, origins: tuple[int | None, ...], life: Lifetime
    ) -> list[Stay]:
        at_shard = [Stay(f"shard{shard}", tensor, origin, life) for origin in origins]
        return [Stay(_WORKER, tensor, None, life), *at_shard]


def _assign(parameters: list[Value], shards: int) -> dict[str, int]:
    """Shard of each parameter: the largest first, to the shard with the fewest bytes so far."""
    load = [0] * shards
    found = {}
    sizes = {
        v.name: v.item_bytes * prod(d for d in v.shape if isinstance(d, int)) for v in parameters
    }
    for value in sorted(parameters, key=lambda v: -sizes[v.name]):
        shard = min(range(shards), key=lambda index: load[index])
        load[shard] += sizes[value.name]
        found[value.name] = shard
    return found
