"""Checkpoints: what they have, that steps go on meanwhile, and what is refused."""

from __future__ import annotations

import json
import random
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ps_clusters
import pytest
import torch

from rdmatensor import errors, ps

ROWS, DIM = 3000, 3
RULES = {
    "momentum": ps.SGD(0.1, momentum=0.9),
    "adagrad": ps.Adagrad(0.1),
    "row adagrad": ps.RowAdagrad(0.1),
    "adam": ps.Adam(0.01),
}


def step_of(w: ps.Worker, table: ps.Table, step: int) -> None:
    """End step number `step`, the same in each run."""
    draw = torch.Generator().manual_seed(1000 * step + w.rank)
    ids = torch.randint(0, ROWS, (200,), generator=draw)
    table.push(ids, torch.randn(200, DIM, generator=draw))


def model_of() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(150, 151), torch.nn.Linear(151, 3))


def train(
    folder: Path,
    steps: int,
    *,
    rule: str = "adagrad",
    servers: int,
    saves: dict[int, Callable[[ps.Worker], Any]] | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Train from a worker's first step to `steps`; worker 0 calls saves[step] after that step."""

    def main(w: ps.Worker) -> list[torch.Tensor]:
        table = w.table("t", DIM, rows=ROWS, rule=RULES[rule], init=ps.normal())
        model = model_of()
        dense = w.dense(model, ps.Adam(0.01, lazy=False), split_bytes=4096)
        for step in range(w.steps, steps):
            step_of(w, table, step)
            draw = torch.Generator().manual_seed(step * 10 + w.rank)
            model(torch.randn(4, 150, generator=draw)).square().sum().backward()
            dense.step()
            if saves is not None and w.rank == 0 and step + 1 in saves:
                saves[step + 1](w)
        return [table.pull(range(ROWS)), *(one.detach().clone() for one in model.parameters())]

    results, _ = ps_clusters.run(folder, main, workers=2, servers=servers, **options)
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)
    return results[0]


