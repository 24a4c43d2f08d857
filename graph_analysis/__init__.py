"""Plan the transfers of a training step from its graph, before it runs.

analyze() captures a PyTorch model and returns a TransferPlan: which tensors cross ranks, which
sizes are known, when gradients become ready, how they are bucketed and where they are in an arena.
Importing this package does not import torch; only analyze() does.
"""

from graph_analysis.advice import Advice, Choice, Exchange, advise
from graph_analysis.build import analyze, build_plan
from graph_analysis.errors import ArgumentError, CaptureError, GraphAnalysisError, PlanError
from graph_analysis.ir import CostModel, SlotPolicy
from graph_analysis.machine import (
    Cost,
    Device,
    Link,
    Machine,
    fit_line,
    machine_from_json,
    machine_to_json,
    with_memory,
)
from graph_analysis.picture import render_html
from graph_analysis.plan import TransferPlan, first_difference
from graph_analysis.plan_json import plan_from_json, plan_to_json
from graph_analysis.recording import (
    RecordedOp,
    RecordedTensor,
    missing_from,
    record_plan,
    recorded_difference,
)
from graph_analysis.report import render_text
from graph_analysis.strategies import (
    DataParallel,
    GraphCollectives,
    ParameterServer,
    Pipeline,
    Strategy,
)
from graph_analysis.thin import Mask, thin
from graph_analysis.times import (
    OpTime,
    OpTimes,
    StepTimes,
    merge,
    predict,
    times_from_json,
    times_to_json,
)

__all__ = [
    "Advice",
    "ArgumentError",
    "CaptureError",
    "Choice",
    "Cost",
    "CostModel",
    "DataParallel",
    "Device",
    "Exchange",
    "GraphAnalysisError",
    "GraphCollectives",
    "Link",
    "Machine",
    "Mask",
    "OpTime",
    "OpTimes",
    "ParameterServer",
    "Pipeline",
    "PlanError",
    "RecordedOp",
    "RecordedTensor",
    "SlotPolicy",
    "StepTimes",
    "Strategy",
    "TransferPlan",
    "advise",
    "analyze",
    "build_plan",
    "first_difference",
    "fit_line",
    "machine_from_json",
    "machine_to_json",
    "merge",
    "missing_from",
    "plan_from_json",
    "plan_to_json",
    "predict",
    "record_plan",
    "recorded_difference",
    "render_html",
    "render_text",
    "thin",
    "times_from_json",
    "times_to_json",
    "with_memory",
]
