"""The library against an independent witness: the same wire, spoken by a pyverbs program.

Usage, in the rig: witness_job.py. Starts witness.py in the system's Python, lets the library and
the witness write into each other's memory over verbs, and compares every byte and notification on
the side where it arrived. One line for each check; the first that fails ends the run.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("RDMATENSOR_VERBS_QPS", "2")
os.environ["RDMATENSOR_TRANSPORT"] = "verbs"

from witness_pipe import Checks, Pipe, payload

from rdmatensor import AuthenticationError, Context, RdmaTensorError, RemoteRegion

WAIT_S = 90.0
SYSTEM_PYTHON = "/usr/bin/python3"  # Debian's pyverbs belongs to it
DEBIAN_MODULES = "/usr/lib/python3/dist-packages"  # pyverbs, for a venv of the same Python version
SECRET = b"what witness and job know"
SIZES_BYTES = (8, 4096, 1 << 20)
MESSAGES = 300  # more than both windows
BLOCKS = ((3, 100), (4093, 4100), (65537, 1), (70000, 9000), (99992, 8))
BLOCKS_BYTES = 100_000
BESIDE_BYTES = 8192
MARK = 0x5A


class Job:
    """The library's side, and the pipe to the witness."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.checks = Checks("library")
        device, addr = os.environ["RIG_DEVICE"], os.environ["RIG_ADDR"]
        program = str(Path(__file__).with_name("witness.py"))
        self._witness = subprocess.Popen(
            [SYSTEM_PYTHON, program, device, addr, os.environ["RDMATENSOR_VERBS_QPS"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._witness.stdin is not None
        assert self._witness.stdout is not None
        self._pipe = Pipe(self._witness.stdout.fileno(), self._witness.stdin.fileno())
        context.add_job("witness", SECRET)
        self.ask("secret", secret=SECRET.hex())

    def tell(self, do: str, **words: object) -> None:
        """Give a command whose answer is taken later."""
        self._pipe.send(do=do, **words)

    def answer(self) -> dict[str, Any]:
        """Take the answer to the oldest command."""
        words = self._pipe.recv(WAIT_S)
        if not words:
            self.checks.fail(f"the witness has ended with status {self._witness.wait(WAIT_S)}")
        return words

    def ask(self, do: str, **words: object) -> dict[str, Any]:
        """Give a command and take its answer."""
        self.tell(do, **words)
        return self.answer()

    def expose(self, size_bytes: int) -> tuple[str, RemoteRegion]:
        """Let the witness register memory; return it as hex, for the witness, and decoded."""
        described = str(self.ask("expose", size=size_bytes)["region"])
        return described, RemoteRegion.decode(bytes.fromhex(described))

    def close(self) -> None:
        """Let the witness end, and see how."""
        assert self._witness.stdin is not None
        self._witness.stdin.close()
        self.checks.same(self._witness.wait(WAIT_S), 0, "the witness ended in order")

    def kill(self) -> None:
        """Leave no witness behind."""
        if self._witness.poll() is None:
            self._witness.kill()
            self._witness.wait(WAIT_S)


def described(region: RemoteRegion) -> str:
    return region.encode().hex()


def library_writes(job: Job, endpoint: Any) -> None:
    """Write into the witness: from the arena and from other memory, whole and in blocks."""
    for seed, size in enumerate(SIZES_BYTES):
        text, region = job.expose(size)
        source = job.context.empty((size,), "uint8") if size > 4096 else np.empty(size, np.uint8)
        source[:] = np.frombuffer(payload(seed, size), np.uint8)
        endpoint.write(source, region, notify=seed + 1).wait(timeout_s=WAIT_S)
        job.ask("expect", region=text, blocks=[(0, size, seed)], value=seed + 1, what=f"{size} B")
    text, region = job.expose(BLOCKS_BYTES)
    parts = [(np.frombuffer(payload(at, size), np.uint8), at) for at, size in BLOCKS]
    endpoint.write_many(parts, region, notify=0x3FFFF).wait(timeout_s=WAIT_S)
    blocks = [(at, size, at) for at, size in BLOCKS]
    job.ask("expect", region=text, blocks=blocks, value=0x3FFFF, what=f"{len(blocks)} blocks")
    text, region = job.expose(MESSAGES * 8)
    data = payload(77, MESSAGES * 8)
    sent = [
        endpoint.write(data[8 * i : 8 * i + 8], region, dst_offset_bytes=8 * i, notify=i)
        for i in range(MESSAGES)
    ]
    for transfer in sent:
        transfer.wait(timeout_s=WAIT_S)
    job.ask("expect_row", region=text, count=MESSAGES, seed=77)
    job.ask("keys")
    try:
        endpoint.read(np.empty(MESSAGES * 8, np.uint8), region).wait(timeout_s=WAIT_S)
    except RdmaTensorError as error:
        job.checks.that(True, f"a read that the witness gives no key for: {error.code}")
    else:
        job.checks.fail("a read succeeded that the witness gave no key for")


def witness_writes(job: Job, endpoint: Any) -> None:
    """Let the witness write into the arena and into registered memory, and read from there."""
    for seed, size in enumerate(SIZES_BYTES, 20):
        landing = job.context.zeros((size,), "uint8")
        region = described(job.context.export(landing))
        job.ask("write", region=region, size=size, seed=seed, value=seed)
        job.checks.same(endpoint.wait_notify(timeout_s=WAIT_S), seed, f"{size} B: notification")
        job.checks.same_bytes(landing.tobytes(), payload(seed, size), f"{size} B: bytes")
        job.ask("read", region=region, seed=seed)
    row = np.zeros(MESSAGES * 8, np.uint8)
    registered = job.context.register(row)
    text = described(registered.export())
    job.ask("write_row", region=text, count=MESSAGES, seed=30)
    got = [endpoint.wait_notify(timeout_s=WAIT_S) for _ in range(MESSAGES)]
    job.checks.same(got, list(range(MESSAGES)), f"{MESSAGES} notifications in order")
    job.checks.same_bytes(row.tobytes(), payload(30, row.size), f"bytes of {MESSAGES} messages")
    job.ask("read", region=text, seed=30)
    registered.close()
    job.ask("refused", region=text)


def system_version() -> str:
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    run = subprocess.run([SYSTEM_PYTHON, "-c", program], capture_output=True, check=True, text=True)
    return run.stdout.strip()


def beside(job: Job, endpoint: Any) -> None:
    """Use pyverbs in this process next to the library: the same bytes, registered by each.

    pyverbs.md tells users to. Debian's pyverbs is for Debian's Python version only.
    """
    sys.path.append(DEBIAN_MODULES)
    from pyverbs import enums
    from pyverbs.mr import MR
    from witness_verbs import EXPOSED, Device, Lane

    device = Device(os.environ["RIG_DEVICE"])
    ours = job.context.zeros((BESIDE_BYTES,), "uint8")
    target = MR(device.pd, BESIDE_BYTES, EXPOSED, address=ours.ctypes.data)
    source = MR(device.pd, BESIDE_BYTES, enums.IBV_ACCESS_LOCAL_WRITE)
    source.write(payload(40, BESIDE_BYTES), BESIDE_BYTES)
    lanes = Lane(device, 1, True), Lane(device, 1, False)
    lanes[0].meet(lanes[1].offer), lanes[1].meet(lanes[0].offer)
    for lane in lanes:
        lane.raise_qps(0)
    at = (ours.ctypes.data, target.rkey)
    wr_id = lanes[0].post(0, enums.IBV_WR_RDMA_WRITE, (source, 0, BESIDE_BYTES), at)
    deadline = time.monotonic() + WAIT_S
    while wr_id not in lanes[0].done and time.monotonic() < deadline:
        lanes[0].poll()
    got = lanes[0].done.get(wr_id)
    job.checks.same(got, (enums.IBV_WC_SUCCESS, 0), "a pyverbs QP writes into the arena")
    job.checks.same_bytes(ours.tobytes(), payload(40, BESIDE_BYTES), "which has those bytes")

    whole = (ctypes.c_uint8 * BESIDE_BYTES).from_address(source.buf)
    with job.context.register(whole) as region:
        text = described(region.export())
        job.ask("write", region=text, size=BESIDE_BYTES, seed=41, value=41)
        job.checks.same(endpoint.wait_notify(timeout_s=WAIT_S), 41, "pyverbs memory: notification")
        there = source.read(BESIDE_BYTES, 0)
        job.checks.same_bytes(there, payload(41, BESIDE_BYTES), "a peer writes into pyverbs memory")
    job.ask("refused", region=text)  # the peer has let go: now the MR may go
    for thing in (*lanes, target, source, device):
        thing.close()


def no_sharing(job: Job) -> None:
    """See that pyverbs gives no way to share a device here, as pyverbs.md says."""
    device = os.environ["RIG_DEVICE"]
    if os.environ["RIG_MEANS"] != "device":  # all others are rxe; some NICs can
        got = job.ask("import")["errno"]
        job.checks.same(got, errno.EOPNOTSUPP, "rxe: no import of a device by its descriptor")
    for read in ("Context(name=device).context", "PD(Context(name=device)).pd"):
        program = (
            "from pyverbs.device import Context\nfrom pyverbs.pd import PD\n"
            f"device = {device!r}\npointer = {read}\nprint(int(pointer))\n"
        )
        command = [SYSTEM_PYTHON, "-c", program]
        run = subprocess.run(command, capture_output=True, check=False, timeout=WAIT_S)
        job.checks.same(run.returncode, -signal.SIGSEGV, f"{read} is no pointer but a crash")


def exchange(job: Job, endpoint: Any, role: str) -> None:
    """Both directions, then the path as the library sees it."""
    library_writes(job, endpoint)
    witness_writes(job, endpoint)
    job.checks.same(endpoint.transport, "verbs", f"the path, with the witness as {role}")


def strangers(job: Job) -> None:
    """Let the witness come without the secret, as listener and as connector."""
    address = bytes.fromhex(job.ask("listen")["address"])
    job.tell("pretend", address=job.context.address.hex())
    with job.context.connect(address, job="witness", timeout_s=WAIT_S) as endpoint:
        try:
            endpoint.wait_ready(timeout_s=WAIT_S)
        except AuthenticationError as error:
            job.checks.same(error.code, "RDT_EAUTH", "a listener without the secret is refused")
        else:
            job.checks.fail("a listener without the secret was believed")
    job.answer()


def both_roles(job: Job) -> None:
    """Connect to the witness, then let it connect; each side leaves first once."""
    address = bytes.fromhex(job.ask("listen")["address"])
    job.tell("accept", is_deaf=True)
    with job.context.connect(address, job="witness", timeout_s=WAIT_S) as endpoint:
        endpoint.wait_ready(timeout_s=WAIT_S)
        job.answer()
        exchange(job, endpoint, "listener")
        job.tell("left")
    job.answer()
    address = bytes.fromhex(job.ask("connect", address=job.context.address.hex())["address"])
    with job.context.connect(address, job="witness", timeout_s=WAIT_S) as endpoint:
        endpoint.wait_ready(timeout_s=WAIT_S)
        exchange(job, endpoint, "connector")
        no_sharing(job)
        if f"{sys.version_info[0]}.{sys.version_info[1]}" == system_version():
            beside(job, endpoint)
        else:
            print("library: left out: pyverbs next to it, which is for another Python", flush=True)
        job.ask("leave")
        try:
            endpoint.wait_notify(timeout_s=WAIT_S)
        except RdmaTensorError as error:
            job.checks.same(error.code, "RDT_EPEER", "the library heard the witness's GOODBYE")


def intrusions(job: Job) -> None:
    """Let the witness try what keys do not allow; our bytes must stay, and the context live."""
    whole = np.full(3 * 4096, MARK, np.uint8)
    middle = whole[4096:8192]
    arena = job.context.empty((4096,), "uint8")
    arena[:] = MARK
    with job.context.register(middle) as registered:
        ours = {"address": job.context.address.hex(), "region": described(registered.export())}
        in_arena = {**ours, "region": described(job.context.export(arena))}
        tries: tuple[dict[str, object], ...] = (
            {**ours, "verb": "read", "key": "write", "at": 0, "what": "reading with a write key"},
            {**in_arena, "verb": "read", "key": "write", "at": 0, "what": "the same in the arena"},
            {**ours, "verb": "write", "key": "read", "at": 8, "what": "writing with a read key"},
            {**ours, "verb": "write", "key": "write", "at": 4092, "what": "writing over the end"},
            {**ours, "verb": "write", "key": "write", "at": -4, "what": "writing before the start"},
            {**ours, "verb": "read", "key": "read", "at": 4092, "what": "reading over the end"},
            {
                **in_arena, "verb": "write", "key": "write", "at": -4, "piece": True,
                "what": "writing over the end of a piece of the arena",
            },
        )  # fmt: skip
        for words in tries:
            job.ask("intrude", **words)
    wanted = np.full(whole.size, MARK, np.uint8)
    for place in (wanted[4096:], arena):
        place[:8] = np.frombuffer(payload(1, 8), np.uint8)  # what the keys allow
    job.checks.same_bytes(whole.tobytes(), wanted.tobytes(), "registered memory after intrusions")
    job.checks.same_bytes(arena[8:].tobytes(), bytes([MARK]) * 4088, "the arena after intrusions")


def main() -> int:
    """Run every part; 0 if each check held."""
    with Context() as context:
        job = Job(context)
        try:
            strangers(job)
            both_roles(job)
            intrusions(job)
            job.close()
        except (RdmaTensorError, TimeoutError, subprocess.TimeoutExpired) as error:
            job.checks.fail(f"{type(error).__name__}: {error}")
        finally:
            job.kill()
    print(f"library: {job.checks.count} checks of the library's side", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
