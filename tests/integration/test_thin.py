"""Thin plans do not send pruned blocks: against DDP on Gloo, and against dense plans."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import compress_table
import jobs
import pytest

pytestmark = pytest.mark.timeout(150)

START_S = 90.0  # two ranks capture a graph each
SLACK_BYTES = 64 * 1024  # heartbeats and goodbyes


def run(role: str, out: Path, world: int = 2, **words: Any) -> list[Any]:
    module, _, name = role.rpartition(":")
    where = f"{module or 'roles_thin'}:{name}"
    return jobs.results(jobs.run(where, world, out, timeout_s=START_S, **words))


def check_sums(ranks: list[dict[str, Any]], most_wrong: float = 0.0) -> None:
    for rank in ranks:
        assert rank["wrong"] <= most_wrong
        assert rank["dead"] == 0.0
        assert rank["bits"] == ranks[0]["bits"]
        assert rank["sent_bytes"] == rank["span_bytes"]
        assert 0 < rank["thinned_bytes"] <= 2 * rank["sent_bytes"]


@pytest.mark.parametrize(
    ("model", "how", "transport"),
    [
        ("cnn", "plain", "tcp"),
        ("cnn", "channels_last", "shm"),
        ("gpt", "accumulate", "shm"),
        ("mlp", "held", "tcp"),
    ],
)
def test_live_blocks_are_summed_and_all_else_is_zero(
    model: str, how: str, transport: str, tmp_path: Path
) -> None:
    environment = {"RDMATENSOR_TRANSPORT": transport}
    check_sums(run("against_ddp", tmp_path, environment=environment, model=model, how=how, seed=3))


@pytest.mark.parametrize(
    ("world", "transport"), [(3, "shm"), pytest.param(4, "tcp", marks=pytest.mark.slow)]
)
def test_more_ranks(world: int, transport: str, tmp_path: Path) -> None:
    """They sum in another order than Gloo, but all in the same."""
    environment = {"RDMATENSOR_TRANSPORT": transport}
    found = run("against_ddp", tmp_path, world, environment=environment, model="cnn", seed=1)
    check_sums(found, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 10))
def test_random_masks(seed: int, tmp_path: Path) -> None:
    model, how = ("mlp", "cnn", "gpt")[seed % 3], ("plain", "held", "kept", "accumulate")[seed % 4]
    check_sums(run("against_ddp", tmp_path, model=model, how=how, seed=seed))


def test_fifty_steps_end_in_the_same_weights_as_with_dense_gradients(tmp_path: Path) -> None:
    ranks = run("twins", tmp_path)
    for rank in ranks:
        assert len(set(rank["weights"])) == 1
        assert rank["weights"] == ranks[0]["weights"]
        thin, dense = rank["sent"]
        assert thin <= 0.12 * dense


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_each_round_sends_live_blocks_and_asks_for_nothing(
    transport: str, path_forced: dict[str, str], tmp_path: Path, witness: str
) -> None:
    environment = {"LD_PRELOAD": witness, **path_forced}
    for rank in run("rounds", tmp_path, environment=environment):
        assert rank["degrees"] == [0.45, 0.9, 0.675, 0.9]
        assert rank["accepted"] == [True, False, True, True]
        assert rank["is_of_masks"]
        shares = [one / rank["dense"] for one in rank["payload"]]
        assert shares == pytest.approx([0.55, 0.1, 0.325, 0.1], abs=0.02)
        assert shares[-1] <= 0.12
        for steps in rank["steps"]:
            for step in steps[1:]:
                assert step["control_messages"] == step["registrations"] == 0
                assert step["copied_bytes"] <= 2 * max(rank["payload"])
                assert step["moved_bytes"] + step["wire_bytes"] > 0
        assert rank["steps_counted"] == 4 * 6 + 7
        # The library's counters, and over TCP the kernel's, which know nothing of them.
        seen = rank["witness"]
        assert seen["control_messages"] == seen["registrations"] == 0
        assert seen["moved_bytes"] <= 5 * 0.12 * rank["dense"] + SLACK_BYTES
        assert seen["kernel_sent"] <= 5 * 0.12 * rank["dense"] + SLACK_BYTES


def test_masks_that_differ_name_the_layer_on_all_ranks(tmp_path: Path) -> None:
    ranks = run("differing", tmp_path, 3)
    for rank in ranks:
        for when in ("apply", "forward", "again"):
            assert "the mask of 2.weight differs: block 10 is live there only" in rank[when], when
        assert rank["bits"] == ranks[0]["bits"]


def test_masks_of_a_checkpoint_are_followed(tmp_path: Path) -> None:
    assert run("loaded", tmp_path) == [[True, True]] * 2


@pytest.mark.slow
def test_programs_that_change_gradients_and_parameters_that_are_not_used(tmp_path: Path) -> None:
    for rank in run("roles_thin_programs:surprises", tmp_path):
        assert all(rank["replaced"])
        assert rank["replaced sum"] > 0
        assert all(rank["dropped"][1:])
        assert rank["dropped sum"] == 0.0
        assert rank["nothing"] == [0.0, 0.0, 0.0]
        assert "the gradient of 5.weight was written by the program" in rank["written"]
        for is_found, absent in (("False", []), ("True", ["second.weight", "second.bias"])):
            said = rank["unused"][is_found]
            # Three blocks of 16, of ones of two samples, of one rank of two.
            assert said["one rank"] == 3 * 16
            assert said["absent"] == absent


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_step_behind_a_slow_link_takes_a_part_of_a_dense_one() -> None:
    allowed = subprocess.run(
        ["unshare", "--net", "--pid", "--fork", "--mount-proc", "true"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if allowed.returncode != 0:
        assert not os.environ.get("CI"), f"CI must run what needs a link: {allowed.stderr}"
        pytest.skip("unshare is refused")
    (row,) = compress_table.link()
    time_share, bytes_share = re.findall(r"[0-9.]+(?= of the)", row[-1])
    assert float(bytes_share) <= 0.12
    assert float(time_share) <= 0.3  # 0.2 without other load
