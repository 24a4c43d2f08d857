"""Debian's Slurm on one node, without systemd: munged, slurmctld and slurmd of this process."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo", "scontrol")
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ctld}
SlurmdPort={slurmd}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=FORCE:4
"""
_UP_S = 30.0


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("", 0))
        return int(held.getsockname()[1])


def missing() -> list[str]:
    """Return what of Slurm is not installed."""
    path = os.environ["PATH"] + ":/usr/sbin"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Start it, and yield the variables by which its commands find it."""
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    conf = folder / "slurm.conf"
    conf.write_text(
        _CONF.format(
            host=host, folder=folder, ctld=_free_port(), slurmd=_free_port(), cpus=os.cpu_count()
        )
    )
    environment = {**os.environ, "SLURM_CONF": str(conf), "PATH": os.environ["PATH"] + ":/usr/sbin"}
    munged = ["munged", "--foreground", "--force", f"--key-file={key}"]
    munged += [f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid"]
    munged += [f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"]
    daemons = [munged, ["slurmctld", "-D"], ["slurmd", "-D", "-N", host]]
    running = []
    try:
        for words in daemons:
            with (folder / f"{words[0]}.out").open("wb") as out:
                running.append(subprocess.Popen(words, env=environment, stdout=out, stderr=out))
            time.sleep(0.5)
        deadline_s = time.monotonic() + _UP_S
        while True:
            state = subprocess.run(
                ["sinfo", "-h", "-o", "%t"], env=environment, capture_output=True, text=True,
                timeout=_UP_S, check=False,
            )  # fmt: skip
            if state.stdout.strip() == "idle":
                break
            logs = {path.name: path.read_text()[-1500:] for path in folder.glob("*.[lo][ou][gt]")}
            assert time.monotonic() < deadline_s, (state, logs)
            time.sleep(0.2)
        yield environment
    finally:
        for daemon in reversed(running):
            daemon.terminate()
        for daemon in running:
            daemon.wait(20)
