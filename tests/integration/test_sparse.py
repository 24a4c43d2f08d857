"""Sparse all_reduce: what a member says is not believed."""

from __future__ import annotations

from pathlib import Path

import jobs


def test_entries_that_lead_outside_are_refused(tmp_path: Path) -> None:
    seen, _ = jobs.results(jobs.run("roles_sparse:lies", 2, tmp_path))

    assert seen.pop("honest") == "[1.0, 1.0, 0.0, 0.0]"
    assert len(seen) == 6
    for name, text in seen.items():
        assert text.startswith("DistBackendError: rdmatensor:all_reduce: rank 1 sent"), (name, text)
        what = "indices" if name in ("below", "above", "far") else "entries"
        assert what in text, (name, text)
