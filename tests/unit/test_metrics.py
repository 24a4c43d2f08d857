"""Metrics: every counter has a meaning, the three forms agree, and the server is local and ends."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import fields
from pathlib import Path

import numpy as np
import prometheus_client.parser
import pytest

from rdmatensor import (
    ClosedError,
    Context,
    Counters,
    DeviceError,
    NotSupportedError,
    Settings,
    TransferTimeoutError,
    metrics,
    trace,
)


@pytest.fixture
def context() -> Context:
    """Return a context without a server."""
    return Context(Settings(loopback=True, arena_mib=1))


def free_ports(count: int) -> tuple[int, int]:
    """Return a range of ports that nobody listens on at the moment."""
    for first in range(20000 + os.getpid() % 20000, 60000, count):
        sockets = []
        try:
            for port in range(first, first + count):
                sockets += [socket.create_server((metrics.ADDRESS, port))]
        except OSError:
            continue
        else:
            return first, first + count - 1
        finally:
            for each in sockets:
                each.close()
    raise AssertionError("no range of free ports")


def write_to_another(context: Context, count: int = 1) -> None:
    """Write 1000 bytes to a context that exists for it."""
    with Context(context.settings) as peer:
        for each in (context, peer):
            each.add_job(secret=b"x")
        target = peer.zeros(1000, "uint8")
        with context.connect(peer.address) as endpoint:
            for _ in range(count):
                endpoint.write(np.ones(1000, np.uint8), peer.export(target)).wait(10)


def fetch(port: int, host: str = metrics.ADDRESS) -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def parsed(text: str) -> dict[str, float]:
    return {
        metrics.Sample(sample.name.removeprefix("rdmatensor_"), "gauge", "", 0, sample.labels)
        .full_name: sample.value
        for family in prometheus_client.parser.text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }  # fmt: skip


def test_every_counter_is_told_with_its_meaning(context: Context) -> None:
    with context:
        found = {sample.name: sample for sample in metrics.samples(context)}
    counters = {re.sub(r"_s$", "_seconds", field.name) for field in fields(Counters)}
    assert counters <= set(found)
    for sample in found.values():
        assert sample.meaning
        assert not sample.name.endswith("_total")


def test_histograms_are_there_once_transfers_are_timed(context: Context) -> None:
    with context:
        write_to_another(context)
        assert not [name for name in metrics.values(context) if "transfer" in name]
        trace.start(context, 1)
        write_to_another(context, 5)
        now = metrics.values(context)
        while parsed(metrics.text(context)) != now:  # what the other had may go just now
            now = metrics.values(context)
    count = now['rdmatensor_transfer_seconds_count{operation="write"}']
    assert count >= 5
    assert now['rdmatensor_transfer_seconds_bucket{le="+Inf",operation="write"}'] == count
    assert now['rdmatensor_transfer_seconds_sum{operation="write"}'] > 0
    assert now['rdmatensor_transfer_bytes_total{operation="write"}'] >= 5000
    buckets = [
        value for name, value in now.items() if "_bucket{" in name and 'operation="write"' in name
    ]
    assert buckets == sorted(buckets)
    assert len(buckets) == 28


def test_the_time_that_callers_waited_is_told(context: Context) -> None:
    with context, Context(context.settings) as peer:
        for each in (context, peer):
            each.add_job(secret=b"x")
        with context.connect(peer.address) as endpoint:
            endpoint.wait_ready(10)
            before = context.counters()
            assert before.wait_s == 0  # of the set-up nothing
            begin_s = time.monotonic()
            with pytest.raises(TransferTimeoutError):
                endpoint.wait_notify(0.3)
            took_s = time.monotonic() - begin_s
            counters = context.counters()
            state = context.describe()["counters"]
            now = metrics.values(context)
        assert 0.25 < counters.wait_s <= took_s
        assert isinstance(state, dict)
        assert state["wait_s"] == pytest.approx(counters.wait_s)
        assert now["rdmatensor_wait_seconds_total"] == pytest.approx(counters.wait_s)
        assert now["rdmatensor_registration_seconds_total"] == counters.registration_s
        assert now["rdmatensor_registered_bytes_total"] == counters.registered_bytes


def test_the_numbers_are_those_of_what_was_done(context: Context) -> None:
    with context, Context(context.settings) as peer:
        for each in (context, peer):
            each.add_job(secret=b"x")
        target = peer.zeros(1000, "uint8")
        with context.connect(peer.address) as endpoint:
            for _ in range(3):
                endpoint.write(np.ones(1000, np.uint8), peer.export(target)).wait(10)
            now = metrics.values(context)
            path = endpoint.transport
            traffic = context.describe()["traffic"]
            classes = context.describe()["classes"]
            told = context.describe_text(verbose=True)
        assert now["rdmatensor_writes_total"] == 3
        assert isinstance(traffic, dict)
        assert traffic[path]["planned_bytes"] == 3000
        assert now["rdmatensor_planned_bytes_total"] == 3000
        assert isinstance(classes, dict)
        for name, of in classes.items():
            assert now[f"rdmatensor_{name}_bytes_total"] == of["moved_bytes"]
        for name in ("planned", "dynamic"):
            assert now[f"rdmatensor_{name}_copied_bytes_total"] == classes[name]["copied_bytes"]
            messages = now[f"rdmatensor_{name}_control_messages_total"]
            assert messages == classes[name]["control_messages"]
        for what in ("copied_bytes", "control_messages"):
            total = now[f"rdmatensor_{what}_total"]
            assert total == sum(of[what] for of in classes.values())
        assert "  planned: moved 2.93 KiB, copied 0 B, control messages 0" in told
        assert now[f"rdmatensor_{path}_bytes_total"] == now["rdmatensor_moved_bytes_total"]
        assert now["rdmatensor_fallback_bytes_total"] == 0
        assert now["rdmatensor_reconnections_total"] == 0
        assert f"{path}: planned 2.93 KiB, dynamic 0 B, control " in told
        assert now["rdmatensor_moved_bytes_total"] >= 3000
        assert now[f'rdmatensor_endpoints{{path="{path}",state="ready"}}'] == 1
        assert metrics.values(peer)["rdmatensor_regions_exported"] >= 1


def test_text_and_dict_agree(context: Context) -> None:
    with context:
        kept = context.empty(1000)
        assert parsed(metrics.text(context)) == metrics.values(context)
        assert metrics.values(context)["rdmatensor_arena_allocated_bytes"] >= kept.nbytes


def test_devices_counters_are_read_where_there_are_devices(
    context: Context, tmp_path: Path
) -> None:
    folder = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/hw_counters"
    folder.mkdir(parents=True)
    (folder / "rnr_nak_retry_err").write_text("7\n")
    (folder / "out_of_sequence").write_text("N/A (no permission)\n")
    with context:
        found = {sample.full_name: sample.value for sample in metrics.samples(context, tmp_path)}
    assert found['rdmatensor_device_rnr_total{device="mlx5_0",port="1"}'] == 7
    assert not [name for name in found if "sequence" in name or "timeouts" in name]


def test_devices_counters_are_those_that_the_library_reads() -> None:
    code = (Path(__file__).parents[2] / "csrc/transport/verbs/device/nic.c").read_text()
    for files in metrics._DEVICE_COUNTERS.values():
        assert ", ".join(f'"{name}"' for name in files) in code


def test_each_context_is_served_at_a_port_of_its_own_until_it_closes() -> None:
    ports = free_ports(2)
    settings = Settings(loopback=True, arena_mib=1, metrics_ports=ports)
    with Context(settings) as first:
        with Context(settings) as second:
            kept = second.empty(10)
            served = [fetch(port) for port in ports]
            with pytest.raises(DeviceError, match=r"RDMATENSOR_METRICS_PORTS: cannot listen"):
                Context(settings)
        counts = [parsed(text)["rdmatensor_registrations_total"] for text in served]
        assert counts == [0, 1]
        del kept
        with pytest.raises(OSError, match="refused"):
            fetch(ports[1])
        assert "rdmatensor_writes_total" in fetch(ports[0])
    with pytest.raises(OSError, match="refused"):
        fetch(ports[0])
    first.close()  # again


def test_only_loopback_is_answered() -> None:
    assert metrics.ADDRESS == "127.0.0.1"
    ports = free_ports(1)
    # 127.0.0.2 is this host too: a socket on all addresses would answer there.
    with (
        Context(Settings(loopback=True, arena_mib=1, metrics_ports=ports)),
        pytest.raises(OSError, match="refused"),
    ):
        fetch(ports[0], "127.0.0.2")


def test_nothing_is_served_unasked(context: Context) -> None:
    with context:
        assert context._metrics is None
    with pytest.raises(ClosedError):
        metrics.values(context)


def test_a_forked_child_lets_the_port_go() -> None:
    ports = free_ports(1)
    with Context(Settings(loopback=True, arena_mib=1, metrics_ports=ports)) as context:
        hold, held = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(held)
            context.close()  # must not wait for a thread that is not here
            os.read(hold, 1)  # until the parent has looked
            os._exit(0)
        context.close()
        with pytest.raises(OSError, match="refused"):
            fetch(ports[0])
        os.close(held)
        os.close(hold)
        assert os.waitpid(child, 0)[1] == 0


def test_without_prometheus_client_the_dict_works_and_the_rest_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from rdmatensor import Context, NotSupportedError, Settings, metrics\n"
        "with Context() as context:\n"
        "    print(len(metrics.values(context)))\n"
        "    try: metrics.text(context)\n"
        "    except NotSupportedError as error: print(error)\n"
        "try: Context(Settings(metrics_ports=(9400, 9407)))\n"
        "except NotSupportedError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    count, *errors = done.stdout.splitlines()
    assert int(count) > 20
    assert len(errors) == 2
    assert all('pip install "rdmatensor[metrics]"' in error for error in errors)
    assert NotSupportedError.__name__ == "NotSupportedError"


def test_counters_are_documented_with_the_meanings_of_the_metrics() -> None:
    text = re.sub(r"\s+", " ", Counters.__doc__ or "")
    for name, meaning in metrics._MEANINGS.items():
        assert f"{name}: {meaning[0].upper()}{meaning[1:]}." in text, name
