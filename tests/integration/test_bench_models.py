"""Every peer of `rdmatensor bench models` trains, and arrives at the same parameters."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import weakref
from pathlib import Path
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number
from bench.suite import models, peers
from bench.suite.models import worker_turns
from bench.workers import copy_variant
from bench.workers.paper_models import MODELS
from bench.workers.trainers import TRAINERS, Job
from rdmatensor._native.ffi import ffi

pytestmark = [pytest.mark.slow, pytest.mark.turns()]

ROOT = Path(__file__).resolve().parents[2]
STEPS, BLOCKS = 2, 3
SIZES = {64: 253_480, 16: 1_603_624, 4: 15_851_560}  # by the divisor of widths


def _train(
    tmp_path: Path,
    turns: list[tuple[str, str]],
    ranks: int = 2,
    model: str = "fcn5",
    divisor: int = 64,
    **more: object,
) -> tuple[Record, ...]:
    about, *found = run_ranks(
        "models",
        1,
        {
            "model": model,
            "divisor": divisor,
            "steps": STEPS,
            "blocks": BLOCKS,
            "ranks": ranks,
            "kept": str(tmp_path),
            "patience": 40.0,
            "turns": turns,
            **more,
        },
        timeout_s=140.0,
    )
    assert model != "fcn5" or about["parameter_bytes"] == SIZES[divisor]
    return tuple(found)


def _blocks_of(printed: Record) -> list[list[int]]:
    return cast("list[list[int]]", printed["blocks_ns"])


def test_the_paper_s_models_have_its_sizes() -> None:
    """MiB of parameters in float32, as paper_models.py recalls them; nothing is allocated."""
    with torch.device("meta"):
        made = {name: MODELS[name].make(1) for name in models.OF_THE_PAPER}
    sizes = {name: sum(p.nbytes for p in model.parameters()) for name, model in made.items()}
    assert {name: round(size / 2**20) for name, size in sizes.items()} == {
        "alexnet": 176,
        "inception_v3": 93,
        "vgg16": 512,
        "lstm": 36,
        "gru": 28,
        "fcn5": 204,
    }


@pytest.mark.timeout(150)
def test_all_peers_train_a_small_model(tmp_path: Path) -> None:
    present, _ = peers.choose("models", None)
    assert {"copies", "gloo", "floor"} <= {peer.name for peer in present}
    turns = worker_turns(("shm",), {peer.name for peer in present})
    found = _train(tmp_path, turns)
    has_cpp = "grpc-cpp" in {peer.name for peer in present}
    wanted = [who for who in models.TRAINERS if who != "grpc_cpp" or has_cpp]
    assert [one["name"] for one in found] == wanted
    for one in found:
        assert "failed" not in one
        assert list(map(len, _blocks_of(one))) == [STEPS] * BLOCKS
        assert one["beside"] == len(found) - 1  # there is room for all of these
        assert number(one, "cpu_ns") > 0
        # Whoever sends nothing arrives elsewhere: the comparison can tell.
        is_floor = one["name"] in ("floor", "planned_floor")
        assert number(one, "distance") > 1e-3 if is_floor else one["distance"] == 0.0
        parts = cast("dict[str, float]", one["parts"])
        is_held = one["name"] == "planned"
        assert ("summing_s" in parts) == (is_held or one["name"] in ("adopted", "copied"))
        assert ("posting_s" in parts) == is_held
        assert parts["page_faults"] >= 0  # everybody's
        assert 0 <= parts.get("ending_s", 0.0) < max(map(max, _blocks_of(one))) / 1e9


@pytest.mark.timeout(150)
def test_three_ranks_over_tcp(tmp_path: Path) -> None:
    turns = [("planned", "tcp"), ("variant", "tcp"), ("gloo", "")]
    for one in _train(tmp_path, turns, ranks=3):
        assert "failed" not in one
        assert number(one, "distance") < 1e-3


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.timeout(150)
def test_a_model_that_amplifies_a_last_bit_is_the_same_for_all(tmp_path: Path, ranks: int) -> None:
    """Of inception_v3 one rounding more in a step is half of what it moves, two steps later."""
    present, _ = peers.choose("models", ["grpc-cpp"])  # in C++ where it is built
    turns = [("adopted", "shm"), *([("grpc_cpp", "")] if present else [])]
    for one in _train(tmp_path, turns, ranks=ranks, model="inception_v3", divisor=8):
        assert "failed" not in one
        limit = 0.0 if ranks == 2 else 1e-5  # of three, sums have orders of their own
        assert number(one, "distance") <= limit


@pytest.mark.timeout(150)
def test_losses_by_step_are_those_of_gloo(tmp_path: Path) -> None:
    turns = [("planned", "shm"), ("adopted", "tcp"), ("gloo", "")]
    for one in _train(tmp_path, turns, curve=True, rate=0.5, steps=12):
        assert "failed" not in one
        assert one["off"] == 0.0  # of two ranks, in whatever order they are summed
        losses = one["losses"]
        assert isinstance(losses, list)
        assert len(losses) == 12
        assert losses[-1] < losses[0]


@pytest.mark.timeout(60)
def test_a_trainer_that_is_closed_holds_no_group(tmp_path: Path) -> None:
    """Else the group's last holder may be one that waits with Python's lock held: it hangs."""
    spare = tmp_path / "none"
    job = Job("gloo", "fcn5", 64, 1, 1, plan=spare, folder=spare, patience_s=40.0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        trainer = TRAINERS["gloo"](job, 0)
        trainer.step(0)
        parallel = weakref.ref(trainer.called)
        assert isinstance(parallel(), DistributedDataParallel)
        trainer.close()
        assert parallel() is None
    finally:
        dist.destroy_process_group()


class Loop:
    """Both ends of a copy variant's ring in this process: what is posted can be got."""

    def __init__(self, piece_bytes: int) -> None:
        self.messages: list[ctypes.Array[ctypes.c_char]] = []
        handle, number = ctypes.c_void_p, ctypes.c_uint64
        waits = ctypes.CFUNCTYPE(ctypes.c_int, handle, number, handle, handle)
        given = ctypes.CFUNCTYPE(ctypes.c_int, handle, handle, handle, handle)
        released = ctypes.CFUNCTYPE(ctypes.c_int, handle, handle)
        self._kept = (
            waits(self._get),
            released(lambda *_: 0),
            waits(self._buffer),
            given(self._post),
            ctypes.CFUNCTYPE(None, handle)(lambda _: None),
        )
        names = [ctypes.cast(one, handle).value for one in self._kept]
        self._calls, self._slots = copy_variant._Calls(*names), (handle * 1)(1)
        self.end = object.__new__(copy_variant.End)
        self.end._ring = copy_variant._Ring(
            ctypes.pointer(self._calls), self._slots, 1, piece_bytes, 0, 0
        )

    def _get(self, _slot: int, _timeout: int, view: int, _err: int) -> int:
        seen = ffi.cast("struct rdt_slot_view *", view)
        self._got = self.messages.pop(0)
        seen.addr = ffi.cast("void *", ctypes.addressof(self._got))
        seen.len_bytes = len(self._got)
        return 0

    def _buffer(self, _tx: int, _timeout: int, out: int, _err: int) -> int:
        self._filled = ctypes.create_string_buffer(1 << 16)
        ffi.cast("void **", out)[0] = ffi.cast("void *", ctypes.addressof(self._filled))
        return 0

    def _post(self, _tx: int, dims: int, _out: int, _err: int) -> int:
        size = int(ffi.cast("uint64_t *", dims)[0])
        self.messages.append(ctypes.create_string_buffer(self._filled.raw[:size], size))
        return 0


