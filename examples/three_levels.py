"""One model for each part of the data, each found by a search, each trained by several ranks.

    python examples/three_levels.py                   three studies with Gaussian processes
    python examples/three_levels.py --against-random  five seeds of both samplers, one part

Level 1 is the loop over occupations of MovieLens-100K, level 2 a study of Optuna for each, level 3
a process group for each trial. Studies are kept in out/, with a picture of each.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import Any

import optuna
import ratings
import torch
import torch.distributed as dist
from tqdm import tqdm

import rdmatensor.trials as rt

OCCUPATIONS = ("student", "educator", "programmer")
UNTUNED: dict[str, Any] = {"rate": 0.01, "decay": 1e-4, "dim": 16, "spread": 0.1}
SEEDS = 5


def train(trial: rt.GroupTrial, wheel: str, occupation: str) -> float:
    """Train one model; every rank of a trial runs this."""
    torch.set_num_threads(1)
    dist.init_process_group("rdmatensor")
    rate = trial.suggest_float("rate", 1e-4, 1.0, log=True)
    decay = trial.suggest_float("decay", 1e-6, 10.0, log=True)
    dim = trial.suggest_int("dim", 2, 32)
    spread = trial.suggest_float("spread", 1e-3, 1.0, log=True)
    return ratings.error_after(ratings.partition(Path(wheel), occupation), rate, decay, dim, spread)


def search(
    path: Path, wheel: Path, occupation: str, sampler: optuna.samplers.BaseSampler, n_trials: int
) -> optuna.Study:
    """Run one study to its number of trials, with a progress bar."""
    study = rt.study(path, sampler=sampler, direction="minimize")
    left = max(0, n_trials - len(study.trials))
    with tqdm(total=left, desc=path.name, file=sys.stderr) as bar:

        def advance(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
            bar.update()
            if trial.state == optuna.trial.TrialState.COMPLETE:
                bar.set_postfix(best=f"{study.best_value:.4f}")

        rt.optimize(
            *(train,),
            args=(str(wheel), occupation),
            study=study,
            ranks_per_trial=2,
            n_trials=left,
            callbacks=[advance],
        )
    return study


def untuned(path: Path, wheel: Path, occupation: str) -> float:
    """Return the error with parameters that were not searched for."""
    study = rt.study(path, sampler=optuna.samplers.RandomSampler(seed=0))
    if not study.trials:
        study.enqueue_trial(UNTUNED)
        rt.optimize(
            train, args=(str(wheel), occupation), study=study, ranks_per_trial=2, n_trials=1
        )
    return study.best_value


def save_picture(study: optuna.Study, default: float, path: Path) -> None:
    """Draw a study's errors by trial, and its two most important parameters."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    done = [trial for trial in study.trials if trial.value is not None]
    errors = [float(trial.value) for trial in done if trial.value is not None]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    left.plot([trial.number for trial in done], errors, "o", color="#0072B2", label="trial")
    best = [min(errors[: at + 1]) for at in range(len(errors))]
    left.step([trial.number for trial in done], best, where="post", color="#D55E00", label="best")
    left.axhline(default, color="0.4", linestyle=":", label="untuned")
    left.set(xlabel="trial", ylabel="validation RMSE (stars)", title=study.study_name)
    left.legend(frameon=False)
    shown = right.scatter(
        *([trial.params[name] for trial in done] for name in ("rate", "decay")),
        c=errors,
        cmap="viridis_r",
    )
    right.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="decay")
    figure.colorbar(shown, label="validation RMSE (stars)")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def three_levels(out: Path, wheel: Path, n_trials: int) -> int:
    """Search for each occupation; the status is 1 unless each search has beaten its default."""
    is_better = True
    for occupation in OCCUPATIONS:
        sampler = optuna.samplers.GPSampler(seed=0, n_startup_trials=4)
        study = search(out / occupation, wheel, occupation, sampler, n_trials)
        default = untuned(out / f"{occupation}-untuned", wheel, occupation)
        save_picture(study, default, out / f"{occupation}.png")
        is_better &= study.best_value < default
        chosen = ", ".join(f"{name} {value:.3g}" for name, value in study.best_params.items())
        print(
            f"{occupation}: RMSE {study.best_value:.4f}, untuned {default:.4f} ({chosen})",
            flush=True,
        )
    return 0 if is_better else 1


def against_random(out: Path, wheel: Path, n_trials: int) -> int:
    """Compare both samplers over seeds; the status is 1 unless Gaussian processes win."""
    best: dict[str, list[float]] = {"gp": [], "random": []}
    for seed in range(SEEDS):
        samplers = {
            "gp": optuna.samplers.GPSampler(seed=seed, n_startup_trials=4),
            "random": optuna.samplers.RandomSampler(seed=seed),
        }
        for name, sampler in samplers.items():
            path = out / f"{OCCUPATIONS[0]}-{name}-{seed}"
            study = search(path, wheel, OCCUPATIONS[0], sampler, n_trials)
            best[name].append(study.best_value)
    middle = {name: median(values) for name, values in best.items()}
    for name, values in best.items():
        listed = " ".join(f"{value:.4f}" for value in sorted(values))
        print(f"{name}: median {middle[name]:.4f} of {listed}", flush=True)
    return 0 if middle["gp"] < middle["random"] else 1


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--against-random", action="store_true")
    chosen = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    chosen.out.mkdir(parents=True, exist_ok=True)
    wheel = ratings.fetch(chosen.out).absolute()
    run = against_random if chosen.against_random else three_levels
    return run(chosen.out, wheel, chosen.trials)


if __name__ == "__main__":
    sys.exit(main())
