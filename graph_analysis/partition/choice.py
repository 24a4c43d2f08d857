"""The choice of how a step is split over ranks, as plain values, and as JSON."""

from dataclasses import dataclass
from typing import Literal

from graph_analysis.document import fingerprint, read_document, write_document
from graph_analysis.errors import PlanError

FORMAT = "partition"
VERSION = 1
Way = Literal[
    "replicate",  # every rank has all of it, gradients are averaged
    "fsdp",  # every rank keeps a part, and gathers the whole to compute
    "stage",  # one rank has it alone, in a pipeline
    "column_row",  # a pair of linear layers: every rank computes a part of the features of all rows
]


@dataclass(frozen=True, slots=True)
class UnitChoice:
    """What is done with one part of the model.

    modules: of a pair its layers, the last one last; otherwise the module that has the parameters.
    excluded: modules inside that are units of their own. around: of a pair the module at which
    rows are gathered, None if that is at each layer.
    """

    unit: str
    way: Way
    modules: tuple[str, ...]
    excluded: tuple[str, ...]
    around: str | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """An estimated step. low_ns: all transfers hidden behind computation, high_ns: none.

    compute_ns and peak_bytes are by rank; sent_ns is the time of all transfers, exposed_ns what of
    it is expected to prolong the step.
    """

    step_ns: int
    low_ns: int
    high_ns: int
    sent_ns: int
    exposed_ns: int
    compute_ns: tuple[int, ...]
    peak_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Other:
    """A partition that was not chosen: what it is, and its prediction."""

    name: str
    predicted: Prediction


@dataclass(frozen=True, slots=True)
class Partition:
    """How a step is split over ranks.

    shares are the rows of each rank in a global batch. micro_batches: of a pipeline. is_planned:
    a plan sends the gradients of a model that is replicated whole, DistributedDataParallel does
    not. reasons say why, and what was not considered. others are runners-up, the best first.
    """

    name: str
    world_size: int
    units: tuple[UnitChoice, ...]
    shares: tuple[int, ...]
    predicted: Prediction
    micro_batches: int = 1
    is_planned: bool = True
    reasons: tuple[str, ...] = ()
    others: tuple[Other, ...] = ()

    @property
    def batch(self) -> int:
        """Return the rows of all ranks together."""
        return sum(self.shares)

    def of_way(self, way: Way) -> tuple[UnitChoice, ...]:
        """Return the units that are split so."""
        return tuple(one for one in self.units if one.way == way)

    def fingerprint(self) -> str:
        """Equal for equal partitions only."""
        return fingerprint(self)

    def text(self) -> str:
        """Return what is chosen, why, and what else was priced, ending in a newline."""
        lines = [f"Partition for {self.world_size} ranks: {self.name}", _priced("step", self)]
        lines += [f"  {stage.unit}: {', '.join(stage.modules)}" for stage in self.of_way("stage")]
        for way in ("column_row", "fsdp", "replicate"):
            units = self.of_way(way)
            if units:
                lines.append(f"  {way}: {', '.join(one.unit for one in units)}")
        lines.append(f"  rows of each rank: {', '.join(map(str, self.shares))}")
        peaks = ", ".join(f"{peak / 2**20:.1f}" for peak in self.predicted.peak_bytes)
        lines.append(f"  memory of each rank: {peaks} MiB")
        lines += [f"  {reason}" for reason in self.reasons]
        if self.others:
            lines.append("Others:")
            lines += [_priced(other.name, other) for other in self.others]
        return "\n".join(lines) + "\n"


def _priced(name: str, one: Partition | Other) -> str:
    predicted = one.predicted
    return (
        f"  {name:<44} {predicted.step_ns / 1e6:9.2f} ms  ({predicted.low_ns / 1e6:.2f} to"
        f" {predicted.high_ns / 1e6:.2f}; {predicted.exposed_ns / 1e6:.2f} of"
        f" {predicted.sent_ns / 1e6:.2f} ms of transfers not hidden)"
    )


def partition_to_json(partition: Partition) -> str:
    """The partition as text, ending in a newline; the same one gives the same bytes."""
    return write_document(FORMAT, VERSION, partition)


def partition_from_json(text: str | bytes) -> Partition:
    """The inverse of partition_to_json(). PlanError if damaged or contradictory."""
    found = read_document(FORMAT, VERSION, text, Partition)
    names = [one.unit for one in found.units]
    if len(set(names)) != len(names):
        raise PlanError("partition: a unit is in it twice")
    if found.world_size < 1 or len(found.shares) != found.world_size or min(found.shares) < 1:
        raise PlanError(f"partition: rows {found.shares} of {found.world_size} ranks")
    if found.micro_batches < 1:
        raise PlanError(f"partition: {found.micro_batches} micro-batches")
    for one in found.units:
        if not one.modules or (one.way == "column_row" and len(one.modules) < 2):
            raise PlanError(f"partition: unit {one.unit} has the modules {one.modules}")
    return found
