"""Errors of graph_analysis. Every class is a ValueError: the caller passed something unusable."""


class GraphAnalysisError(ValueError):
    """Base of every error that this package raises on purpose."""


class ArgumentError(GraphAnalysisError):
    """An argument of analyze(), a strategy or a cost model is outside its domain."""


class PlanError(GraphAnalysisError):
    """A stored plan is newer than this reader, damaged, or contradicts itself."""


class CaptureError(GraphAnalysisError):
    """The model, its inputs or torch itself could not be loaded, so nothing can be planned."""
