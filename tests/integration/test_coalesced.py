"""Coalesced collectives: small tensors go together, and no bit changes by that."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest
from roles_coalesced import ALGORITHMS, DTYPES, SIZES

TENSORS = len(SIZES) * len(DTYPES)


@pytest.mark.parametrize(("world", "path"), [(2, "tcp"), (3, "shm"), (5, "shm")])
def test_small_tensors_go_together_and_keep_their_bits(
    world: int, path: str, tmp_path: Path
) -> None:
    forced = {"RDMATENSOR_TRANSPORT": path}
    ranks = jobs.run("roles_coalesced:coalesced", world, tmp_path, environment=forced)

    for rank in jobs.results(ranks):
        for algorithm in ALGORITHMS:
            ways = dict(rank[algorithm])
            many = ways.pop("many small")
            assert many["right"]
            assert many["writes"] <= 2 * world, algorithm
            assert sorted(ways) == [
                "all_gather",
                "all_reduce",
                "all_reduce_managed",
                "reduce_scatter",
            ]
            for way, seen in ways.items():
                assert seen["different"] == [], (algorithm, way)
                # What is larger than a part goes alone: of 4097 and 50,000 elements, all but the
                # bfloat16 of the first; of int64 those of 4096 too.
                assert seen["packed"] == TENSORS - 5 - 4, (algorithm, way)
                assert 3 <= seen["packs"] <= 6
                assert seen["calls"] == seen["packs"] + 9
                assert seen["calls alone"] == TENSORS
                # Alone each takes a write at least; a pack takes four ticks at most here.
                saved = seen["writes alone"] - seen["writes"]
                assert saved >= seen["packed"] - 4 * seen["packs"], (algorithm, way)
        assert "in parts (digest 0x" in rank["mismatch"]
