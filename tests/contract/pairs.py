"""What the fixtures of this folder give."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass

from rdmatensor import Context, Endpoint


@dataclass
class Pair:
    """Two contexts of one process; to the library they are strangers, as two processes are."""

    left: Context
    right: Context
    to_right: Endpoint
    to_left: Endpoint

    def hear_of_the_end(self) -> None:
        """Let the left side learn that a region of the right one is freed.

        Over verbs it is the writer that refuses, once it has heard; until it has acknowledged that,
        its writes land in memory that nobody else gets. Other transports refuse at once.
        """
        if self.to_right.transport != "verbs":
            return
        end_s = time.monotonic() + 0.5
        while time.monotonic() < end_s:
            self.right.progress()
            self.left.progress()
            time.sleep(0.001)


@dataclass
class Peer:
    """A process that plays a role of peer.py; says() waits for its next line."""

    process: subprocess.Popen[str]

    def says(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the peer ended with status {self.process.wait(10)}"
        return line.strip()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
