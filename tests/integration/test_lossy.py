"""Lossy wires: bit by bit as numpy has it, the same on all ranks; refusals, disagreement, death."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest


@pytest.mark.parametrize(("transport", "world"), [("shm", 3), ("tcp", 2), ("tcp", 4)])
def test_sums_are_those_of_numpy(tmp_path: Path, transport: str, world: int) -> None:
    found = jobs.results(
        jobs.run(
            "roles_lossy:sums",
            world,
            tmp_path,
            timeout_s=60,
            environment={"RDMATENSOR_TRANSPORT": transport},
        )
    )

    assert len(found[0]) == 48
    for digests in found:
        assert digests == found[0]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_exact_and_lossy_sums_go_together(tmp_path: Path, transport: str) -> None:
    found = jobs.results(
        jobs.run("roles_lossy:mixed", 3, tmp_path, environment={"RDMATENSOR_TRANSPORT": transport})
    )

    for wire in found:
        assert 0.25 < wire["sent_bytes"] / wire["exact_bytes"] < 0.27
        assert wire["not_finite_blocks"] == wire["saturated_blocks"] == 0
        assert wire["coding_s"] > 0


REFUSED = {
    "integers": "TypeError: all_reduce: the wire q8 is for torch.float32, not for torch.int64",
    "halves": "TypeError: all_reduce: the wire bf16 is for torch.float32, not for torch.float16",
    "max": "TypeError: all_reduce: the wire q8 is for SUM and AVG, not for MAX",
    "wire": "ValueError: all_reduce: wire='q4' is not one of exact, bf16, q8",
    "block": "ValueError: all_reduce: block=100 is not one of 32, 64, 128, 256, 512, 1024",
    "residual": "ValueError: all_reduce: residual has 7 elements, expected 8",
    "own residual": "ValueError: rdmatensor:all_reduce: the residual overlaps the tensor",
    "exact residual": "ValueError: all_reduce: a residual needs a lossy wire",
    "strides": "ValueError: rdmatensor:all_reduce: the tensor of shape [2, 4]",
    "parts": "ValueError: rdmatensor:reduce_scatter:",
    "list": "TypeError: all_reduce: expected a torch tensor, got list",
}


def test_what_has_no_lossy_wire_is_refused(tmp_path: Path) -> None:
    seen, _ = jobs.results(jobs.run("roles_lossy:refusals", 2, tmp_path))

    assert set(seen) == set(REFUSED)
    for name, text in seen.items():
        assert text.startswith(REFUSED[name]), (name, text)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"wire": "q8", "block": 64}, "q8 in blocks of 64"),
        ({"wire": "exact"}, "all_reduce (sum) of 100000 float32"),
    ],
    ids=["block", "exact"],
)
def test_ranks_that_disagree_learn_of_both(
    tmp_path: Path, transport: str, options: dict[str, Any], words: str
) -> None:
    ranks = jobs.run(
        "roles_lossy:disagreement",
        2,
        tmp_path,
        environment={"RDMATENSOR_TRANSPORT": transport},
        options=options,
    )

    texts = [rank.result for rank in ranks]
    assert all(text.startswith("DistBackendError") for text in texts), texts
    lossy = sum("q8" in str(value) for value in ("q8", *options.values()))
    assert any(
        "q8 in blocks of 128" in text and words in text and text.count("as q8") == lossy
        for text in texts
    ), texts


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_call_waits_for_a_rank_that_is_late(tmp_path: Path, transport: str) -> None:
    found = jobs.results(
        jobs.run("roles_lossy:late", 2, tmp_path, environment={"RDMATENSOR_TRANSPORT": transport})
    )

    assert found == [pytest.approx(3.0, rel=0.01)] * 2


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_death_is_an_error_of_the_others(tmp_path: Path, transport: str) -> None:
    ranks = jobs.run(
        "roles_lossy:death", 3, tmp_path, environment={"RDMATENSOR_TRANSPORT": transport}
    )

    assert ranks[1].exit == -9
    for rank in (ranks[0], ranks[2]):
        assert "rank 1" in rank.result["text"], rank.log
        assert rank.result["took_s"] < 20


def test_bytes_are_those_of_the_wire(tmp_path: Path) -> None:
    found = jobs.results(
        jobs.run("roles_lossy:traffic", 2, tmp_path, environment={"RDMATENSOR_TRANSPORT": "tcp"})
    )

    for sent in found:
        assert sent["q8"] / sent["exact"] == pytest.approx(0.254, rel=0.01)
        assert sent["bf16"] / sent["exact"] == pytest.approx(0.5, rel=0.01)


def test_residuals_carry_what_was_lost(tmp_path: Path) -> None:
    for off in jobs.results(jobs.run("roles_lossy:repeated", 3, tmp_path)):
        assert off < 1.5  # half a unit at each of the two encodings, and what sums round
