"""A driver that a test interrupts: trials_driver.py FOLDER local|slurm|ray."""

from __future__ import annotations

import sys
from pathlib import Path

import optuna
import roles_trials

import rdmatensor.trials as rt

KINDS = {
    "local": lambda _: rt.Local(),
    "slurm": lambda folder: rt.Slurm(folder / "jobs", cluster="local"),
    "ray": lambda _: rt.Ray({"CPU": 0.5}),
}


def main() -> None:
    folder = Path(sys.argv[1])
    if sys.argv[2] == "ray":
        import ray

        ray.init(num_cpus=2, include_dashboard=False)
    rt.optimize(
        roles_trials.waits,
        args=(str(folder),),
        study=rt.study(folder / "study", sampler=optuna.samplers.RandomSampler(seed=0)),
        launcher=KINDS[sys.argv[2]](folder),
        ranks_per_trial=2,
        n_trials=2,
    )


if __name__ == "__main__":
    main()
