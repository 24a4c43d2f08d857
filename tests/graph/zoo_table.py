"""The table of plans.md: python tests/graph/zoo_table.py [MODEL ...].

Counts and bytes are the same on every machine; seconds are CPU time of analyze() on this one,
most of them torch's: half a minute for one model is too long, and the exit status says so. The
bytes of a class count each tensor with its size, or its maximum.
"""

import sys
import time
from pathlib import Path

import torch
from torch.export import Dim

sys.path.insert(0, str(Path(__file__).parent))
import zoo  # needs the line above

from graph_analysis import DataParallel, TransferPlan, analyze

_TOKENS = {"tokens": {0: Dim("batch", min=2, max=64), 1: Dim("seq", min=4, max=128)}}
_DYNAMIC: dict[str, object] = dict.fromkeys(("gpt", "moe", "huggingface"), _TOKENS)
_MIB = 1 << 20
_MOST_S = 30.0  # what somebody waits who plans a step
_HEAD = (
    "model", "operations", "static", "MiB", "bounded", "MiB at most", "dynamic",
    "crossing", "MiB a step", "buckets", "seconds",
)  # fmt: skip


def _row(name: str) -> list[str]:
    torch.manual_seed(0)
    model, inputs, loss_fn = zoo.FACTORIES[name]()
    began = time.process_time()
    plan = analyze(
        model,
        inputs,
        loss_fn=loss_fn,
        strategy=DataParallel(4),
        dynamic_shapes=_DYNAMIC.get(name),
    )
    taken_s = time.process_time() - began
    sizes = {t.name: t.max_bytes or 0 for t in plan.tensors}
    sent = [c.tensor for c in plan.crossings if c.phase != "setup"]
    return [
        name if name not in _DYNAMIC else f"{name}, dynamic batch and sequence",
        str(plan.op_count),
        *_class(plan, "static"),
        *_class(plan, "bounded"),
        _class(plan, "dynamic")[0],
        str(len(sent)),
        f"{sum(sizes[tensor] for tensor in sent) / _MIB:.2f}",
        str(len(plan.buckets)),
        f"{taken_s:.1f}",
    ]


def _class(plan: TransferPlan, kind: str) -> tuple[str, str]:
    chosen = [t.max_bytes or 0 for t in plan.tensors if t.kind == kind]
    return str(len(chosen)), f"{sum(chosen) / _MIB:.2f}" if chosen else "-"


def main() -> int:
    """Print the table in Markdown, a row as soon as it is known; 1 if a model took too long."""
    print("| " + " | ".join(_HEAD) + " |")
    print("|---" + "|--:" * (len(_HEAD) - 1) + "|", flush=True)
    too_long = []
    for name in sys.argv[1:] or zoo.FACTORIES:
        row = _row(name)
        print("| " + " | ".join(row) + " |", flush=True)
        if float(row[-1]) > _MOST_S:
            too_long.append(name)
    for name in too_long:
        print(f"{name}: over {_MOST_S:g} s", file=sys.stderr)
    return int(bool(too_long))


if __name__ == "__main__":
    sys.exit(main())
