"""Strategies: how a step is spread over ranks, and which tensors therefore cross between them."""

from graph_analysis.strategies.base import Spread, StepFacts, Strategy
from graph_analysis.strategies.data_parallel import DataParallel
from graph_analysis.strategies.graph_collectives import GraphCollectives
from graph_analysis.strategies.parameter_server import ParameterServer
from graph_analysis.strategies.pipeline import Pipeline

__all__ = [
    "DataParallel",
    "GraphCollectives",
    "ParameterServer",
    "Pipeline",
    "Spread",
    "StepFacts",
    "Strategy",
]
