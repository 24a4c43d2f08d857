"""Works, Futures, the profiler: this backend's answers next to Gloo's."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.turns("transport", first=1)


@pytest.mark.parametrize("world", [2, 3])
def test_works_tell_what_those_of_gloo_tell(
    world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    role = "roles_works:compare_with_gloo"
    ranks = jobs.run(role, world, tmp_path, environment=path_forced)

    for rank in jobs.results(ranks):
        ours, theirs = rank["rdmatensor"], rank["gloo"]
        assert ours == theirs
        assert ours["kept"]
        assert ours["profile of all_reduce"]["titles"] == ["all_reduce"]
        for name, seen in ours["profile besides"].items():
            assert seen["titles"] == [name.split(",")[0]]
    receiver = jobs.results(ranks)[1]["rdmatensor"]
    assert set(receiver["profile besides"]) == {"reduce", "recv", "recvAnySource"}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("world", [2, 3])
def test_who_waits_for_a_late_rank_takes_no_core(
    world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    """After a spin of some milliseconds a wait is a sleep, cut at 100 ms for signals."""
    role = "roles_works:waits_of_a_rank"
    ranks = jobs.run(role, world, tmp_path, timeout_s=60.0, environment=path_forced)

    waits = jobs.results(ranks)[0]
    assert len(waits) == 7
    for name, (wall_s, cpu_s) in waits.items():
        assert wall_s > 1.2, f"{name} did not wait"
        assert cpu_s / wall_s < 0.1, f"{name}: {cpu_s:.3f} CPU s in {wall_s:.2f} s"


def test_a_wait_ends_in_time_while_a_callback_of_the_future_runs(tmp_path: Path) -> None:
    seen = jobs.results(jobs.run("roles_works:a_callback_takes_long", 2, tmp_path))[0]

    assert "done, but a callback of its Future still ran after 0.3 s" in seen["text"]
    assert 0.3 <= seen["took"] < 10
    assert seen["ran on"]
    assert seen["then"] is True
