"""Hold the tests that failed under an emulator against the list of those that must.

Usage: cross_judge.py JUNIT_XML LIST
A line of the list is `PROGRAM TEST REASON`. A reason that begins with `sometimes:` allows the test
to pass, too; any other test of the list that passes makes the list wrong.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

_RESULT = re.compile(r"^(ok|skip|FAIL) +(\S+) \([0-9.]+ ms\)$", re.MULTILINE)


def read_list(path: Path) -> dict[tuple[str, str], str]:
    """Return the reasons, by program and test."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            program, test, reason = line.split(maxsplit=2)
            found[program, test] = reason
    return found


def judge(junit: Path, cannot: dict[tuple[str, str], str]) -> tuple[str, list[str]]:
    """Return the totals, and what is wrong."""
    counts = {"ok": 0, "skip": 0, "FAIL": 0}
    problems = []
    for program in ET.parse(junit).getroot().iter("testcase"):
        name, said = program.get("name", "?"), program.findtext("system-out") or ""
        results = _RESULT.findall(said)
        if not results:
            problems.append(f"{name}: printed no result of a test")
        elif program.get("status") == "fail" and not any(result == "FAIL" for result, _ in results):
            problems.append(f"{name}: failed, and no test of it did\n{said[-2000:]}")
        for result, test in results:
            counts[result] += 1
            reason = cannot.get((name, test))
            if result == "FAIL" and reason is None:
                problems.append(f"{name} {test}: failed, and is not on the list\n{said[-2000:]}")
            elif result == "ok" and reason is not None and not reason.startswith("sometimes:"):
                problems.append(f"{name} {test}: passed, but is on the list")
    totals = f"{counts['ok']} passed, {counts['skip']} skipped, {counts['FAIL']} cannot pass there"
    return totals, problems


def main() -> None:
    """Command line; see the module's docstring."""
    junit, cannot = Path(sys.argv[1]), Path(sys.argv[2])
    totals, problems = judge(junit, read_list(cannot))
    print(f"aarch64 under qemu: {totals}")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
