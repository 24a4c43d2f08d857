"""`rdmatensor horovodrun`, horovod.run() and the name `horovod`."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from rdmatensor.horovod.runner.call import run

pytestmark = pytest.mark.timeout(120)
LAUNCH = [sys.executable, "-m", "rdmatensor", "horovodrun"]

ENVIRONMENT = """
import os
print(" ".join(os.environ[name] for name in (
    "HOROVOD_HOSTNAME", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK",
    "LOCAL_WORLD_SIZE")))
"""
SUM = """
import torch
import horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum, name="sum")
print(f"{hvd.rank()} {hvd.size()} {int(total)} {hvd.__name__}")
hvd.shutdown()
"""


def launch(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LAUNCH, *map(str, words)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def program(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    return path


def test_ranks_know_their_places_and_lines_their_ranks(tmp_path: Path) -> None:
    path = program(tmp_path, ENVIRONMENT)
    done = launch("-np", 2, "-H", "localhost:2", sys.executable, path, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[0]<stdout>:localhost 0 2 0 2 0 1 0 2 0 2",
        "[1]<stdout>:localhost 1 2 1 2 0 1 1 2 1 2",
    ]


def test_ranks_sum_under_the_name_horovod(tmp_path: Path) -> None:
    done = launch("-np", 3, sys.executable, program(tmp_path, SUM), cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}]<stdout>:{rank} 3 6 rdmatensor.horovod.torch" for rank in range(3)
    ]
    assert done.stderr.count("`import horovod` is rdmatensor.horovod here") == 1


def test_a_failure_ends_the_others_and_is_named(tmp_path: Path) -> None:
    text = """
        import os, subprocess, sys, time
        if os.environ["RANK"] == "1":
            sys.exit(7)
        subprocess.Popen(["sleep", "100"])
        time.sleep(100)
    """
    done = launch("-np", 2, sys.executable, program(tmp_path, text), cwd=tmp_path, MARK="failure")

    assert done.returncode == 7
    assert "rank 1 on localhost exited with status 7; ending the others" in done.stderr
    assert _marked("MARK=failure") == []


def test_a_killed_rank_is_named_by_its_signal(tmp_path: Path) -> None:
    text = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = launch("-np", 1, sys.executable, program(tmp_path, text), cwd=tmp_path)

    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 0 on localhost was killed by SIGKILL" in done.stderr


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_the_launcher(tmp_path: Path, by: signal.Signals) -> None:
    text = """
        import os, signal, subprocess, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # stubborn: it takes the SIGKILL
        subprocess.Popen(["sleep", "100"])
        open(f"up{os.environ['RANK']}", "w").close()
        time.sleep(100)
    """
    mark = f"MARK={tmp_path}"
    process = subprocess.Popen(
        [*LAUNCH, "-np", "2", sys.executable, str(program(tmp_path, text))],
        cwd=tmp_path, env={**os.environ, "MARK": str(tmp_path)}, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )  # fmt: skip
    deadline_s = time.monotonic() + 60
    while len(list(tmp_path.glob("up*"))) < 2 and time.monotonic() < deadline_s:
        assert process.poll() is None
        time.sleep(0.05)
    assert len(_marked(mark)) >= 5

    process.send_signal(by)
    process.communicate(timeout=30)

    assert process.returncode == (128 + by if by != signal.SIGKILL else -by)
    deadline_s = time.monotonic() + 20
    while _marked(mark) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert _marked(mark) == []


def _marked(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().decode(errors="replace")
            is_over = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if mark in variables.split("\0") and not is_over:
            found.append(int(folder.name))
    return found


# ---- other hosts ---------------------------------------------------------------------------------

FAKE_SSH = """#!/bin/sh
# Records its words, then runs the last one with a bare environment, as a daemon's shell does.
for word; do last="$word"; done
printf '%s\\n' "$*" >> "$FAKE_SSH_LOG"
exec env -i PATH="$PATH" sh -c "$last"
"""


@pytest.fixture
def fake_ssh(tmp_path: Path) -> dict[str, str]:
    script = tmp_path / "bin" / "ssh"
    script.parent.mkdir()
    script.write_text(FAKE_SSH)
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {
        "PATH": f"{script.parent}:{os.environ['PATH']}",
        "FAKE_SSH_LOG": str(tmp_path / "ssh.log"),
        "RDMATENSOR_SECRET": "c0ffee" * 6,
        "SPACED": "two words; and 'quotes' $HOME",
    }


def test_other_hosts_get_the_environment_by_standard_input(
    tmp_path: Path, fake_ssh: dict[str, str]
) -> None:
    text = "import os; print(os.getcwd(), os.environ['SPACED'], os.environ['RDMATENSOR_SECRET'])"
    text += ENVIRONMENT
    done = launch(
        *("-np", 3, "-H", "127.0.0.2:2,127.0.0.3:2", "-p", 2222, "-i", "key", sys.executable),
        program(tmp_path, text),
        cwd=tmp_path,
        **fake_ssh,
    )

    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "127" in line) == [
        "[0]<stdout>:127.0.0.2 0 3 0 2 0 2 0 3 0 2",
        "[1]<stdout>:127.0.0.2 1 3 1 2 0 1 1 3 1 2",
        "[2]<stdout>:127.0.0.3 2 3 0 1 1 2 2 3 0 1",
    ]
    said = f"{tmp_path} {fake_ssh['SPACED']} {fake_ssh['RDMATENSOR_SECRET']}"
    assert done.stdout.count(said) == 3
    words = Path(fake_ssh["FAKE_SSH_LOG"]).read_text()
    assert words.count("-p 2222 -i key 127.0.0.2 sh -c") == 2
    assert fake_ssh["RDMATENSOR_SECRET"] not in words
    assert "SPACED" not in words


def test_ranks_of_other_hosts_meet(tmp_path: Path, fake_ssh: dict[str, str]) -> None:
    done = launch(
        *("-np", 2, "-H", "localhost:1,127.0.0.2:1", sys.executable, program(tmp_path, SUM)),
        cwd=tmp_path,
        **fake_ssh,
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"\d 2 3", done.stdout)


# ---- options -------------------------------------------------------------------------------------


def test_output_goes_to_files_too_with_the_time(tmp_path: Path) -> None:
    done = launch(
        *("-np", 1, "--output-filename", "logs", "--prefix-output-with-timestamp", "--mpi"),
        *("sh", "-c", "echo out; printf err >&2"),
        cwd=tmp_path,
    )
    assert done.returncode == 0
    assert re.fullmatch(r"\w{3} \w{3} .* \d{4}\[0\]<stdout>:out\n", done.stdout)
    assert (tmp_path / "logs/rank.0/stdout").read_text() == "out\n"
    assert (tmp_path / "logs/rank.0/stderr").read_text() == "err\n"
    assert "no effect here: --mpi" in done.stderr


def test_a_hostfile_and_a_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# two\nlocalhost slots=2\n")
    (tmp_path / "config.yaml").write_text(
        "stall_check:\n  enabled: false\n  warning_time_seconds: 5\n"
        "timeline:\n  filename: from-file\nparams:\n  cycle_time_ms: 1\n"
    )
    names = "HOROVOD_STALL_CHECK_DISABLE HOROVOD_STALL_CHECK_TIME_SECONDS HOROVOD_TIMELINE"
    echo = "echo " + " ".join(f"${name}" for name in names.split())
    done = launch(
        *("-np", 2, "-hostfile", "hosts", "--config-file", "config.yaml"),
        *("--timeline-filename", "given", "sh", "-c", echo),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:1 5 given" for rank in (0, 1)]
    assert "no effect here: params.cycle_time_ms" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-np", 3, "-H", "localhost:2", "true"), "the hosts have 2 slots"),
        (("-np", 1, "-H", "localhost", "true"), "expected NAME:SLOTS"),
        (("-np", 1, "-H", "a:1,a:1", "true"), "host a is named twice"),
        (("-np", 1, "--config-file", "none", "true"), "No such file"),
        (("-np", 1), "name the command to run"),
        (("true",), "-np N is missing"),
        (("-np", 3, "--min-np", 4, "true"), "must not decrease"),
        (("-np", 3, "--max-np", 4, "true"), "--max-np needs --min-np"),
    ],
)
def test_misuse_is_explained(tmp_path: Path, words: tuple[object, ...], said: str) -> None:
    done = launch(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


def test_check_build(tmp_path: Path) -> None:
    done = launch("--check-build", cwd=tmp_path)
    assert done.returncode == 0
    assert "[X] PyTorch" in done.stdout
    assert "[ ] MPI" in done.stdout


# ---- the name ------------------------------------------------------------------------------------


def _python(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env={**os.environ, **environment},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_real_horovod_stays_the_real_one(tmp_path: Path) -> None:
    package = tmp_path / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text("NAME = 'real'\n")
    path = program(
        tmp_path,
        """
        import horovod
        print(horovod.NAME)
        try:
            import horovod.torch
        except ModuleNotFoundError as error:
            print(error)
        """,
    )
    for words in (
        ("-m", "rdmatensor.horovod", path),
        ("-m", "rdmatensor", "horovodrun", "-np", 1, sys.executable, path),
    ):
        done = _python(*words, cwd=tmp_path, PYTHONPATH=str(tmp_path))
        assert done.returncode == 0, done.stderr
        said = [line.removeprefix("[0]<stdout>:") for line in done.stdout.splitlines()]
        assert said == ["real", "No module named 'horovod.torch'"]
        assert "rdmatensor.horovod here" not in done.stderr


def test_what_is_missing_says_so(tmp_path: Path) -> None:
    path = program(tmp_path, "import horovod.tensorflow.keras as hvd\n")
    done = _python("-m", "rdmatensor.horovod", path, cwd=tmp_path)
    assert done.returncode == 1
    assert "rdmatensor has no horovod.tensorflow: use Keras 3 on torch" in done.stderr


def test_another_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('other', flush=True)\n")
    path = program(tmp_path, "import horovod; print(horovod.__name__)")
    done = launch("-np", 1, sys.executable, path, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("[0]")]
    assert said == ["[0]<stdout>:other", "[0]<stdout>:rdmatensor.horovod"]


def test_without_the_launcher_horovod_is_not_there(tmp_path: Path) -> None:
    done = _python("-c", "import horovod", cwd=tmp_path)
    assert "No module named 'horovod'" in done.stderr


# ---- horovod.run() -------------------------------------------------------------------------------


def test_run_returns_results_in_rank_order() -> None:
    scale = 10

    def work(offset: int) -> int:
        import torch

        import rdmatensor.horovod.torch as hvd

        hvd.init()
        total = int(hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum, name="x"))
        return scale * hvd.rank() + total + offset

    assert run(work, args=(100,), np=3) == [103, 113, 123]


def test_run_raises_where_a_rank_fails(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise LookupError("no such row")

    with pytest.raises(RuntimeError, match="a rank ended with status 1"):
        run(fail, num_proc=1)
    assert "LookupError: no such row" in capfd.readouterr().err


# ---- other launchers -----------------------------------------------------------------------------


def test_init_under_torchrun(tmp_path: Path) -> None:
    path = program(tmp_path, SUM.replace("horovod.torch as", "rdmatensor.horovod.torch as"))
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, path)
    done = _python(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("0 2 3", "1 2 3"):  # the ranks may write into one line
        assert words in done.stdout


@pytest.mark.parametrize("kind", ["srun", "mpirun"])
def test_init_with_the_variables_of(tmp_path: Path, kind: str) -> None:
    path = program(tmp_path, SUM.replace("horovod.torch as", "rdmatensor.horovod.torch as"))
    of_kind = {
        "srun": lambda rank: {
            "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0",
            "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost",
        },
        "mpirun": lambda rank: {
            "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": f"prterun-{os.getpid()}@1",
        },
    }[kind]  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, path], env={**os.environ, **of_kind(rank)}, stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [one.communicate(timeout=60)[0][:5] for one in ranks]
    assert said == ["0 2 3", "1 2 3"]
