"""Linear layers whose weights lie in a peer's memory, compared with resident ones."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest


def test_a_weight_at_a_peer_gives_the_product_of_a_resident_one(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    options = {"environment": path_forced, "timeout_s": 60}
    found, _ = jobs.results(jobs.run("roles_stream:streamed", 2, tmp_path, **options))
    assert found["worst"] < 1e-10
    assert found["equal"]
    assert found["mapped"] == (path_forced["RDMATENSOR_TRANSPORT"] == "shm")
    same, named, misshapen, missing = found["saved"]
    assert same
    assert named
    assert "a matrix (1, 2) of torch.float32 for one (3, 2)" in misshapen
    assert 'Missing key(s) in state_dict: "1.weight"' in missing
    words = [
        "x (2, 3) of torch.float32 does not match",
        "x (2, 4) of torch.float64 does not match",
        "bias (3,) of torch.float32 for 2 rows",
        "epilogue 'sin' is unknown",
        "weight (4,) of torch.float32 is not a matrix",
        "rank 1 lends this rank 32.0 MiB",
        "a matrix (4, 2) of torch.float32 for one (2, 4)",
        "a.weight is b.weight too: a tied weight stays",
        "'c' is not a torch.nn.Linear of the model",
        "layer is a GELU",
        "the weight has no gradient",
        "the lent memory was closed",
        "the lent memory was closed",
    ]
    assert len(found["refused"]) == len(words)
    for expected, said in zip(words, found["refused"], strict=True):
        assert expected in said


def test_a_weight_that_several_ranks_would_train_is_refused(tmp_path: Path) -> None:
    for said in jobs.results(jobs.run("roles_stream:two_borrowers", 2, tmp_path)):
        for refused in said[:2]:
            assert "2 ranks borrow, and each would train a weight of its own" in refused
        assert "<Remote (4, 4) of torch.float32" in said[2]


@pytest.mark.parametrize("call", ["product", "update"])
def test_the_death_of_a_lender_names_it(
    call: str, path_forced: dict[str, str], tmp_path: Path
) -> None:
    options = {"environment": path_forced, "timeout_s": 60, "call": call}
    ranks = jobs.run("roles_stream:lender_dies", 2, tmp_path, **options)
    assert ranks[0].result is not None, ranks[0].log
    assert "rank 1 lends memory for a matrix (256, 64) and cannot be reached" in ranks[0].result