@pytest.mark.timeout(60)
def test_the_copy_variant_refuses_what_it_has_no_place_for() -> None:
    loop = Loop(256)
    sent = [torch.randn(3, 5), torch.randn(1000), torch.empty(0), torch.randn(7)]
    table, due = copy_variant.table_of(sent), sum(one.nbytes for one in sent)
    loop.end.send(table, [1, 0, 2, 3])
    assert len(loop.messages) == 17  # the 16th has room for one more tensor
    kept = list(loop.messages)
    got = [torch.zeros_like(one) for one in sent]
    loop.end.receive(copy_variant.table_of(got), due)
    assert all(map(torch.equal, sent, got))
    other = [torch.zeros(15), *got[1:]]
    for wrong, why in (
        (other, "another shape: tensor 0"),
        (got[:1], "not known: tensor 1"),
    ):
        loop.messages[:] = kept
        with pytest.raises(RuntimeError, match=why):
            loop.end.receive(copy_variant.table_of(wrong), due)
    for cut, why in ((64, "ends in its descriptions"), (192, "ends in its values: tensor 1")):
        loop.messages[:] = [ctypes.create_string_buffer(kept[0].raw[:cut], cut)]
        with pytest.raises(RuntimeError, match=why):
            loop.end.receive(copy_variant.table_of(got), due)


@pytest.mark.timeout(300)
def test_a_plan_holds_no_second_copy_of_the_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By how much more a rank holds for each byte more of parameters: itself, and a gradient."""
    for limit in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.setenv(limit, "131072")  # what is free goes back, and does not count
    turns = [("planned", "shm"), ("copied", "shm")]
    more = 2 * (SIZES[4] - SIZES[16])  # of both ranks
    found = []
    for trial in range(3):  # what malloc keeps of a step adds to some: the least is what is held
        folder = tmp_path / str(trial)
        folder.mkdir()
        small, large = (_train(folder, turns, divisor=divisor) for divisor in (16, 4))
        found.append(
            [
                (number(b, "memory_bytes") - number(a, "memory_bytes")) / more
                for a, b in zip(small, large, strict=True)
            ]
        )
    planned, copied = (min(values) for values in zip(*found, strict=True))
    assert planned < 2.4, found
    assert copied > 2.6, found  # DDP's buckets next to them: a second copy shows
    arena = (number(large[0], "arena_bytes") - number(small[0], "arena_bytes")) / more
    assert arena == pytest.approx(1.0, abs=0.15)


@pytest.mark.timeout(150)
def test_a_peer_that_fails_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    broken, gloo = _train(tmp_path, [("planned", "no such path"), ("gloo", "")])
    assert str(broken["failed"]).startswith("fcn5, planned: a rank left before its time: ")
    assert "a process ended with status 1" in str(broken["failed"])
    assert "failed" not in gloo


@pytest.mark.timeout(150)
def test_the_command_measures_one_model() -> None:
    words = ["--quick", "--models", "gru", "--transport", "shm", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "rdmatensor", "bench", "models", *words, "--peers", "floor"],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=False,
        timeout=140,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith("gru 2.5 MiB, widths / 4")]
    assert len(rows) == 5 + 5, done.stdout  # and the parts of each
