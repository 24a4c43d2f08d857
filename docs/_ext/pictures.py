"""Draw the pictures of this site, as SVG, with matplotlib.

The pictures are narrow and their letters large, so that they are read on a phone too. The plan, the
trace and the matrix are drawn from what the libraries return for small programs.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import crossing
import matplotlib as mpl
import numpy as np
import split
import step_memory
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import graph_analysis
import rdmatensor

BLUE, ORANGE, GREEN, GREY, PALE = "#2f6db5", "#c8611b", "#2c8a57", "#767676", "#f2f4f7"
INK = "#1d2733"
COLOURS = (BLUE, ORANGE, GREEN, "#8457a8", "#a88a1d")
WIDTH_IN = 6.4
SIZE = 11  # points of letters, of a picture 6.4 inches wide


def canvas(height_in: float, width: float = 100) -> tuple[Figure, Axes]:
    """Return an empty picture; x goes from 0 to width, y down from 0 at the same scale."""
    figure = Figure(figsize=(WIDTH_IN, height_in), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(width * height_in / WIDTH_IN, 0)
    axes.axis("off")
    return figure, axes


def box(
    axes: Axes,
    at: tuple[float, float, float, float],
    text: str,
    *,
    colour: str = BLUE,
    fill: str = PALE,
    size: float = SIZE,
) -> None:
    """Draw a rounded box (left, top, width, height) with a text in its middle."""
    left, top, width, height = at
    patch = FancyBboxPatch(
        (left, top),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=1.4",
        edgecolor=colour,
        facecolor=fill,
        linewidth=1.4,
    )
    axes.add_patch(patch)
    axes.text(
        left + width / 2,
        top + height / 2,
        text,
        ha="center",
        va="center",
        fontsize=size,
        color=INK,
        linespacing=1.25,
    )


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    text: str = "",
    *,
    colour: str = INK,
    bend: float = 0,
    shift: tuple[float, float] = (0, -1.4),
    size: float = SIZE,
) -> None:
    """Draw an arrow, with a text at its middle."""
    axes.annotate(
        "",
        xy=end,
        xytext=start,
        arrowprops={
            "arrowstyle": "-|>",
            "color": colour,
            "linewidth": 1.5,
            "connectionstyle": f"arc3,rad={bend}",
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )
    if text:
        x, y = (start[0] + end[0]) / 2 + shift[0], (start[1] + end[1]) / 2 + shift[1]
        axes.text(x, y, text, ha="center", va="bottom", fontsize=size, color=colour)


def say(axes: Axes, x: float, y: float, text: str, **style: object) -> None:
    """Write a text whose middle is at a point."""
    style = {"ha": "center", "va": "center", "fontsize": SIZE, "color": INK} | style
    axes.text(x, y, text, **style)  # type: ignore[arg-type]  # of matplotlib's many


# ---- drawn by hand -------------------------------------------------------------------------------


def life_of_a_write() -> Figure:
    """A message that is copied, above; a one-sided write, below."""
    figure, axes = canvas(6.9)
    for top, title, colour in (
        (3, "A message is copied on its way", ORANGE),
        (56, "A one-sided write goes into its final place", BLUE),
    ):
        say(axes, 50, top, title, fontsize=SIZE + 2, fontweight="bold", color=colour)
        say(axes, 20, top + 6, "sender", color=GREY)
        say(axes, 80, top + 6, "receiver", color=GREY)
    box(axes, (6, 13, 28, 8), "tensor", colour=ORANGE)
    box(axes, (6, 29, 28, 8), "message buffer", colour=ORANGE)
    box(axes, (66, 29, 28, 8), "receive buffer", colour=ORANGE)
    box(axes, (66, 13, 28, 8), "tensor", colour=ORANGE)
    arrow(axes, (20, 21), (20, 29), "copy 1", colour=ORANGE, shift=(7, 1.2))
    arrow(axes, (34, 33), (66, 33), "transfer", colour=ORANGE)
    arrow(axes, (80, 29), (80, 21), "copy 2", colour=ORANGE, shift=(-7, 1.2))
    say(
        axes,
        50,
        44,
        "Before it: the receiver waits in a call,\nthe sender asks for room",
        color=GREY,
    )
    box(axes, (6, 68, 28, 8), "tensor in the arena")
    box(axes, (66, 68, 28, 8), "region in the arena")
    arrow(axes, (66, 82), (34, 82), "1  export, once", colour=GREEN)
    arrow(axes, (34, 72), (66, 72), "2  write", colour=BLUE)
    arrow(axes, (34, 92), (66, 92), "3  notification", colour=BLUE)
    say(axes, 80, 92, "the bytes\nare there", color=INK, ha="center")
    say(axes, 20, 82, "knows the\naddress", color=INK)
    say(axes, 50, 101.5, "Later writes repeat 2 and 3 only. No call at the receiver.", color=GREY)
    return figure


def path_choice() -> Figure:
    """The candidates of a pair of processes, in their order."""
    figure, axes = canvas(7.4)
    steps = (
        ("same user and\nnetwork namespace\non one host?", "shm", "shared memory"),
        ("RDMA device\non both sides?", "verbs", "RDMA"),
        ("addresses that\nreach each other?", "tcp", "TCP"),
    )
    for number, (question, name, meaning) in enumerate(steps):
        top = 3 + number * 30
        box(axes, (3, top, 33, 16), question, colour=GREY)
        box(axes, (49, top + 2, 19, 12), "a test write\narrives?", colour=ORANGE)
        box(axes, (79, top + 2, 19, 12), f"{name}\n{meaning}", colour=GREEN, size=SIZE - 2)
        arrow(axes, (36, top + 8), (49, top + 8), "yes")
        arrow(axes, (68, top + 8), (79, top + 8), "yes", colour=GREEN)
        arrow(axes, (19, top + 16), (19, top + 30), "no", shift=(-3.5, 1.4))
        axes.plot([58, 58, 19], [top + 14, top + 23, top + 23], color=ORANGE, linewidth=1.5)
        say(axes, 61.5, top + 19, "no", color=ORANGE)
    box(axes, (4, 93, 34, 10), "error that names\nevery reason", colour=ORANGE)
    say(axes, 69, 98, "describe() has the path, the reason,\nand why no better one", color=GREY)
    say(axes, 50, 110, "A lost RDMA path moves to TCP, and is counted.", color=GREY)
    return figure


def layers() -> Figure:
    """Each layer above those that it uses."""
    figure, axes = canvas(7.2)
    rows: Sequence[tuple[Sequence[str], str]] = (
        (("command line, doctor, benchmarks",), GREY),
        (("rdmatensor.distributed", "rdmatensor.plan"), BLUE),
        (("rdmatensor: contexts, slots, groups", "rdmatensor.torch"), BLUE),
        (("C++: the torch.distributed backend",), ORANGE),
        (("collectives",), GREEN),
        (("rdmatensor.h, rdmatensor_ext.h",), INK),
        (("messages, groups", "slots"), GREEN),
        (("endpoint: the connection to a peer",), GREEN),
        (("memory, regions", "engine, waits"), GREEN),
        (("shm", "tcp", "verbs"), GREEN),
        (("wire format", "base"), GREEN),
    )
    height, gap = 8.0, 1.9
    for number, (texts, colour) in enumerate(rows):
        top = 3 + number * (height + gap)
        width = (76 - 2 * (len(texts) - 1)) / len(texts)
        for place, text in enumerate(texts):
            size = SIZE - 1.5 if len(text) > 26 and len(texts) > 1 else SIZE
            fill = "#dfe5ee" if colour == INK else PALE
            at = (4 + place * (width + 2), top, width, height)
            box(axes, at, text, colour=colour, fill=fill, size=size)
    for text, colour, first, last in (
        ("Python", BLUE, 1, 2),
        ("C++", ORANGE, 3, 3),
        ("C", GREEN, 4, 10),
    ):
        top = 3 + first * (height + gap)
        bottom = 3 + last * (height + gap) + height
        axes.plot([84, 84], [top, bottom], color=colour, linewidth=3)
        say(axes, 87, (top + bottom) / 2, text, color=colour, ha="left")
    return figure


def slot_states() -> Figure:
    """The states of one of the two buffers of a slot, and what moves it on."""
    figure, axes = canvas(5.4)
    box(axes, (6, 8, 24, 12), "FREE\nthe sender's", colour=GREEN)
    box(axes, (70, 8, 24, 12), "being filled\nby the sender", colour=BLUE)
    box(axes, (70, 56, 24, 12), "FULL\nno one's", colour=ORANGE)
    box(axes, (6, 56, 24, 12), "HELD\nthe receiver's", colour=ORANGE)
    arrow(axes, (30, 14), (70, 14), "put() or buffer()", colour=BLUE)
    arrow(axes, (82, 20), (82, 56), colour=BLUE)
    say(axes, 80, 38, "one write, then\nthe notification", ha="right", color=BLUE)
    arrow(axes, (70, 62), (30, 62), "get()", colour=ORANGE)
    arrow(axes, (18, 56), (18, 20), colour=GREEN)
    say(axes, 20, 38, "end of the\nwith block:\na credit", ha="left", color=GREEN)
    say(
        axes,
        50,
        77,
        "A slot has two such buffers. If both are FULL or HELD, the sender waits.",
        color=GREY,
    )
    return figure


# ---- drawn from the library ----------------------------------------------------------------------


def plan() -> Figure:
    """The gradients of a small model's plan: when each is there, and its place in the arena."""
    layers_of = [torch.nn.Linear(512, 512) for _ in range(8)]
    strategy = graph_analysis.DataParallel(4)
    model = torch.nn.Sequential(*layers_of)
    made = graph_analysis.analyze(model, (torch.rand(64, 512),), strategy=strategy)
    figure = Figure(figsize=(WIDTH_IN, 3.9), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    tensors = {tensor.name: tensor for tensor in made.tensors}
    end = max(tensor.last_use for tensor in made.tensors)
    for number, bucket in enumerate(made.buckets):
        offset = bucket.places[0].offset
        for name in bucket.tensors:
            tensor = tensors[name]
            size = tensor.size_bytes or 0
            axes.broken_barh(
                [(tensor.first_use, end - tensor.first_use)],
                (offset / 2**20, size / 2**20),
                facecolor=COLOURS[number % len(COLOURS)],
                edgecolor="white",
                linewidth=0.8,
            )
            offset += size
    axes.set_xlabel("operation of the step")
    axes.set_ylabel("place in the arena, MiB")
    axes.set_title(f"{len(made.buckets)} buckets of {len(layers_of)} layers, one color each")
    return figure


def _traced(folder: Path) -> list[dict[str, Any]]:
    """Return the spans of writes and reads between two contexts."""
    with rdmatensor.Context() as left, rdmatensor.Context() as right:
        rdmatensor.trace.start(left)
        for context, rank in ((left, 0), (right, 1)):
            context.add_job("picture", b"a shared secret", rank=rank)
        array, back = np.ones(4 << 20, np.uint8), left.empty((4 << 20,), "uint8")
        target = right.zeros((4 << 20,), "uint8")
        region = right.export(target)
        with left.connect(right.address, job="picture", rank=1) as endpoint:
            endpoint.wait_ready(10)
            for size in (1 << 20, 4 << 20, 1 << 18):
                begun = [endpoint.write(array[:size], region), endpoint.read(back[:size], region)]
                for transfer in begun:
                    transfer.wait(10)
        rdmatensor.trace.write(left, folder / "trace.json")
    events = json.loads((folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    return [one for one in events if one["ph"] == "X"]


def trace() -> Figure:
    """The transfers of a small program over time, as its trace has them."""
    with tempfile.TemporaryDirectory() as folder:
        spans = _traced(Path(folder))
    start = min(one["ts"] for one in spans)
    figure = Figure(figsize=(WIDTH_IN, 2.7), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    names = ("write", "read")
    for one in spans:
        row = names.index(one["name"])
        colour = COLOURS[row]
        axes.broken_barh([(one["ts"] - start, one["dur"])], (row - 0.35, 0.7), facecolor=colour)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("microseconds")
    axes.set_title("writes and reads of 1 MiB, 4 MiB and 256 KiB")
    return figure


def compression() -> Figure:
    """What examples/compress_digits.py comes to: loss against size, round by round."""
    with tempfile.TemporaryDirectory() as folder:
        example = Path(__file__).parents[2] / "examples/compress_digits.py"
        command = [sys.executable, str(example), "--out", folder]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        curve = json.loads(Path(folder, "size.json").read_text(encoding="utf-8"))
    figure = Figure(figsize=(WIDTH_IN, 3.2), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    axes.plot(curve["bytes"], curve["loss"], marker="o", color=BLUE)
    axes.set(xlabel="share of the dense model's bytes", ylabel="test loss", xlim=(1.03, 0))
    axes.set_title("the CNN of the tutorial, a point for each round")
    return figure


def partition() -> Figure:
    """What the tutorial's model is predicted to take on links of several rates."""
    return split.draw()


def memory() -> Figure:
    """Live bytes over a step, for each way of the tutorial."""
    return step_memory.draw()


def crossover() -> Figure:
    """Where a parameter server and a ring cross."""
    return crossing.draw()


def _pairs() -> list[dict[str, Any]]:
    """Return what doctors of four ranks, on two names of this machine, find of their pairs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    fixed = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    doctors = [
        subprocess.Popen(
            [sys.executable, "-m", "rdmatensor", "doctor", "--json"],
            env={**os.environ, **fixed, "RANK": rank, "RDMATENSOR_TEST_HOST": f"node{host}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank, host in (("0", 0), ("1", 0), ("2", 1), ("3", 1))
    ]
    said, *_ = [doctor.communicate(timeout=120)[0] for doctor in doctors]
    found = json.loads(said)
    findings = found if isinstance(found, list) else found["findings"]
    return [one for one in findings if one.get("peer") is not None]


def doctor_matrix() -> Figure:
    """What doctors of four ranks on two hosts find, as a table with colours."""
    figure, axes = canvas(4.4)
    for number in range(4):
        name = f"{number} node{number // 2}"
        say(axes, 9, 19 + number * 12, name)
        say(axes, 28 + number * 20, 10, name)
        say(axes, 28 + number * 20, 19 + number * 12, "-", color=GREY)
    for pair in _pairs():
        row, column = int(pair["rank"]), int(pair["peer"])
        text = f"{pair['path']}\n{pair['small_us']:.0f} us  {pair['large_gb_s']:.1f}"
        at = (19 + column * 20, 14 + row * 12, 18, 10)
        box(axes, at, text, colour=GREEN if pair["path"] == "shm" else ORANGE, size=SIZE - 1.5)
    say(axes, 50, 4, "row writes to column: path, us for 8 B, GB/s for 1 MiB", color=GREY)
    say(axes, 50, 65, "From a run on the machine that built this site, as two hosts.", color=GREY)
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "life_of_a_write": life_of_a_write,
    "path_choice": path_choice,
    "layers": layers,
    "slot_states": slot_states,
    "doctor_matrix": doctor_matrix,
    "plan": plan,
    "trace": trace,
    "compression": compression,
    "memory": memory,
    "crossover": crossover,
    "partition": partition,
}


def draw_all(folder: Path) -> None:
    """Draw every picture into a folder, except those that are newer than this file."""
    folder.mkdir(parents=True, exist_ok=True)
    settings: Any = {"svg.fonttype": "path", "svg.hashsalt": "rdmatensor", "font.size": SIZE}
    with mpl.rc_context(settings):
        for name, draw in PICTURES.items():
            path = folder / f"{name}.svg"
            if not path.exists() or path.stat().st_mtime < Path(__file__).stat().st_mtime:
                draw().savefig(path, metadata={"Date": None})
