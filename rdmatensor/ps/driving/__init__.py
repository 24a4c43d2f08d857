"""In-graph training: one process has the data, and workers run its functions."""

from rdmatensor.ps.driving.driver import Driver
from rdmatensor.ps.driving.functions import FunctionError, register
from rdmatensor.ps.driving.part import take_part

__all__ = ["Driver", "FunctionError", "register", "take_part"]
