"""Fixtures of the tests that run jobs of several ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Helpers of this folder are imported by their plain names, as tests/graph does.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["shm", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path_forced(transport: str) -> dict[str, str]:
    """The environment that forces the path."""
    return {"RDMATENSOR_TRANSPORT": transport}
