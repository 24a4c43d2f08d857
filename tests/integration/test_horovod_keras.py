"""Horovod's API for Keras 3 on torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jobs
import numpy as np
import pytest
from roles_keras import BATCH, ROWS

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(150)
def test_ranks_train_as_one_process_does(tmp_path: Path) -> None:
    folder = {"folder": str(tmp_path)}
    ranks = jobs.results(
        jobs.run("roles_keras:train", 2, tmp_path / "ranks", timeout_s=60.0, **folder)
    )
    (alone,) = jobs.results(
        jobs.run("roles_keras:alone", 1, tmp_path / "alone", timeout_s=60.0, **folder)
    )

    for name in ("SGD", "Adam", "AdamW", "scaled"):
        assert ranks[0][name] == ranks[1][name]  # weights and averaged metrics, bit by bit
        for ours, theirs in zip(ranks[0][name]["weights"], alone[name]["weights"], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-6)
        np.testing.assert_allclose(ranks[0][name]["losses"], alone[name]["losses"], rtol=1e-4)
    for name in ("model.keras", "model.h5"):
        assert alone[name] == ranks[0]["Adam"]["weights"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("world", "transport"), [(2, "shm"), pytest.param(3, "tcp", marks=pytest.mark.slow)]
)
def test_rules(tmp_path: Path, world: int, transport: str) -> None:
    environment = {"RDMATENSOR_TRANSPORT": transport}
    ranks = jobs.results(
        jobs.run(
            *("roles_keras:rules", world, tmp_path / "out"),
            environment=environment,
            timeout_s=60.0,
            folder=str(tmp_path),
        )
    )
    mean, total = (world + 1) / 2, world * (world + 1) / 2
    for rank, found in enumerate(ranks):
        assert found["average"] == [-mean, -2 * mean]
        assert found["sum"] == [-total, -2 * total]
        assert found["predivide"] == found["fp16"] == [pytest.approx(-mean)]
        assert found["groups"] == [-mean] * 3
        assert found["missing"] == [pytest.approx(-1 / world), 0]
        assert found["passes"] == [-2 * mean]  # the third pass waits for the fourth
        assert found["averaged passes"] == [-2 * mean]
        own = -(rank + 1) / world
        assert found["partial"] == pytest.approx([own, own, -mean], abs=1e-5)
        assert found["loaded"] == ["SGD", True]
        assert "wrapped already" in found["twice"]
        assert found["metrics"] == {"loss": mean, "accuracy": 2 * mean}
        assert found["values"] == [
            *(mean, total, [float(one + 1) for one in range(world)], 1, [total]),
        ]
        steps = ROWS // BATCH // world
        wanted = [
            0.4 / world * ((step + 1) / steps * (world - 1) / 2 + 1) for step in range(2 * steps)
        ]
        assert found["rates"] == pytest.approx([*wanted, *[0.4] * steps], rel=1e-5)
        previous = [0.4, *wanted[:-1]]
        corrected = [0.5 * new / old for new, old in zip(wanted, previous, strict=True)]
        assert found["momenta"] == pytest.approx([*corrected, *[0.5] * steps], rel=1e-5)
        assert found["schedule"] == pytest.approx([0.4, 0.2, 0.1])


@pytest.mark.timeout(120)
def test_an_elastic_state_is_synced_committed_and_restored(tmp_path: Path) -> None:
    first, second = jobs.results(
        jobs.run(
            *("roles_keras:elastic_state", 2, tmp_path),
            environment={"RDMATENSOR_TRANSPORT": "tcp"},
            timeout_s=60.0,
            folder=str(tmp_path),
        )
    )
    assert first["first"] != second["first"]
    assert first["synced"] == second["synced"] == first["first"]
    for found in (first, second):
        assert found["epoch"] == 0
        assert (found["batch"], found["epochs"]) == (0, 2)
        assert found["restored"] == found["trained"] != found["synced"]
        assert found["restored epoch"] == 2
    assert first["trained"] == second["trained"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_script_runs_on_two_hosts_of_two_ranks(tmp_path: Path) -> None:
    """Both names are of this machine; by RDMATENSOR_TEST_HOST they are two hosts."""
    script = ROOT / "examples" / "horovod_keras_mnist.py"
    hosts = ("-np", "4", "-H", "localhost:2,127.0.0.1:2")
    name_host = 'RDMATENSOR_TEST_HOST="$HOROVOD_HOSTNAME" exec "$0" "$@"'
    done = subprocess.run(
        [sys.executable, "-m", "rdmatensor", "horovodrun", *hosts,
         "sh", "-c", name_host, sys.executable, script],
        cwd=tmp_path, env={**os.environ, "MNIST_EPOCHS": "8", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"Test accuracy: ([\d.]+)", done.stdout)
    assert accuracy is not None, done.stdout
    assert float(accuracy[1]) >= 0.75
    assert len(list(tmp_path.glob("checkpoint-*.h5"))) == 2
    shutil.rmtree(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_script_learns_digits(tmp_path: Path) -> None:
    script = ROOT / "examples" / "horovod_keras_mnist.py"
    command = [sys.executable, "-m", "rdmatensor", "horovodrun", "-np", "2", "-H", "localhost:2"]
    done = subprocess.run(
        [*command, sys.executable, script], cwd=tmp_path,
        env={**os.environ, "MNIST_EPOCHS": "6"}, capture_output=True, text=True, timeout=580,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"Test accuracy: ([\d.]+)", done.stdout)
    assert accuracy is not None, done.stdout
    assert float(accuracy[1]) >= 0.90
    assert len(list(tmp_path.glob("checkpoint-*.h5"))) == 3
    code = (
        "import keras, sys; model = keras.models.load_model('checkpoint-3.h5'); "
        "assert 'rdmatensor.horovod' not in sys.modules; "
        "print(float(model.optimizer.learning_rate))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "KERAS_BACKEND": "torch"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert float(loaded.stdout) == 2.0  # scaled by the number of ranks
    shutil.rmtree(tmp_path)
