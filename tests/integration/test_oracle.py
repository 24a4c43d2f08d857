"""Training of all kinds gives on this backend what it gives on Gloo; the same script on both.

All cases of one number of ranks run in one job: starting one costs more than most cases do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import jobs
import pytest
from oracle_cases import FOUR_RANKS, TWO_RANKS, Case

# The first test of each fixture waits for its whole job.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.turns("two_ranks", "four_ranks", first=1),
]
LOG_CHARACTERS = 6000


@dataclass(frozen=True)
class Played:
    """A job of many cases that has ended, somehow."""

    ranks: list[jobs.Rank]
    out: Path

    def check(self, case: Case) -> None:
        for rank in self.ranks:
            path = self.out / f"{case.name}.{rank.number}.json"
            if not path.exists():
                pytest.fail(self.why_not(case, rank), pytrace=False)
            report = json.loads(path.read_text(encoding="utf-8"))
            errors = [f"on {name}:\n{text}" for name, text in report["errors"].items()]
            assert not errors, "\n".join(errors)
            assert report["different"] == []
            assert report["compared"] > 0, "the case returned nothing"

    def why_not(self, case: Case, rank: jobs.Rank) -> str:
        current = self.out / f"current.{rank.number}"
        where = current.read_text(encoding="utf-8") if current.exists() else "no case"
        words = f"rank {rank.number} ended with {rank.exit} in {where}"
        return f"{words}\n{rank.log[-LOG_CHARACTERS:]}" if where == case.name else words


def played(cases: Sequence[Case], world: int, out: Path, **environment: str) -> Played:
    arguments = [{**asdict(case), "name": case.name} for case in cases]
    ranks = jobs.run(
        "oracle_job:run",
        world,
        out,
        timeout_s=180.0,
        is_imported_first=True,
        environment=environment,
        cases=arguments,
        folder=str(out),
    )
    return Played(ranks, out)


@pytest.fixture(scope="module", params=["shm", "tcp"])
def two_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    out = tmp_path_factory.mktemp("two_ranks")
    return played(TWO_RANKS, 2, out, RDMATENSOR_TRANSPORT=request.param)


@pytest.fixture(scope="module", params=["shm", "tcp"])
def four_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    out = tmp_path_factory.mktemp("four_ranks")
    return played(FOUR_RANKS, 4, out, RDMATENSOR_TRANSPORT=request.param)


@pytest.mark.parametrize("case", TWO_RANKS, ids=lambda case: case.name)
def test_two_ranks_agree_with_gloo(case: Case, two_ranks: Played) -> None:
    two_ranks.check(case)


@pytest.mark.parametrize("case", FOUR_RANKS, ids=lambda case: case.name)
def test_four_ranks_agree_with_gloo(case: Case, four_ranks: Played) -> None:
    four_ranks.check(case)


def test_two_ranks_end_well(two_ranks: Played) -> None:
    jobs.results(two_ranks.ranks)


def test_four_ranks_end_well(four_ranks: Played) -> None:
    jobs.results(four_ranks.ranks)
