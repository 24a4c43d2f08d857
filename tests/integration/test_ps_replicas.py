"""With replicas, training goes on with the same numbers when a server dies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jobs
import ps_clusters
import pytest
import torch
from roles_ps_replicas import FATAL, STEPS, train

from rdmatensor import cli, errors, metrics, ps
from rdmatensor._observe.ps_text import text_of_servers
from rdmatensor._observe.reports import ask_all

PHASES = ["begins", "has pulled", "has pushed rows", "has pushed keys", "in clock", "has ended"]
QUICK = [("shm", 2, 0, "in clock"), ("tcp", 3, 1, "has pushed rows")]
SLOW = [
    ("shm", 2, 1, "begins"),
    ("shm", 3, 0, "has pushed keys"),
    ("shm", 3, 2, "has ended"),
    ("tcp", 2, 0, "in clock"),
    ("tcp", 2, 1, "has pulled"),
    ("tcp", 3, 0, "has pushed keys"),
]


def undisturbed(folder: Path, servers: int, replicas: int) -> dict[str, torch.Tensor]:
    """Return what training in threads gives."""
    found, _ = ps_clusters.run(folder, train, workers=2, servers=servers, replicas=replicas)
    return dict(found[0])


@pytest.mark.parametrize("servers", [2, 3])
def test_replicas_change_no_number(servers: int, tmp_path: Path) -> None:
    plain = undisturbed(tmp_path / "plain", servers, 0)
    found = undisturbed(tmp_path / "replicas", servers, 1)
    assert all(torch.equal(found[name], plain[name]) for name in plain)


@pytest.mark.parametrize(
    ("path", "servers", "server", "phase"),
    [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW)],
)
def test_training_goes_on_with_the_same_numbers(
    path: str, servers: int, server: int, phase: str, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    ranks = jobs.run(
        "roles_ps_replicas:primary_dies",
        2 + servers,
        tmp_path,
        environment={"RDMATENSOR_TRANSPORT": path},
        servers=servers,
        server=server,
        phase=phase,
        folder=str(saved),
    )
    exits = [rank.exit for rank in ranks]
    assert exits.pop(2 + server) == -9, [rank.log for rank in ranks]
    assert exits == [0] * len(exits), [rank.log for rank in ranks]
    expected = undisturbed(tmp_path / "store", servers, 0)
    lost = {f"server {server}", f"backup of server {(server - 1) % servers}"}
    for worker in ranks[:2]:
        for name, one in expected.items():
            assert worker.result[name] == one.tolist(), f"{name} differs"
        assert worker.result["count"] == [2 * STEPS] * 5
        assert worker.result["names"] == ["count"]
        assert set(worker.result["lost"]) == lost
    assert ranks[0].result["late_s"] < 1.5 * jobs.SCALE, "the recovery takes too long"
    kept = ps.Checkpoint(saved)
    assert torch.equal(torch.as_tensor(kept.table("rows")["values"]), expected["rows"])


def test_the_loss_of_both_replicas_is_an_error(tmp_path: Path) -> None:
    ranks = jobs.run("roles_ps_replicas:both_die", 4, tmp_path)
    assert [rank.exit for rank in ranks[:2]] == [0, 0], [rank.log for rank in ranks]
    assert {rank.exit for rank in ranks[2:]} == {-9}
    for worker in ranks[:2]:
        assert "and its backup are lost, with its rows of tables" in worker.result["error"]
        assert "dense, keys, rows; no checkpoint was saved" in worker.result["error"]
    assert ranks[0].result["late_s"] < 0.5 * jobs.SCALE


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async", "ssp"])
def test_each_sample_counts_once_if_a_worker_and_a_server_die(mode: str, tmp_path: Path) -> None:
    ranks = jobs.run("roles_ps_replicas:worker_and_server_die", 5, tmp_path, mode=mode)
    assert [rank.exit for rank in ranks] == [0, -9, 0, -9, 0], [rank.log for rank in ranks]
    for rank in (0, 2):
        assert ranks[rank].result["counts"] == [1.0] * 120


def test_the_state_has_both_replicas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = {}

    def main(w: ps.Worker) -> None:
        table = w.table("t", 2, rows=10, rule=ps.Add())
        table.push([1, 2], torch.ones(2, 2))
        w.clock()
        found["worker"] = w.describe()
        found["metrics"] = metrics.values(w._context)
        found["reports"] = [one for one in ask_all("ps") if one["pid"] == os.getpid()]
        found["status"] = cli.main(["ps", "status"])
        w._replicas.close()
        found["closed"] = (w._replicas._samples(), w._replicas.count())  # of a scrape that began

    ps_clusters.run(tmp_path, main, workers=1, servers=2, replicas=1)
    assert found["closed"] == ([], 0)
    assert found["status"] == 0
    assert found["worker"]["lost"] == []
    assert found["worker"]["backup_wait_s"] >= 0
    assert found["metrics"]["rdmatensor_ps_replicas_lost_total"] == 0
    kinds = sorted((one["server"], one["replica"], one["ticks"]) for one in found["reports"])
    assert kinds == [(0, "backup", 1), (0, "primary", 1), (1, "backup", 1), (1, "primary", 1)]
    text = "\n".join(text_of_servers(found["reports"]))
    assert "backup of server 0, process" in text
    assert "  0 ends of steps behind its server" in text
    assert "backup of server 1, process" in capsys.readouterr().out


@pytest.mark.parametrize("servers", [2, 3])
def test_named_tensors_are_on_both_replicas(servers: int, tmp_path: Path) -> None:
    """What the backup has is what the primary has, whatever was changed and removed."""

    def main(w: ps.Worker) -> dict[str, Any]:
        for name in "abcdef":
            w.kv.put(name, torch.full((3, 5), float(ord(name))))
        w.kv.add("a", torch.ones(3, 5))
        assert w.kv.delete("b")
        assert not w.kv.delete("nothing")
        assert w.kv.cas("c", torch.zeros(3, 5), 99) is None
        w.kv.put("long", torch.arange(5000))
        w.kv.put("gone", torch.ones(1))
        w.kv.delete("gone")
        w.kv.put("gone", torch.zeros(2))
        both = []
        for first in (0, servers):
            seen = {}
            for name in [*"abcdef", "long", "gone"]:
                request = {"op": "get", "name": name}
                at = w.kv._replicas_of(name)[first > 0]
                found = w.kv._whole(at, request)
                assert found is not None
                seen[name] = (
                    found["version"],
                    found["dtype"],
                    found["shape"],
                    bytes(found["data"]),
                )
            both.append(seen)
        assert both[0] == both[1]
        assert both[0]["b"][0] is None
        return both[0]

    (found,), _ = ps_clusters.run(
        tmp_path, main, workers=1, servers=servers, replicas=1, slot_bytes=2048
    )
    assert found["long"][2] == [5000]


@pytest.mark.parametrize(("servers", "replicas"), [(1, 1), (2, 2), (2, -1)])
def test_wrong_replicas_are_refused(servers: int, replicas: int, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=f"replicas={replicas}"):
        ps_clusters.run(tmp_path, lambda _: None, workers=1, servers=servers, replicas=replicas)


def test_a_phase_is_one_of_a_step() -> None:
    assert FATAL < STEPS
    assert {phase for *_, phase in (*QUICK, *SLOW)} == set(PHASES)
