"""Fenced blocks of pages, and how each is run.

The blocks of a page run in their order, in one empty folder. A comment on the line before a block
says more:

    <!-- file: NAME -->      the block is this file, for commands that follow; nothing runs
    <!-- run: host N -->     commands of host N, which run at the same time as those of the host
                             before; ranks see hosts of different names on this machine
    <!-- not run: REASON --> REASON is in not_run.txt; the syntax is checked

Without a comment a Python block runs as a program, a console block has each command run and its
output compared (a line `...` stands for any lines), a bash block runs whole, a C block is compiled,
and JSON, YAML and TOML are parsed. A text block is output, or a picture in characters.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

if sys.version_info >= (3, 11):
    import tomllib

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REASONS = [
    line
    for line in Path(__file__).with_name("not_run.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
SECONDS = 240
_FENCE = re.compile(
    r"(?:^ *<!-- (?P<how>file|run|not run): (?P<words>[^\n]*?) -->\n)?"
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<body>.*?)^ *(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
PLAIN = {"text", "diff", "ini", "dockerfile"}
# Names of pages, and what stands for them on one machine.
_HOSTS = {"node0": "127.0.0.1", "node1": "127.0.0.1"}
_PORTS = ("29500", "29600")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. how, words: those of the comment before it, or empty."""

    line: int
    language: str
    body: str
    how: str
    words: str


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the blocks of a page that are code; Sphinx's directives are not."""
    for found in _FENCE.finditer(text):
        language = found["language"].strip()
        if language.startswith("{"):
            continue
        body = re.sub(rf"^{found['indent']}", "", found["body"], flags=re.MULTILINE)
        line = text.count("\n", 0, found.start("fence")) + 1
        yield Block(line, language, body, found["how"] or "", found["words"] or "")


def without_blocks(text: str) -> str:
    """Return a page without its fenced blocks."""
    return _FENCE.sub("", text)


class Page:
    """Runs the blocks of a page. A failure is an AssertionError that begins with the line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "examples").symlink_to(ROOT / "examples")
        self.ports = {name: str(free_port()) for name in _PORTS}
        self._hosts: list[tuple[Block, subprocess.Popen[str]]] = []

    def run(self, text: str) -> int:
        """Run all blocks of a text; return how many did something."""
        done = 0
        try:
            for block in blocks_of(text):
                if not (block.how == "run" and block.words.startswith("host")):
                    self._join_hosts()
                done += self._run(block)
            self._join_hosts()
        finally:
            for _, process in self._hosts:
                end(process)
        return done

    def _run(self, block: Block) -> bool:
        if block.how == "not run":
            assert block.words in REASONS, f"line {block.line}: {block.words!r} is not a reason"
            if block.language == "bash":
                self._shell(block, f"bash -n <<'END_OF_BLOCK'\n{block.body}\nEND_OF_BLOCK")
            elif block.language == "python":
                compile(block.body, f"line {block.line}", "exec")
            return False
        if block.how == "file":
            path = self.folder / block.words
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body, encoding="utf-8")
            return False
        if block.how == "run":
            self._start_host(block)
            return True
        kinds = {"python": self._python, "console": self._console, "bash": self._bash, "c": self._c}
        kinds |= {"json": _json, "yaml": _yaml, "toml": _toml}
        if block.language in PLAIN:
            return False
        assert block.language in kinds, f"line {block.line}: what is {block.language!r}?"
        kinds[block.language](block)
        return True

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of commands: torchrun takes free ports, programs few threads."""
        own = {name: text for name, text in os.environ.items() if "RDMATENSOR_" not in name}
        own |= {
            "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "PET_STANDALONE": "1",
            "PET_LOCAL_ADDR": "127.0.0.1",
            "TMPDIR": str(self.folder),
            "CHECKOUT": str(ROOT),
        }
        return own | more

    def _python(self, block: Block) -> None:
        path = self.folder / f"block_{block.line}.py"
        path.write_text(block.body, encoding="utf-8")
        self._shell(block, f"python -W error::ResourceWarning {shlex.quote(path.name)}")

    def _bash(self, block: Block) -> None:
        self._shell(block, block.body)

    def _console(self, block: Block) -> None:
        for command, expected in commands_of(block.body):
            said = self._shell(block, command)
            if expected:
                assert matches(said, expected), (
                    f"line {block.line}: {command} printed\n{said}\nand the page has\n{expected}"
                )

    def _c(self, block: Block) -> None:
        path = self.folder / f"block_{block.line}.c"
        path.write_text(block.body, encoding="utf-8")
        flags = f"-std=c17 -Wall -Wextra -Werror -fsyntax-only -I{ROOT}/csrc/include"
        self._shell(block, f"gcc {flags} {path.name}")

    def _shell(self, block: Block, command: str) -> str:
        process = self._started(command, self.environment(), stderr=subprocess.PIPE)
        try:
            said, wrong = process.communicate(timeout=SECONDS)
        finally:
            end(process)
        assert process.returncode == 0, (
            f"line {block.line}: {command}\nended with {process.returncode}\n"
            f"{said[-4000:]}{wrong[-4000:]}"
        )
        return said

    def _started(
        self, commands: str, environment: dict[str, str], stderr: int
    ) -> subprocess.Popen[str]:
        """Start commands as a group of processes of their own."""
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", self.here(commands)],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def here(self, command: str) -> str:
        """Return a command with this machine in place of hosts, free ports, and the page's home."""
        command = command.replace("$HOME", str(self.folder))
        for name, stands in {**_HOSTS, **self.ports}.items():
            command = re.sub(rf"\b{name}\b", stands, command)
        return command

    def _start_host(self, block: Block) -> None:
        number = int(block.words.removeprefix("host "))
        commands = " && ".join(command for command, _ in commands_of(block.body))
        environment = self.environment(RDMATENSOR_TEST_HOST=f"host{number}")
        del environment["PET_STANDALONE"], environment["PET_LOCAL_ADDR"]
        process = self._started(commands, environment, stderr=subprocess.STDOUT)
        self._hosts.append((block, process))

    def _join_hosts(self) -> None:
        while self._hosts:
            block, process = self._hosts[0]
            said, _ = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, f"line {block.line}: {process.returncode}\n{said}"
            for _, expected in commands_of(block.body):
                assert not expected or matches(said, expected), f"line {block.line}: {said}"
            del self._hosts[0]


def end(process: subprocess.Popen[str]) -> None:
    """End what is left of a group of processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def commands_of(body: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a console block with the output that the page has for it."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, expected = "", part
        while True:
            line, _, expected = expected.partition("\n")
            command += line.removesuffix("\\")
            if not line.endswith("\\"):
                break
        yield command, expected.strip("\n")


def matches(said: str, expected: str) -> bool:
    """Whether an output is what is expected; a line `...` stands for any lines.

    Ranks print at the same time, and a line and its end may be two writes: without `...` the
    characters are compared whatever their order, and with it each line, without spaces.
    """
    flat = "".join(said.split())
    lines = ["".join(line.split()) for line in expected.splitlines()]
    if "..." not in lines:
        return sorted(flat) == sorted("".join(lines))
    return all(line in flat for line in lines if line != "...")


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _json(block: Block) -> None:
    json.loads(block.body)


def _yaml(block: Block) -> None:
    assert list(yaml.safe_load_all(block.body))


def _toml(block: Block) -> None:
    if sys.version_info >= (3, 11):
        tomllib.loads(block.body)
