"""Tests of the documentation reach its helpers, and the modules that make the site."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parents[1] / "docs/_ext")]
