"""What examples/fit_memory.py comes to: live bytes over a step, for each way."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from matplotlib.figure import Figure

COLOURS = ("#767676", "#2f6db5", "#c8611b")  # kept, recomputed, lent


def draw() -> Figure:
    """Run the example, and draw what it left."""
    with tempfile.TemporaryDirectory() as folder:
        example = Path(__file__).parents[2] / "examples/fit_memory.py"
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        launch += ["--standalone", str(example), "--out", folder]
        subprocess.run(launch, check=True, capture_output=True, timeout=300)
        lives = json.loads(Path(folder, "memory.json").read_text(encoding="utf-8"))
    budget = lives.pop("budget")
    figure = Figure(figsize=(6.4, 3.4), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    for (name, live), colour in zip(lives.items(), COLOURS, strict=True):
        places = [index / (len(live) - 1) for index in range(len(live))]
        axes.plot(places, [one / 2**20 for one in live], label=name, color=colour, linewidth=1.2)
    axes.axhline(budget / 2**20, color="#1d2733", linestyle="--", linewidth=0.9, label="budget")
    axes.set(xlabel="operations: forward, backward, optimizer", ylabel="MiB", ylim=(0, None))
    axes.legend(fontsize="small", loc="upper right", ncols=2)
    axes.set_title("memory of the tutorial's model over a step")
    return figure
