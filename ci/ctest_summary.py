"""Sum up one CTest run and judge its skips.

Usage: ctest_summary.py PRESET JUNIT_XML
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

COUNTS = re.compile(r"^tests: (\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)
SKIP = re.compile(r"^  SKIP: (.*)$", re.MULTILINE)
REASONS = Path(__file__).parents[1] / "tests" / "skip_reasons.txt"
RESULT = re.compile(r"^(ok|skip|FAIL) +(\S+) \([0-9.]+ ms\)$")  # the harness's line for one test
SLOWEST_SHOWN = 5
# Of what passed, too: which ends were tried, how soon the others knew, and what grew.
TOLD = re.compile(r"^  (?:sweep|steady): .*$", re.MULTILINE)
WORDS_SHOWN = 40  # lines for each failure: an assertion has few, a sanitizer's report begins so


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


def failures(program: ET.Element) -> list[str]:
    """Return what a program that failed said of each of its failures, under the program's name."""
    if program.get("status") != "fail" and program.find("failure") is None:
        return []
    shown, words = [f"FAILED {program.get('name', '?')}"], list[str]()
    for line in (program.findtext("system-out") or "").splitlines():
        result = RESULT.match(line)
        if result is not None and result.group(1) == "FAIL":
            shown += [*_shortened(words), line]
        words = [] if result is not None else [*words, line]
    if len(shown) == 1 or any(COUNTS.match(line) is None and line.strip() for line in words):
        shown += words[-WORDS_SHOWN:]  # of its end: a crash, a time-out, a report of leaks
    return shown


def _shortened(words: list[str]) -> list[str]:
    if len(words) <= WORDS_SHOWN:
        return words
    return [*words[:WORDS_SHOWN], f"... {len(words) - WORDS_SHOWN} lines more"]


def main() -> int:
    """Print failures and totals; exit status 1 if any, if nothing ran, if a skip is not listed."""
    preset, file = sys.argv[1:]
    programs = ET.parse(Path(file)).getroot().findall("testcase")
    verdicts = [judge(program) for program in programs]
    passed, failed, skipped = (sum(counts[i] for counts, _ in verdicts) for i in range(3))
    bad = [line for _, lines in verdicts for line in lines]
    broken = [said for program in programs if (said := failures(program))]
    for said in broken:
        print("\n".join(said))
    slowest = sorted((float(p.get("time", "0")), p.get("name", "?")) for p in programs)[::-1]
    totals = f"{passed} ok, {failed} bad, {skipped} skipped in {len(programs)} programs"
    print(f"C tests, {preset}: {totals}")
    print("  slowest: " + ", ".join(f"{name} {s:.1f} s" for s, name in slowest[:SLOWEST_SHOWN]))
    for program in programs:
        for line in TOLD.findall(program.findtext("system-out") or ""):
            print(line)
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad or broken or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
