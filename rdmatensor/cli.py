"""The command `rdmatensor`, also `python -m rdmatensor`: what can this machine do, and why not."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 1 if the doctor found a failure."""
    parser = argparse.ArgumentParser(prog="rdmatensor", description=__doc__)
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="check the installation and this machine")
    doctor.add_argument("--json", action="store_true", help="for programs")
    commands.add_parser("settings", help="list the environment variables with their values now")
    chosen = parser.parse_args(arguments)
    return _settings() if chosen.command == "settings" else _doctor(as_json=chosen.json)


def _version() -> str:
    from rdmatensor._build_stamp import VERSION

    return f"rdmatensor {VERSION}"


def _doctor(*, as_json: bool) -> int:
    from dataclasses import asdict

    from rdmatensor.doctor import examine, report

    findings = examine()
    print(json.dumps([asdict(finding) for finding in findings]) if as_json else report(findings))
    return 1 if any(finding.level == "fail" for finding in findings) else 0


def _settings() -> int:
    from rdmatensor.config import VARIABLES, from_environment

    settings = from_environment()
    for variable in VARIABLES:
        field = {"SECRET": "secret_source", "SECRET_FILE": "secret_source"}.get(
            variable.name, variable.field
        )
        value = getattr(settings, field)
        print(f"{variable.full_name}={'' if value is None else value}")
        print(f"    {variable.form}: {variable.meaning}")
    return 0
