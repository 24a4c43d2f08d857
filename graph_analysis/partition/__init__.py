"""How a step is split over ranks: what can be split, what each way costs, and the best choice."""

from graph_analysis.partition.choice import (
    Other,
    Partition,
    Prediction,
    UnitChoice,
    Way,
    partition_from_json,
    partition_to_json,
)
from graph_analysis.partition.pairs import Pair, find_pairs
from graph_analysis.partition.pipeline import chain_parts, pipelines
from graph_analysis.partition.solve import (
    BatchTimes,
    partitions,
    scales_permille,
    unequal_shares,
)
from graph_analysis.partition.stages import Part, cut_chain, pipeline_ns
from graph_analysis.partition.step import Step, Unit, predict_step, read_step
from graph_analysis.partition.units import held_outside, make_units

__all__ = [
    "BatchTimes",
    "Other",
    "Pair",
    "Part",
    "Partition",
    "Prediction",
    "Step",
    "Unit",
    "UnitChoice",
    "Way",
    "chain_parts",
    "cut_chain",
    "find_pairs",
    "held_outside",
    "make_units",
    "partition_from_json",
    "partition_to_json",
    "partitions",
    "pipeline_ns",
    "pipelines",
    "predict_step",
    "read_step",
    "scales_permille",
    "unequal_shares",
]
