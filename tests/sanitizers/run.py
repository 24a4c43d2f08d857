"""Run tests of the C library, then two ranks of torch over each path, on a sanitizer's build.

Usage: run.py asan|tsan PACKAGES [--full]: a folder with that build as `rdmatensor`, and canary.c
built as canary.so. By the interpreter of an environment with torch; the sanitizer's library is
preloaded, as neither Python nor torch is built with it. Before all else faults on purpose show that
each would be seen, by the tests' runner too. Of leaks only those count whose memory was asked for
through a library in PACKAGES. With tsan there are the ranks alone. --full: with asan, then the
backend's tests as well, which takes most of an hour.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
JOB_LIMIT_S = 300.0  # several times what a job takes on two busy cores
WORLD = 2
PATHS = {
    "shm": {"RDMATENSOR_TRANSPORT": "shm"},
    "tcp": {"RDMATENSOR_TRANSPORT": "tcp"},
    "shm, messages, sums": {"RDMATENSOR_ALGO": "messages", "RDMATENSOR_VERIFY": "crc32c"},
}
TESTS = HERE.parent
# The contract suite over shm and tcp, but what starts processes: those that are killed tell no
# leak, the others begin an interpreter each, which takes seconds here. Strangers, who make hundreds
# of connections, have their C tests and fuzz targets under it.
APART = {"test_children.py", "test_many.py", "test_processes.py", "test_strangers.py"}
SUITE = (
    *(str(file) for file in sorted(TESTS.glob("contract/test_*.py")) if file.name not in APART),
    *(str(TESTS / "unit" / name) for name in ("test_memory.py", "test_store_bytes.py")),
    "--deselect=tests/unit/test_memory.py::test_real_torch_tensors",  # the ranks have torch
)
# By hand: the backend's tests, but those that start programs of their own, which would find what is
# installed, that put a library before ours, or that measure.
FULL_APART = (
    *("backend", "bench", "bench_collectives", "bench_ends", "bench_models", "counts", "demo"),
    *("doctor", "elastic", "heap", "memory", "pipeline", "steady", "sweep", "threads", "verify"),
)
FULL = (
    *(
        str(file)
        for file in sorted(TESTS.glob("integration/test_*.py"))
        if file.stem.removeprefix("test_") not in FULL_APART
    ),
    "--deselect=tests/integration/test_rendezvous.py::test_making_a_group_asks_no_name_server",
    # The C library's own heap, of which a sanitizer takes the place, counts nothing.
    "--deselect=tests/integration/test_ways.py::test_gradients_are_held_once_where_the_plan_says",
    "--timeout=600",
)
FULL_LIMIT_S = 7200.0
FULL_SCALE = "4"  # of the time that a job of theirs may take
CANARY_TEST = """
import runpy, sys
def test_canary():
    sys.argv = {words!r}
    runpy.run_path({words!r}[0])
"""
LEAK = re.compile(r"^(?:Direct|Indirect) leak of .*\n(?: +#.*\n)+", re.MULTILINE)


@dataclass(frozen=True)
class Sanitizer:
    """How a process runs under it, and what it says of a fault."""

    preload: tuple[str, ...]
    environment: Mapping[str, str]
    reports: tuple[str, ...]
    canaries: tuple[str, ...]
    prefix: tuple[str, ...] = ()
    has_suite: bool = False


SANITIZERS = {
    "asan": Sanitizer(
        # libstdc++ stands after it, or it does not find what throws: Python brings none along.
        preload=("libasan.so", "libstdc++.so.6"),
        environment={
            "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:fast_unwind_on_malloc=1"
            ":detect_stack_use_after_return=1:malloc_context_size=20"
            # With each frame the library that it is of.
            ":stack_trace_format='    #%n %p %F %S %M'",
            # All leaks are told, and end nothing: faults() chooses.
            "LSAN_OPTIONS": "exitcode=0:print_suppressions=0:report_objects=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            # Objects have memory of their own, in which pointers of ours are found.
            "PYTHONMALLOC": "malloc",
        },
        reports=("ERROR: AddressSanitizer", "runtime error:"),
        canaries=("overflow", "undefined", "leak"),
        has_suite=True,
    ),
    "tsan": Sanitizer(
        preload=("libtsan.so",),
        environment={"TSAN_OPTIONS": "ignore_noninstrumented_modules=1"},
        reports=("WARNING: ThreadSanitizer",),
        canaries=("race",),
        prefix=("setarch", "-R"),  # gcc 12's wants the small address randomisation
    ),
}


def library(name: str) -> str:
    """Return where the compiler has a library of its own."""
    command = ["gcc", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def environment(sanitizer: Sanitizer, packages: Path) -> dict[str, str]:
    """Return that of a process that runs under it, and takes ours from `packages`."""
    return {
        **os.environ,
        "LD_PRELOAD": ":".join(library(name) for name in sanitizer.preload),
        "PYTHONPATH": f"{packages}:{sysconfig.get_path('purelib')}",
        **sanitizer.environment,
    }


def start(words: Sequence[str], log: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process whose words go into the log."""
    with log.open("wb") as out:
        return subprocess.Popen(
            words, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )


