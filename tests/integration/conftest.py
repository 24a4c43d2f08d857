"""Fixtures of the tests that run jobs of several ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Helpers of this folder are imported by their plain names, as tests/graph does.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library that sees every memcpy()."""
    library = tmp_path_factory.mktemp("witness") / "libcopies.so"
    source = Path(__file__).with_name("copies_witness.c")
    flags = ["-std=c17", "-O2", "-fno-builtin", "-shared", "-fPIC", "-Wall", "-Werror"]
    subprocess.run(["gcc", *flags, str(source), "-o", str(library), "-ldl"], check=True)
    return str(library)


@pytest.fixture(params=["shm", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path_forced(transport: str) -> dict[str, str]:
    """The environment that forces the path."""
    return {"RDMATENSOR_TRANSPORT": transport}
