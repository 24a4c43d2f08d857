"""Which saved tensors of a step to keep, to make again or to move away, under a budget of bytes."""

from graph_analysis.keep.choices import Chain, Outcome, Unit, Way, WayName
from graph_analysis.keep.simulate import simulate
from graph_analysis.keep.solve import least_peak, solve

__all__ = ["Chain", "Outcome", "Unit", "Way", "WayName", "least_peak", "simulate", "solve"]