def finish(processes: Sequence[subprocess.Popen[bytes]], limit_s: float = JOB_LIMIT_S) -> list[int]:
    """Return how they ended, -9 for one that had to be ended."""
    end_s = time.monotonic() + limit_s
    for process in processes:
        try:
            process.wait(max(0.0, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return [process.returncode for process in processes]


class Runs:
    """Processes of one sanitizer, and what it says of them."""

    def __init__(self, name: str, packages: Path) -> None:
        self._name = name
        self._packages = packages
        self._sanitizer = SANITIZERS[name]
        self._environment = environment(self._sanitizer, packages)
        # As in a frame's last word; each library of ours has a name that nothing else has.
        self._marks = [f"({path.name}+0x" for path in packages.rglob("*.so*")]

    def _python(self, *words: str) -> list[str]:
        """Return Python's command without site, whose hooks would find what is installed."""
        return [*self._sanitizer.prefix, sys.executable, "-S", *words]

    def faults(self, text: str) -> list[str]:
        """Return what was said of faults of ours."""
        found = [report for report in self._sanitizer.reports if report in text]
        return found + [leak for leak in LEAK.findall(text) if any(m in leak for m in self._marks)]

    def _suite(self, *words: str) -> list[str]:
        return self._python(str(HERE / "suite.py"), str(self._packages), *words)

    def sees_canaries(self, folder: Path) -> bool:
        """Whether each fault on purpose is seen, and none where there is none."""
        faults = (*self._sanitizer.canaries, "none")
        commands = {}
        for fault in faults:
            words = [str(HERE / "canary.py"), str(self._packages / "canary.so"), fault]
            commands[fault] = self._python(*words)
            if self._sanitizer.has_suite:
                test = folder / f"test_{fault}.py"
                test.write_text(CANARY_TEST.format(words=words))
                commands[f"{fault} in a test"] = self._suite(str(test))
        logs = {name: folder / f"{name}.log" for name in commands}
        finish([start(commands[name], log, self._environment) for name, log in logs.items()])
        is_good = True
        for name, log in logs.items():
            text = log.read_text(errors="replace")
            if bool(self.faults(text)) == name.startswith("none"):
                print(f"error: {self._name}, a planted fault, {name}, is misjudged:\n{text}")
                is_good = False
        return is_good

    def ranks_are_clean(self, path: str, folder: Path) -> bool:
        """Run a job; say how it ended."""
        folder.mkdir()
        job, rest = str(HERE / "job.py"), [str(folder / "meet"), str(self._packages)]
        commands = [self._python(job, str(rank), *rest) for rank in range(WORLD)]
        return self._are_clean(f"two ranks, {path}", commands, folder, PATHS[path])

    def suite_is_clean(self, folder: Path) -> bool:
        """Run the tests that need no torch, where the sanitizer can; say how they ended."""
        if not self._sanitizer.has_suite:
            return True
        folder.mkdir()
        return self._are_clean("tests", [self._suite(*SUITE)], folder, {})

    def full_is_clean(self, folder: Path) -> bool:
        """Run the backend's tests; what is said of a rank, whose words the tests keep, is a file.

        Leaks are for the others to find: to look for them in each rank takes seconds.
        """
        folder.mkdir()
        environ = {**self._environment, "RDT_TEST_TIMEOUT_SCALE": FULL_SCALE}
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS"):
            environ[name] += f":detect_leaks=0:log_path={folder / 'said'}"
        began_s = time.monotonic()
        log = folder / "tests.log"
        (end,) = finish([start(self._suite(*FULL), log, environ)], FULL_LIMIT_S)
        said = {path.name: path.read_text(errors="replace") for path in folder.glob("said.*")}
        is_good = end == 0 and not any(self.faults(text) for text in said.values())
        result = "ok" if is_good else "FAILED"
        took_s = time.monotonic() - began_s
        print(f"{self._name}: the backend's tests: {result} in {took_s:.0f} s", flush=True)
        print(*log.read_text(errors="replace").splitlines()[-1:], sep="\n")
        if not is_good:
            print(log.read_text(errors="replace"), *said.values(), sep="\n")
        return is_good

    def _are_clean(
        self, what: str, commands: list[list[str]], folder: Path, settings: Mapping[str, str]
    ) -> bool:
        environ = {**self._environment, **settings}
        logs = [folder / f"{number}.log" for number in range(len(commands))]
        began_s = time.monotonic()
        ends = finish(
            [start(words, log, environ) for words, log in zip(commands, logs, strict=True)]
        )
        words = [log.read_text(errors="replace") for log in logs]
        is_good = not any(ends) and not any(self.faults(text) for text in words)
        took_s = time.monotonic() - began_s
        result = "ok" if is_good else "FAILED"
        print(f"{self._name}: {what}: {result} in {took_s:.0f} s", flush=True)
        if not is_good:
            for number, text in enumerate(words):
                rest = LEAK.sub("", text)  # of others: thousands of lines
                print(
                    f"-- process {number} ended with {ends[number]}:",
                    *self.faults(text),
                    rest,
                    sep="\n",
                )
        return is_good


def main() -> int:
    """Return the exit status."""
    runs = Runs(sys.argv[1], Path(sys.argv[2]).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not runs.sees_canaries(folder):
            return 1
        results = [runs.suite_is_clean(folder / "suite")]
        results += [
            runs.ranks_are_clean(path, folder / str(number)) for number, path in enumerate(PATHS)
        ]
        if "--full" in sys.argv[3:]:
            results.append(runs.full_is_clean(folder / "full"))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
