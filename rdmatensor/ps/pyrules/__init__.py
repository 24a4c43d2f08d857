"""Rules that a program writes in Python, which servers apply to rows as torch tensors."""

from rdmatensor.ps.pyrules.applier import Appliers
from rdmatensor.ps.pyrules.rule import PythonRule, described

__all__ = ["Appliers", "PythonRule", "described"]
