"""A process's place in a job, as launchers write it into the environment."""

from __future__ import annotations

import json

import pytest

from rdmatensor.errors import InvalidArgumentError
from rdmatensor.ps.places import SCHEDULER, place_of

CLUSTER = {
    "ps": ["node4:2222", "node5:2222"],
    "worker": ["node1:2222", "node2:2222", "node3:2222"],
    "chief": ["node0:2222"],
}
PS_LITE = {
    "DMLC_NUM_WORKER": "3",
    "DMLC_NUM_SERVER": "2",
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
}


def tensorflow(kind: str, index: int, **groups: list[str]) -> dict[str, str]:
    task = {"type": kind, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": groups or CLUSTER, "task": task})}


@pytest.mark.parametrize(
    ("kind", "index", "rank", "role"),
    [("chief", 0, 0, "worker"), ("worker", 0, 1, "worker"), ("worker", 2, 3, "worker"),
     ("ps", 0, 4, "server"), ("ps", 1, 5, "server")],
)  # fmt: skip
def test_tensorflows_tasks_have_ranks(kind: str, index: int, rank: int, role: str) -> None:
    place = place_of(tensorflow(kind, index))
    assert (place.rank, place.role, place.size, place.servers) == (rank, role, 6, 2)
    assert place.address == ("node0", 2222)
    assert place.is_host == (rank == 0)


def test_without_a_chief_the_first_worker_is_rank_0() -> None:
    place = place_of(tensorflow("worker", 0, worker=["[::1]:1", "b:2"], ps=["c:3"]))
    assert (place.rank, place.size, place.servers, place.address) == (0, 3, 1, ("::1", 1))


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "is not an object"), ("[]", "is not an object"), ('{"cluster": {}}', "is not an object"),
     (tensorflow("evaluator", 0)["TF_CONFIG"], "'evaluator' 0 .* has chief, worker, ps"),
     (tensorflow("worker", 3)["TF_CONFIG"], "'worker' 3 is not in"),
     (tensorflow("worker", 0, worker=["node1"])["TF_CONFIG"], "'node1' is not host:port")],
)  # fmt: skip
def test_a_wrong_tf_config_is_named(text: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"TF_CONFIG.*{words}"):
        place_of({"TF_CONFIG": text})


def test_ps_lites_roles_have_ranks_if_they_are_numbered() -> None:
    one = place_of({**PS_LITE, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "2"})
    assert (one.rank, one.size, one.servers, one.is_host) == (2, 5, 2, False)
    one = place_of({**PS_LITE, "DMLC_ROLE": "server", "DMLC_RANK": "1"})
    assert (one.rank, one.address) == (4, ("10.0.0.1", 9000))
    one = place_of({**PS_LITE, "DMLC_ROLE": "scheduler"})
    assert (one.rank, one.is_host) == (SCHEDULER, True)
    assert place_of({**PS_LITE, "DMLC_ROLE": "worker"}).rank is None


@pytest.mark.parametrize(
    ("change", "words"),
    [({"DMLC_ROLE": "joint"}, "DMLC_ROLE='joint'"), ({"DMLC_NUM_SERVER": ""}, "DMLC_NUM_SERVER=''"),
     ({"DMLC_PS_ROOT_URI": ""}, "DMLC_PS_ROOT_URI"), ({"DMLC_RANK": "3"}, "worker 3 .* of 3"),
     ({"DMLC_PS_ROOT_PORT": "x"}, "DMLC_PS_ROOT_PORT='x'")],
)  # fmt: skip
def test_wrong_variables_of_ps_lite_are_named(change: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        place_of({**PS_LITE, "DMLC_ROLE": "worker", **change})


def test_torchruns_variables_come_first() -> None:
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    place = place_of({**torchrun, **tensorflow("ps", 0), **PS_LITE, "DMLC_ROLE": "worker"})
    assert (place.rank, place.size, place.servers, place.address) == (3, 4, None, None)
    assert not place_of({**torchrun, "RANK": "0"}).is_host
    assert place_of({"RANK": "0", "WORLD_SIZE": "1"}).is_host


def test_without_a_launcher_the_error_says_so() -> None:
    with pytest.raises(InvalidArgumentError, match="torchrun"):
        place_of({"RANK": "0"})
