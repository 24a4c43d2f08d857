"""What the plan of a graph says crosses is what the backend records, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest
from roles_zoo import NAMES, OPEN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Every model, small, one after the other in one job."""
    out: Path = tmp_path_factory.mktemp("zoo")
    return jobs.results(
        jobs.run("roles_zoo:compare", 2, out, timeout_s=200.0, names=NAMES, is_small=True)
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_is_what_is_recorded(name: str, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        found = rank[name]
        assert found["described"] == "locked"
        assert found["recorded"] == found["planned"]
        assert len(found["planned"]) > 4
        assert found["recorded_setup"] == found["planned_setup"]


@pytest.mark.parametrize("name", OPEN)
def test_batch_and_length_were_others_in_each_step(name: str, ranks: list[dict[str, Any]]) -> None:
    """And the plan had them open: with a most, or without one."""
    for rank in ranks:
        found = rank[name]
        batches, lengths = zip(*found["sizes"], strict=True)
        assert len(set(batches)) == len(set(lengths)) == 3
        assert found["symbols"] == ["batch", "length"]
        assert ("dynamic" if name == "gpt, unbounded" else "bounded") in found["kinds"]
