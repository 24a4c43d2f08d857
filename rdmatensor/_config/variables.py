"""Every environment variable of the library, with its type, default, scope and meaning.

`rdmatensor settings` prints this list, and the page of settings is generated from it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rdmatensor._config.checks import one_of

PREFIX = "RDMATENSOR_"
UNSET = "unset"
# process: each process may have its own value; job: the same on all ranks.
Scope = Literal["process", "job", "rank 0"]

_FLAGS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_FLAG = "0 or 1"
_LIST_BYTES_MAX = 255  # of the C library's lists of devices and GID indices


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: RDMATENSOR_<name>.

    parse returns the value that a text stands for, and raises ValueError for a wrong one. default
    is the text of the default, "unset" if there is none. field is the field of Settings that the
    variable sets; None for those that the C library reads itself.
    """

    name: str
    kind: str
    form: str
    default: str
    scope: Scope
    meaning: str
    parse: Callable[[str], object]
    field: str | None = None

    @property
    def full_name(self) -> str:
        """The name in the environment."""
        return PREFIX + self.name


# ---- texts of variables --------------------------------------------------------------------------


def _flag(text: str) -> bool:
    value = _FLAGS.get(text.lower())
    if value is None:
        raise ValueError(f"expected one of {', '.join(_FLAGS)}")
    return value


def _count(unit: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"expected a whole number{unit}, for example 64") from None

    return parse


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("expected a number of seconds, for example 2.5") from None


