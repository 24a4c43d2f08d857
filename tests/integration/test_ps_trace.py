"""Operations of workers and servers in the trace of their contexts."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import ps_clusters
import pytest
import torch

from rdmatensor import errors, ps, trace

PUSHED = 7


def test_a_trace_has_the_operations_and_what_they_waited(transport: str, tmp_path: Path) -> None:
    found: dict[int, list[trace.Event]] = {}
    applied: list[trace.Event] = []

    class Traced(ps.Server):
        def serve(self) -> None:
            trace.start(self._context)
            super().serve()
            applied.extend(trace.events(self._context))

    def main(w: ps.Worker) -> None:
        table = w.table("t", 4, rows=50, rule=ps.Add())
        trace.start(w._context)
        for (ids,) in w.batches([torch.arange(50)], batch_size=25):
            if w.rank == 1:
                time.sleep(0.05)
            table.pull(ids)
            table.push(ids[:PUSHED], torch.ones(PUSHED, 4))
            w.clock()
        with contextlib.suppress(errors.InvalidArgumentError):
            table.pull([50])
        found[w.rank] = [one for one in trace.events(w._context) if one.name.startswith("ps ")]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rdmatensor.ps.cluster.Server", Traced)
        ps_clusters.run(tmp_path, main, workers=2, servers=1, transport=transport, mode="sync")
    names = [one.name for one in found[0]]
    assert names == ["ps call", "ps lease", "ps pull", "ps push", "ps clock", "ps lease"]
    sizes = {one.name: one.len_bytes for one in found[0]}
    assert (sizes["ps pull"], sizes["ps push"]) == (25 * 16, PUSHED * 16)
    assert {one.status for one in found[0] + found[1]} == {"RDT_OK"}
    clocks = [one for rank in (0, 1) for one in found[rank] if one.name == "ps clock"]
    assert clocks[0].end_ns is not None
    assert clocks[0].end_ns >= clocks[1].start_ns, "worker 0 waited for worker 1"
    assert [one.name for one in applied if one.name.startswith("ps ")] == ["ps apply"]
    drawn: list[Any] = trace.chrome_events(found[0], 0, now_ns=time.time_ns())
    titles = {one["args"]["name"] for one in drawn if one["name"] == "thread_name"}
    assert titles == {"rdmatensor parameter server"}
