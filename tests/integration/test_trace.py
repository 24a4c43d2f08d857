"""The trace under torch.distributed: on torch.profiler's time line, and by a setting alone."""

from __future__ import annotations

import json
from pathlib import Path

import jobs
import pytest

SLACK_US = 2000.0  # torch turns its own clock into the wall clock's once


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_transfers_lie_within_the_profilers_ranges(transport: str, tmp_path: Path) -> None:
    # In halves, whatever was measured: messages of a whole tensor would pass for the one that is.
    algorithm = {"shm": "auto", "tcp": "ring"}[transport]
    ranks = jobs.results(
        jobs.run(
            "roles_trace:beside_the_profiler",
            2,
            tmp_path,
            environment={"RDMATENSOR_TRANSPORT": transport, "RDMATENSOR_ALGO": algorithm},
            folder=str(tmp_path),
        )
    )
    for number, rank in enumerate(ranks):
        message = "receive" if number == 1 else "send"
        ours = {event["name"]: event for event in rank["ours"]}
        assert set(ours) == {"all_reduce", message}
        for name, event in ours.items():
            (theirs,) = [
                one for title, one in rank["torch"].items()
                if title.startswith({"receive": "recv"}.get(name, name))
            ]  # fmt: skip
            assert event["args"]["status"] == "RDT_OK"
            assert theirs["ts"] - SLACK_US <= event["ts"]
            assert event["ts"] + event["dur"] <= theirs["ts"] + theirs["dur"] + SLACK_US
        assert ours[message]["args"]["peer"] == 1 - number


def test_a_setting_traces_a_job(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    jobs.results(
        jobs.run(
            "roles_adopt:buckets",
            2,
            tmp_path,
            environment={"RDMATENSOR_TRACE_DIR": str(tmp_path / "traces")},
            mode="views",
        )
    )
    files = list((tmp_path / "traces").iterdir())
    assert len(files) == 2
    for file in files:
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
        assert sum(event["name"] == "all_reduce" for event in events) >= 6
