"""Capture of a training step with torch: the only part of graph_analysis that imports torch."""

from graph_analysis.capture.measure import measure_ops
from graph_analysis.capture.step import capture, check_factory, resize_batch

__all__ = ["capture", "check_factory", "measure_ops", "resize_batch"]
