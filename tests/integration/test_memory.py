"""Requests for memory that are refused while operations end: each ends as it should anyway."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jobs
import pytest


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a rank can have requests of the backend refused."""
    library = tmp_path_factory.mktemp("refusing") / "librefused.so"
    source = Path(__file__).with_name("refused_new.cpp")
    flags = ["-std=c++20", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["g++", *flags, str(source), "-o", str(library), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


def test_a_completion_hook_keeps_in_step(refusing: dict[str, str], tmp_path: Path) -> None:
    """A call that fails takes its own record with it, not the one of the next."""
    ranks = jobs.run("roles_memory:hooked", 1, tmp_path, environment=refusing)

    lags = jobs.results(ranks)[0]
    assert len(lags) > 1, "nothing was refused"
    assert set(lags) == {0}
    assert "a completion hook does not hear of an operation" in ranks[0].log
