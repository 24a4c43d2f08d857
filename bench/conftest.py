"""`pytest bench`: costs of bench/suite/costs.py against their targets, and paths with Gloo."""

from __future__ import annotations

import sys
from pathlib import Path

# At the end: `bench` is found here, and rdmatensor where it is installed, not in the sources.
sys.path.append(str(Path(__file__).resolve().parents[1]))