def equal(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_a_restored_run_goes_on_with_the_same_bits(rule: str, tmp_path: Path) -> None:
    """Also on another number of servers, from a full checkpoint and from an increment."""
    saved = tmp_path / "saved"
    saves = {4: lambda w: w.save(saved)}
    whole = train(tmp_path / "a", 9, rule=rule, servers=2, saves=saves)
    for servers in (1, 2, 3):
        again = train(tmp_path / f"b{servers}", 9, rule=rule, servers=servers, restore=saved)
        assert equal(whole, again), servers


def test_an_increment_has_what_changed_since_the_full_one(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saves = {
        3: lambda w: w.save(saved).wait(),
        5: lambda w: w.save(saved, incremental=True).wait(),
        6: lambda w: w.save(saved, incremental=True).wait(),
    }
    whole = train(tmp_path / "a", 8, servers=2, saves=saves)
    assert ps.Checkpoint(saved).clocks == [6, 6]
    sizes = sorted(one.stat().st_size for one in saved.glob("*.part"))
    assert len(sizes) == 4, "two files of the full one, two of the last increment"
    for servers in (1, 3):
        assert equal(whole, train(tmp_path / f"b{servers}", 8, servers=servers, restore=saved))


def test_a_checkpoint_is_of_one_moment_while_steps_go_on(tmp_path: Path) -> None:
    """In "async": each step adds 1 to a row on each server; all rows of a worker are equal."""
    saved = [tmp_path / f"saved{i}" for i in range(6)]
    rows = 1024

    def main(w: ps.Worker) -> None:
        table = w.table("t", w.workers, rows=rows, rule=ps.Add())
        draw = random.Random(w.rank)
        mine = torch.zeros(rows, w.workers)
        mine[:, w.rank] = 1
        savings = []
        for step in range(120):
            time.sleep(draw.random() * 0.001)
            table.push(range(rows), mine)
            w.clock()
            if w.rank == 0 and step % 20 == 10:
                if savings:
                    savings[-1].wait()
                savings.append(w.save(saved[len(savings)]))

    ps_clusters.run(tmp_path / "run", main, workers=3, servers=3, mode="async")
    clocks = []
    for folder in saved:
        checkpoint = ps.Checkpoint(folder)
        values = checkpoint.table("t")["values"]
        assert torch.equal(values, torch.tensor(checkpoint.clocks).float().expand(rows, 3))
        clocks.append(checkpoint.clocks)
    assert len({one[1] - one[0] for one in clocks}) > 1, "the workers went on independently"


@pytest.mark.parametrize("mode", ["sync", "async", ps.SSP(1)])
def test_each_sample_counts_once_over_a_restart(mode: ps.Mode, tmp_path: Path) -> None:
    saved, samples = tmp_path / "saved", 240

    def counts(w: ps.Worker, ends_after: int | None) -> torch.Tensor:
        table = w.table("t", 1, rows=samples, rule=ps.Add())
        for step, (ids,) in enumerate(w.batches([torch.arange(samples)], batch_size=4, epochs=2)):
            table.push(ids, torch.ones(len(ids), 1))
            if step == ends_after and w.rank == 0:
                w.save(saved).wait()  # within a step: its batch is not done
            w.clock()
        return table.pull(range(samples))

    for servers, restore, ends_after in ((2, None, 10), (3, saved, None), (1, saved, None)):
        results, _ = ps_clusters.run(
            tmp_path / f"run{servers}",
            lambda w, ends_after=ends_after: counts(w, ends_after),
            workers=3,
            servers=servers,
            mode=mode,
            restore=restore,
        )
        assert all((one == 2).all() for one in results[-1:])


def small(w: ps.Worker, saved: Path) -> None:
    table = w.table("t", DIM, rows=ROWS, rule=ps.Adagrad(0.1), init=ps.normal())
    table.push(range(ROWS), torch.ones(ROWS, DIM))
    w.clock()
    w.save(saved).wait()


def test_a_flipped_bit_is_refused_with_its_partition(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    ps_clusters.run(tmp_path / "run", lambda w: small(w, saved), workers=1, servers=2)
    checkpoint = ps.Checkpoint(saved)
    sections = checkpoint._sections("rows", "t")
    place, section = next(one for one in sections if one[1].number == 77)
    data = bytearray(place.read_bytes())
    data[section.offset + 11] ^= 0x10
    place.write_bytes(data)
    with pytest.raises(errors.CorruptedDataError, match="partition 77 of table 't' is damaged"):
        checkpoint.table("t")
    for servers in (1, 2):
        with pytest.raises(errors.CorruptedDataError, match="partition 77 of table 't'"):
            ps_clusters.run(
                tmp_path / f"run{servers}",
                lambda w: w.table("t", DIM, rows=ROWS, rule=ps.Adagrad(0.1), init=ps.normal()),
                workers=1,
                servers=servers,
                restore=saved,
            )


def test_descriptions_that_are_damaged_or_of_another_version_are_refused(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    ps_clusters.run(tmp_path / "run", lambda w: small(w, saved), workers=1, servers=1)
    file = saved / "checkpoint.json"
    text = file.read_bytes()

    def fails(kind: type[Exception], match: str) -> None:
        with pytest.raises(kind, match=match):
            ps.Checkpoint(saved)
        with pytest.raises(errors.RdmaTensorError, match=match):
            ps_clusters.run(
                tmp_path / str(time.monotonic_ns()), lambda _: None,
                workers=1, servers=1, restore=saved,
            )  # fmt: skip

    file.write_bytes(text.replace(b'"clocks": [1]', b'"clocks": [2]'))
    fails(errors.CorruptedDataError, "damaged")
    file.write_bytes(text[:50])
    fails(errors.CorruptedDataError, "damaged")
    later = json.dumps({**json.loads(text.partition(b"\n")[0]), "version": 2}).encode()
    file.write_bytes(later + b"\n%08x\n" % zlib.crc32(later))
    fails(errors.VersionMismatchError, "version 2 of the format.*reads version 1")
    file.unlink()
    fails(errors.InvalidArgumentError, "has no checkpoint")


def test_tables_that_differ_from_the_saved_ones_are_refused(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    ps_clusters.run(tmp_path / "run", lambda w: small(w, saved), workers=1, servers=1)
    for wrong in ({"dim": DIM + 1}, {"rule": ps.Adam()}, {"rows": ROWS + 1}):
        options: dict[str, Any] = {"dim": DIM, "rows": ROWS, "rule": ps.Adagrad(0.1), **wrong}
        with pytest.raises(errors.MismatchError, match="table 't' was saved as"):
            ps_clusters.run(
                tmp_path / next(iter(wrong)),
                lambda w, options=options: w.table("t", **options, init=ps.normal()),
                workers=1, servers=1, restore=saved,
            )  # fmt: skip


def test_saves_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    def main(w: ps.Worker) -> None:
        w.table("t", DIM, rows=ROWS, rule=ps.Add())
        with pytest.raises(errors.InvalidArgumentError, match="needs a full checkpoint of this"):
            w.save(tmp_path / "saved", incremental=True)
        with pytest.raises(errors.DeviceError, match="file"):
            w.save(tmp_path / "file")
        assert w.clock() == 1, "steps go on"
        w.save(tmp_path / "saved").wait()
        with pytest.raises(errors.InvalidArgumentError, match=r"the last one is .*saved"):
            w.save(tmp_path / "other", incremental=True)

    ps_clusters.run(tmp_path / "run", main, workers=1, servers=2)


def test_named_tensors_are_in_a_checkpoint(tmp_path: Path) -> None:
    saved, names = tmp_path / "saved", [f"name {i}" for i in range(20)]

    def first(w: ps.Worker) -> None:
        for i, name in enumerate(names):
            w.kv.put(name, torch.full((i, 3), float(i)))
        saving = w.save(saved)
        w.kv.add(names[5], torch.ones(5, 3))
        saving.wait()

    def second(w: ps.Worker) -> list[torch.Tensor | None]:
        return [w.kv.get(name) for name in names]

    ps_clusters.run(tmp_path / "a", first, workers=1, servers=2)
    again, _ = ps_clusters.run(tmp_path / "b", second, workers=1, servers=3, restore=saved)
    for i, value in enumerate(again[0]):
        assert torch.equal(value, torch.full((i, 3), float(i)))
    assert torch.equal(ps.Checkpoint(saved).value(names[5]), torch.full((5, 3), 5.0))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_exports_have_all_rows_and_parameters(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    saved = tmp_path / "saved"
    got = train(tmp_path / "a", 3, servers=2, saves={3: lambda w: w.save(saved).wait()})
    checkpoint = ps.Checkpoint(saved)
    checkpoint.to_safetensors(tmp_path / "rows.safetensors")
    tensors = safetensors.load_file(tmp_path / "rows.safetensors")
    assert torch.equal(tensors["t/values"], got[0])
    assert tensors["t/state"].shape == (ROWS, DIM)
    names = [name for name, _ in model_of().named_parameters()]
    for name, value in zip(names, got[1:], strict=True):
        assert torch.equal(tensors[f"dense/{name}"], value)
        assert tensors[f"dense/state 2/{name}"].shape == value.shape
    checkpoint.to_dcp(tmp_path / "dcp")
    loaded = {name: torch.zeros_like(value) for name, value in tensors.items()}
    torch.distributed.checkpoint.load(loaded, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert all(torch.equal(loaded[name], value) for name, value in tensors.items())
