"""Training jobs from a queue: each task of Celery is one torchrun job.

    celery -A celery_tasks worker --concurrency 1
    python -c "import celery_tasks as c; print(c.train.delay(['train.py'], 2).get())"

CELERY_BROKER names the broker, by default a Redis of this host.
"""

from __future__ import annotations

import os
import subprocess
import sys

from celery import Celery

_BROKER = os.environ.get("CELERY_BROKER", "redis://localhost:6379/0")
LONGEST_S = 24 * 3600

app = Celery("training", broker=_BROKER, backend=_BROKER)
app.conf.update(
    # A task whose worker died goes to another one, though not while its worker still runs it.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_transport_options={"visibility_timeout": LONGEST_S},
    result_backend_transport_options={"visibility_timeout": LONGEST_S},
    worker_prefetch_multiplier=1,
    task_track_started=True,
)


@app.task
def train(words: list[str], ranks: int) -> str:
    """Run a program on several ranks of this host and return its output."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(words)} failed with {done.returncode}: {done.stderr[-4000:]}"
        )
    return done.stdout