def _ports(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    try:
        return (int(first), int(last if dash else first))
    except ValueError:
        raise ValueError("expected a port, or the first and the last one") from None


def _address(text: str) -> str:
    return str(ipaddress.ip_address(text))


# ---- texts of variables that the C library reads -------------------------------------------------


def _choice(*allowed: str) -> Callable[[str], str]:
    check = one_of(*allowed)

    def parse(text: str) -> str:
        check(text)
        return text

    return parse


def _number(least: int, most: int) -> Callable[[str], int]:
    """Return the parser of a number as strtol() reads it with base 0, so that 0x8001 is one."""

    def parse(text: str) -> int:
        octal = re.fullmatch(r"0[0-7]+", text)
        try:
            value = int(text, 8) if octal else int(text, 0)
        except ValueError:
            raise ValueError(f"expected a number from {least} to {most}") from None
        if not least <= value <= most:
            raise ValueError(f"expected a number from {least} to {most}")
        return value

    return parse


def _mtu(text: str) -> int:
    value = _number(256, 4096)(text)
    if value & (value - 1):
        raise ValueError("expected 256, 512, 1024, 2048 or 4096")
    return value


def _list_of(entry: str, expected: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if len(text.encode()) > _LIST_BYTES_MAX:
            raise ValueError(f"expected at most {_LIST_BYTES_MAX} bytes")
        for part in text.removesuffix(",").split(","):
            if re.fullmatch(entry, part) is None:
                raise ValueError(f"{part!r} is not {expected}")
        return text

    return parse


_BYTE = r"0*(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_devices = _list_of(
    rf"[^:,]+(?::(?!0+$){_BYTE})?", "a device, nor device:port with a port from 1 to 255"
)
_gid_indices = _list_of(rf"(?:[^=,]+=)?{_BYTE}", "an index from 0 to 255, nor device=index")


def _test_host(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9._-]{1,63}", text) is None:
        raise ValueError("expected 1 to 63 letters, digits, dots, dashes and underscores")
    return text


# ---- the list ------------------------------------------------------------------------------------

# Those that Settings has fields for, and the file of the secret.
VARIABLES = (
    Variable(
        "TRANSPORT", "choice", "auto, shm, tcp or verbs", "auto", "job",
        "the path of every pair of processes; `auto` takes the best that a probe proved",
        str.lower, "transport",
    ),
    Variable(
        "REQUIRE", "choice", "auto, tcp or verbs", "auto", "process",
        "a floor for pairs on different hosts: fail instead of falling back below it",
        str.lower, "require",
    ),
    Variable(
        "IFNAME", "text", "eth0", UNSET, "process",
        "listen on the addresses of this interface only", str, "ifname",
    ),
    Variable(
        "ADDR", "address", "10.0.0.1", UNSET, "process",
        "listen on and advertise this numeric address", _address, "addr",
    ),
    Variable(
        "PORTS", "range", "20000-20100", UNSET, "process",
        "listening ports, both ends included: each process takes one that is free, so the range "
        "needs one for every process on a host",
        _ports, "ports",
    ),
    Variable(
        "LOOPBACK", "flag", _FLAG, "0", "process", "1: listen on 127.0.0.1 and ::1 only", _flag,
        "loopback",
    ),
    Variable(
        "SECRET", "text", "text", UNSET, "job",
        "what the members of a job must know to be let in", str.encode, "secret",
    ),
    Variable(
        "SECRET_FILE", "path", "path", UNSET, "job",
        "a file with the secret; its last line break is dropped", str, "secret_file",
    ),
    Variable(
        "TIMEOUT_S", "seconds", "seconds", "300", "process",
        "the deadline of every wait that is not given one", _seconds, "timeout_s",
    ),
    Variable(
        "PEER_TIMEOUT_S", "seconds", "seconds", "10", "process",
        "silence of a peer's progress thread after which it counts as dead", _seconds,
        "peer_timeout_s",
    ),
    Variable(
        "ARENA_MIB", "MiB", "MiB", "64", "process",
        "the arena grows in pieces of at least this", _count(" of MiB"), "arena_mib",
    ),
    Variable(
        "ARENA_MAX_MIB", "MiB", "MiB", UNSET, "process",
        "the arena never exceeds this; unset: bound by RAM and the memory cgroup",
        _count(" of MiB"), "arena_max_mib",
    ),
    Variable(
        "TCP_STREAMS", "count", "1 to 16", UNSET, "process",
        "sockets per peer for large payloads; unset: chosen for each peer", _count(""),
        "tcp_streams",
    ),
    Variable(
        "HOOKS", "flag", _FLAG, "1", "process",
        "0: making a group changes nothing else in the process: as `RDMATENSOR_ADOPT=0` and "
        "`RDMATENSOR_PLAN=off`, and no function of torch is wrapped "
        "(docs/reference/process-changes.md)",
        _flag, "hooks",
    ),
    Variable(
        "ADOPT", "flag", _FLAG, "1", "process",
        "0: DistributedDataParallel's buckets stay in torch's own memory, and are copied; "
        "malloc keeps its limits",
        _flag, "adopt",
    ),
    Variable(
        "PLAN", "choice", "auto or off", "auto", "job",
        "`auto`: each rank records its operations and finds the step that repeats, for "
        "`describe()` and `rdmatensor.plan.recorded()`; `off`: nothing is recorded",
        str.lower, "plan",
    ),
    Variable(
        "VERIFY", "choice", "off or crc32c", "off", "job",
        "`crc32c`: payload is summed where it leaves and compared where it arrives, on every path "
        "(docs/how-to/verify.md)",
        str.lower, "verify",
    ),
    Variable(
        "METRICS_PORTS", "range", "9400-9407", UNSET, "process",
        "counters for Prometheus on 127.0.0.1, at the first of these ports that is free: one for "
        "every process on a host; unset: none",
        _ports, "metrics_ports",
    ),
    Variable(
        "TRACE_DIR", "path", "path", UNSET, "process",
        "a folder into which each process writes its last transfers, for a trace viewer, when its "
        "context is closed",
        str, "trace_dir",
    ),
    Variable(
        "LOG_LEVEL", "choice", "error, warn, info or debug", "warn", "process",
        "lines up to this level go to standard error", str.lower, "log_level",
    ),
)  # fmt: skip

# Those that the C library reads and checks itself. For RDMA the right values depend on the devices.
NATIVE_VARIABLES = (
    Variable(
        "ALGO", "choice",
        "auto, messages, direct, ring, halving-doubling, tree or hierarchical", "auto", "job",
        "the algorithm of collectives (docs/explanation/collectives.md)",
        _choice("auto", "messages", "direct", "ring", "halving-doubling", "tree", "hierarchical"),
    ),
    Variable(
        "DETERMINISTIC", "flag", _FLAG, "0", "job",
        "1: sums use rank order for every size and path, so that their bits repeat from run to run",
        _flag,
    ),
    Variable(
        "COST_TABLE", "path", "path", UNSET, "rank 0",
        "rank 0 chooses algorithms by the costs in this file and sends them to the other ranks, so "
        "that sums have the same bits in every run; without the file rank 0 measures the costs and "
        "writes it",
        str,
    ),
    Variable(
        "TEST_HOST", "text", "a name", UNSET, "job",
        "for tests, on every rank or on none: replaces the host's name, so that ranks with "
        "different names treat each other as remote on one machine",
        _test_host,
    ),
    Variable(
        "VERBS_DEVICES", "list", "mlx5_0,rxe1:1", UNSET, "process",
        "use only these ports; each must exist on every host that has the setting; unset: every "
        "active port, at most four, those with the best addresses, then the lowest ones",
        _devices,
    ),
    Variable(
        "VERBS_GID_INDEX", "list", "3 or rxe0=1,rxe1=3", UNSET, "process",
        "this entry of the GID table, for devices that exist; unset: by rank and probe",
        _gid_indices,
    ),
    Variable(
        "VERBS_QPS", "count", "1 to 8", "1", "job", "queue pairs for each port and peer",
        _number(1, 8),
    ),
    Variable(
        "VERBS_LINKS", "count", "1 to 4", "4", "process", "ports used for one peer",
        _number(1, 4),
    ),
    Variable(
        "VERBS_MTU", "bytes", "256 to 4096", UNSET, "process",
        "an upper bound; the path uses the smaller active MTU of both ends", _mtu,
    ),
    Variable(
        "VERBS_PKEY", "number", "0x8001", UNSET, "process", "the partition", _number(1, 0xFFFF)
    ),
    Variable(
        "VERBS_PKEY_INDEX", "number", "0 to 65535", UNSET, "process",
        "the partition by its place in each port's table instead", _number(0, 0xFFFF),
    ),
    Variable(
        "VERBS_TIMEOUT", "number", "1 to 31", "17", "process",
        "a try takes 4.096 us * 2^n; the connecting side's value is used in both directions",
        _number(1, 31),
    ),
    Variable(
        "VERBS_RETRY", "count", "0 to 6", "6", "process",
        "tries after the first; the connecting side's value is used in both directions",
        _number(0, 6),
    ),
    Variable(
        "VERBS_SL", "number", "0 to 15", UNSET, "process",
        "service level; the connecting side's value is used in both directions", _number(0, 15),
    ),
    Variable(
        "VERBS_TC", "number", "0 to 254", UNSET, "process",
        "traffic class; the connecting side's value is used in both directions", _number(0, 254),
    ),
    Variable(
        "VERBS_NOTIFY", "choice", "imm, flag or auto", "imm", "process",
        "how the data of a slot is announced (docs/explanation/rdma.md): by an immediate, or by a "
        "flag in memory if the device writes in order; on other devices `flag` warns and `auto` "
        "does not",
        _choice("imm", "flag", "auto"),
    ),
    Variable(
        "VERBS_FLAG_UNSAFE", "flag", _FLAG, "0", "process",
        "1: flags on any device, to measure them; a tensor may then be read before it has arrived",
        _flag,
    ),
)  # fmt: skip

NATIVE_NAMES = tuple(variable.full_name for variable in NATIVE_VARIABLES)
