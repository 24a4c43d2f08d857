"""Training steps in the rig, without one: what is exposed, and which targets are met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_bench_rdma import MIB, in_rig


def test_targets_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models: Any = in_rig("rdma_models", tmp_path, monkeypatch)
    steps_s = {"planned": 2, "copied": 4, "gloo": 5, "grpc_cpp": 3, "variant": 3, "floor": 1}
    found = {who: [models.Turn([step_s * 10**9] * 2, 1.5)] for who, step_s in steps_s.items()}
    about = {"model": "fcn5", "divisor": 16, "parameter_bytes": MIB, "batch": "8x784"}
    rows = models.report(found, about)
    said = capsys.readouterr().out
    assert "1.50 CPU s" in said
    assert "server over gRPC, C++, its step over ours, wanted >= 2: 1.50, NO; compute is 50 %" in (
        said.replace("50%", "50 %")
    )
    copied = "copy variant, its step over ours, wanted >= 1.5: 1.50, yes"
    assert f"{copied}; its own rate beside UCX's was not measured here" in said
    assert "DDP, not adopted, our exposed time over its, wanted <= 0.5: 0.33, yes" in said
    assert "DDP on Gloo, our exposed time over its, wanted <= 0.2: 0.25, NO" in said
    assert (rows[0]["raw_ns"], rows[0]["machines_cpu_s"]) == ([[2 * 10**9] * 2], [1.5])
    by_plan = models.report({**found, "planned_floor": [models.Turn([3 * 10**8], 1.5)]}, about)
    exposed = [[row["exposed_ns"] for row in of[:2]] for of in (rows, by_plan)]
    assert exposed == [[10**9, 3 * 10**9], [17 * 10**8, 3 * 10**9]]  # each beyond its own floor
    (first,) = models.rows_of({"planned": [], "gloo": found["gloo"]}, about)
    assert (first["contestant"], first["raw_ns"]) == ("DDP on Gloo", [[5 * 10**9] * 2])
    found["grpc_cpp"] = [models.Turn([4 * 10**9], 1.5)]
    rows += models.report(found, {**about, "model": "gru"})
    lines = models.shares(rows)
    server = "server over gRPC, C++, its step over ours >= 2: held in 1 of 2, wanted 4 of 6"
    assert server in lines
    assert "copy variant, its step over ours >= 1.5: held in 2 of 2, wanted 6 of 6" in lines
