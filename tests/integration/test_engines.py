"""Recipes for engines that run here: Slurm, Celery with Redis, Ray. Lanes of the slow tests.

Each needs something that the set-up does not install: Debian's slurmctld, slurmd, slurm-client and
munge; redis-server; `pip install ray`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
import roles_trials
import slurm_node

import rdmatensor.trials as rt

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
ENGINES = Path(__file__).parents[2] / "examples" / "engines"
PROGRAM = """
import torch, torch.distributed as dist, {module} as hvd
hvd.init()
total = int(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="x"))
print("sum", total, dist.get_backend(), flush=True)
hvd.shutdown()
"""


def _study(folder: Path) -> optuna.Study:
    return rt.study(folder / "study", sampler=optuna.samplers.RandomSampler(seed=0))


# ---- Slurm ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if os.geteuid() != 0 or slurm_node.missing():
        pytest.skip(f"needs Slurm: root, and {' '.join(slurm_node.PROGRAMS)}")
    folder = tmp_path_factory.mktemp("slurm")
    with slurm_node.slurm(folder) as environment:
        yield environment


def test_srun_starts_ranks_of_horovod(tmp_path: Path, slurm: dict[str, str]) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(module="rdmatensor.horovod.torch"))
    done = subprocess.run(
        ["srun", "-n2", "--overcommit", sys.executable, path], env=slurm, cwd=tmp_path,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["sum 2 rdmatensor"] * 2


def test_trials_are_slurm_jobs_of_which_one_is_cancelled(
    tmp_path: Path, slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, slurm[name])
    study = _study(tmp_path)
    launcher = rt.Slurm(tmp_path / "jobs", options={"timeout_min": 5, "slurm_mem": None})
    cancelled = threading.Event()

    def cancel() -> None:
        deadline_s = time.monotonic() + 120
        while not (tmp_path / "up-0-1").exists() and time.monotonic() < deadline_s:
            time.sleep(0.1)
        subprocess.run(["scancel", "--state=RUNNING", "--user=root"], env=slurm, check=True)
        cancelled.set()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    rt.optimize(
        roles_trials.waits_once,
        args=(str(tmp_path),),
        study=study,
        launcher=launcher,
        ranks_per_trial=2,
        n_trials=2,
        max_retries=1,
    )
    canceller.join()

    assert cancelled.is_set()
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert "of job" in study.trials[0].user_attrs["failure"]
    assert study.trials[1].params == study.trials[0].params


# ---- Celery --------------------------------------------------------------------------------------


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    words = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    server = subprocess.Popen([*words, "--dir", str(tmp_path)], stdout=subprocess.DEVNULL)
    yield f"redis://127.0.0.1:{port}/0"
    server.terminate()
    server.wait(20)


def test_celery_runs_jobs_from_a_queue(tmp_path: Path, redis: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(module="rdmatensor.horovod.torch"))
    environment = {**os.environ, "CELERY_BROKER": redis}
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "--concurrency", "1"],
        cwd=ENGINES, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    code = (
        "import celery_tasks as c; "
        f"good, bad = c.train.delay(['{path}'], 2), c.train.delay(['missing.py'], 1); "
        "print(good.get(timeout=100)); print(type(bad.get(timeout=100, propagate=False)))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ENGINES, env=environment, capture_output=True,
            text=True, timeout=220, check=False,
        )  # fmt: skip
    finally:
        worker.terminate()
        worker.wait(30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2 rdmatensor") == 2
    assert "RuntimeError" in done.stdout


# ---- Ray -----------------------------------------------------------------------------------------


@pytest.fixture
def ray_environment() -> dict[str, str]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs ray")
    return {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


RAY_TRIALS = """
import sys
sys.path.insert(0, {here!r})
import optuna, ray, roles_trials
import rdmatensor.trials as rt
ray.init(num_cpus=2, include_dashboard=False)
study = rt.study("study", sampler=optuna.samplers.RandomSampler(seed=0))
rt.optimize(roles_trials.dies, args=([1],), study=study, launcher=rt.Ray(), ranks_per_trial=2,
            n_trials=2)
print([trial.state.name for trial in study.trials])
print(study.trials[0].user_attrs["failure"])
"""
RAY_TRAIN = """
import os
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

def loop(config):
    import signal
    import torch, torch.distributed as dist
    assert dist.get_backend() == "rdmatensor"
    total = torch.ones(1)
    dist.all_reduce(total)
    assert int(total) == 2
    if config["dies"]:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
    print("sum", int(total), flush=True)

ray.init(num_cpus=2, include_dashboard=False)
for dies in (False, True):
    trainer = TorchTrainer(
        loop, train_loop_config={{"dies": dies}},
        torch_config=TorchConfig(backend="rdmatensor"), scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path={folder!r}),
    )
    try:
        trainer.fit()
        print("ended without an error")
    except Exception as error:
        print("raised", type(error).__name__, str(error))
"""


def _run_ray(text: str, folder: Path, environment: dict[str, str]) -> str:
    path = folder / "program.py"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, path], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=380, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_trials_are_ray_actors(tmp_path: Path, ray_environment: dict[str, str]) -> None:
    text = RAY_TRIALS.format(here=str(Path(__file__).parent))
    said = _run_ray(text, tmp_path, ray_environment)
    assert "['FAIL', 'COMPLETE']" in said
    assert "rank 0 raised" in said
    assert "RDT_EPEER" in said


def test_ray_train_takes_the_backend(tmp_path: Path, ray_environment: dict[str, str]) -> None:
    said = _run_ray(RAY_TRAIN.format(folder=str(tmp_path)), tmp_path, ray_environment)
    assert said.count("ended without an error") == 1
    assert "raised" in said
