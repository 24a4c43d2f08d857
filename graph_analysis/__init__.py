"""Plan the transfers of a training step from its graph, before it runs.

analyze() captures a PyTorch model and gives a TransferPlan: what crosses ranks, which sizes are
known, when gradients become ready, how they are bucketed and where they stand in one arena.
Importing this package does not import torch; only analyze() does.
"""

from graph_analysis.build import analyze, build_plan
from graph_analysis.crossing import DataParallel, Strategy
from graph_analysis.errors import CaptureError, GraphAnalysisError, InvalidArgument, PlanError
from graph_analysis.ir import CostModel
from graph_analysis.plan import TransferPlan, first_difference
from graph_analysis.plan_json import plan_from_json, plan_to_json
from graph_analysis.report import render_text

__all__ = [
    "CaptureError",
    "CostModel",
    "DataParallel",
    "GraphAnalysisError",
    "InvalidArgument",
    "PlanError",
    "Strategy",
    "TransferPlan",
    "analyze",
    "build_plan",
    "first_difference",
    "plan_from_json",
    "plan_to_json",
    "render_text",
]
