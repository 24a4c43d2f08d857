"""`rdmatensor horovodrun`: options, hosts, and what is started."""

from __future__ import annotations

import argparse
import importlib.util
import signal
from collections.abc import Sequence

from rdmatensor.horovod.runner import arguments, elastic, hosts
from rdmatensor.horovod.runner.launch import SIGNALED, Launch, launch, say
from rdmatensor.horovod.runner.workers import Output, Ssh


def check_build() -> str:
    """Return what this build has, in the form of Horovod's launcher."""
    has_torch = importlib.util.find_spec("torch") is not None
    has_keras = has_torch and importlib.util.find_spec("keras") is not None
    marks = {
        "Available Frameworks": {
            "TensorFlow": False,
            "PyTorch": has_torch,
            "MXNet": False,
            "Keras on PyTorch": has_keras,
        },
        "Available Controllers": {"MPI": False, "rdmatensor (in place of Gloo)": has_torch},
        "Available Tensor Operations": {
            "NCCL": False, "DDL": False, "CCL": False, "MPI": False,
            "rdmatensor (in place of Gloo)": has_torch,
        },
    }  # fmt: skip
    lines = ["rdmatensor.horovod:"]
    for title, entries in marks.items():
        lines += ["", f"{title}:"]
        lines += [f"    [{'X' if has else ' '}] {name}" for name, has in entries.items()]
    return "\n".join(lines)


def hosts_of(given: object) -> list[hosts.Host]:
    """Return the hosts that the options name.

    Raises:
        ValueError: They are written wrongly.
    """
    named, file = getattr(given, "hosts", None), getattr(given, "hostfile", None)
    if file is not None:
        return hosts.parse_hostfile(file)
    if named is not None:
        return hosts.parse_hosts(named)
    return [hosts.Host("localhost", getattr(given, "np", 1))]


def _launch_elastic(job: Launch, given: argparse.Namespace, found: list[hosts.Host] | None) -> int:
    cooldown = given.blacklist_cooldown_range
    limits = elastic.Limits(
        given.min_np,
        given.max_np,
        float(given.elastic_timeout or 600),
        given.reset_limit,
        None if cooldown is None else float(cooldown[0]),
    )
    if found is None:
        return elastic.Elastic(
            job, limits, elastic.discover_by(given.host_discovery_script, given.slots)
        ).run()
    return elastic.Elastic(job, limits, lambda: found, is_fixed=True).run()


def main(words: Sequence[str]) -> int:
    """Run the command line.

    Args:
        words: Options, then the command.

    Returns:
        The exit status: that of the first rank that failed; 2 for misuse.
    """
    given = arguments.parse(words)
    if given.version:
        from rdmatensor._build_stamp import VERSION

        print(VERSION)
        return 0
    if given.check_build:
        print(check_build())
        return 0
    if given.ignored:
        say(f"no effect here: {', '.join(given.ignored)}")
    ssh = Ssh(given.ssh_port, given.ssh_identity_file, given.start_timeout or 30)
    most = given.max_np or given.np
    output = Output(
        has_timestamp=given.prefix_output_with_timestamp,
        folder=given.output_filename,
        width=len(str(most - 1)),
    )
    try:
        found = None if given.host_discovery_script else hosts_of(given)
        slots = [] if given.is_elastic or found is None else hosts.assign(found, given.np)
    except (OSError, ValueError) as error:
        say(str(error))
        return 2
    job = Launch(given.command, slots, arguments.variables_of(given), ssh, output, given.verbose)
    try:
        return _launch_elastic(job, given, found) if given.is_elastic else launch(job)
    except KeyboardInterrupt:
        return SIGNALED + signal.SIGINT
