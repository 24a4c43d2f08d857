"""A search for hyper-parameters in which each trial is a process group.

    import optuna, torch.distributed as dist, rdmatensor.trials as rt

    def train(trial, part):  # runs on every rank of a trial
        dist.init_process_group("rdmatensor")
        rate = trial.suggest_float("rate", 1e-3, 1, log=True)  # the same value on all ranks
        for epoch in range(4):
            error = fit_epoch(part, rate)
            trial.report(error, epoch)
            if trial.should_prune():  # the same answer on all ranks
                raise optuna.TrialPruned
        return error

    study = rt.study("out/students", sampler=optuna.samplers.GPSampler(seed=0))
    rt.optimize(train, args=("students",), study=study, ranks_per_trial=2, n_trials=20)

Optuna has the samplers, the pruners and the storage: `pip install rdmatensor[trials]`.
"""

from __future__ import annotations

from rdmatensor.trials.driver import optimize, study
from rdmatensor.trials.launchers import Local, Ray, Slurm
from rdmatensor.trials.rank import GroupTrial, TrialError

__all__ = ["GroupTrial", "Local", "Ray", "Slurm", "TrialError", "optimize", "study"]
