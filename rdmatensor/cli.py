"""What this machine can do with rdmatensor, what is in the way, and which settings are in force."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 1 for what is wrong here, 2 for misuse."""
    parser = argparse.ArgumentParser(prog="rdmatensor", description=__doc__)
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command")
    doctor = commands.add_parser("doctor", help="check the installation and this machine")
    doctor.add_argument("--json", action="store_true", help="one array of findings, for programs")
    commands.add_parser("settings", help="list the environment variables with their values now")
    chosen = parser.parse_args(arguments)
    if chosen.command is None:
        parser.print_help(sys.stderr)
        parser.exit(2)
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
    from rdmatensor.errors import RdmaTensorError

    try:
        settings = from_environment()
    except RdmaTensorError as error:
        print(f"rdmatensor: {error}", file=sys.stderr)
        return 1
    lines = []
    sources = {"SECRET": "environment", "SECRET_FILE": "file"}
    for variable in VARIABLES:
        if variable.name in sources:
            is_set = settings.secret_source == sources[variable.name]
            shown = "(set, not shown)" if is_set else ""
        else:
            shown = _as_set(getattr(settings, variable.field))
        lines += [f"{variable.full_name}={shown}", f"    {variable.form}: {variable.meaning}"]
    print("\n".join(lines))
    return 0


def _as_set(value: object) -> str:
    """Write a value as the environment has it."""
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None else str(value)
