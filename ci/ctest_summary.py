"""Sum up one CTest run and judge its skips. Usage: ctest_summary.py PRESET JUNIT_XML."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

COUNTS = re.compile(r"^tests: (\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)
SKIP = re.compile(r"^  SKIP: (.*)$", re.MULTILINE)
REASONS = Path(__file__).parents[1] / "tests" / "skip_reasons.txt"
SLOWEST_SHOWN = 5


def allowed_reasons() -> list[re.Pattern[str]]:
    """Return the patterns of tests/skip_reasons.txt."""
    lines = REASONS.read_text(encoding="utf-8").splitlines()
    return [re.compile(line) for line in lines if line and not line.startswith("#")]


def judge(program: ET.Element) -> tuple[list[int], list[str]]:
    """Return one program's counts of tests (passed, failed, skipped) and what is wrong with it."""
    output = program.findtext("system-out") or ""
    name = program.get("name", "?")
    counts = COUNTS.search(output)
    if counts is None:
        return [0, 0, 0], [f"{name}: printed no line of totals; does it use TEST_MAIN()?"]
    bad = [
        f"{name}: skip reason not in tests/skip_reasons.txt: {reason}"
        for reason in SKIP.findall(output)
        if not any(pattern.fullmatch(reason) for pattern in allowed_reasons())
    ]
    return [int(count) for count in counts.groups()], bad


def main() -> int:
    """Print the totals; exit status 1 if nothing ran or a skip is not on the list."""
    preset, junit = sys.argv[1], Path(sys.argv[2])
    programs = ET.parse(junit).getroot().findall("testcase")
    verdicts = [judge(program) for program in programs]
    passed, failed, skipped = (sum(counts[i] for counts, _ in verdicts) for i in range(3))
    bad = [line for _, lines in verdicts for line in lines]
    slowest = sorted((float(p.get("time", "0")), p.get("name", "?")) for p in programs)[::-1]
    totals = f"{passed} ok, {failed} bad, {skipped} skipped in {len(programs)} programs"
    print(f"C tests, {preset}: {totals}")
    print("  slowest: " + ", ".join(f"{name} {s:.1f} s" for s, name in slowest[:SLOWEST_SHOWN]))
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
