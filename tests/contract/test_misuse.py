"""What newcomers get wrong: refused at once, with what stands there and what belongs there."""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pairs import Pair

from rdmatensor import (
    ClosedError,
    Context,
    DeviceError,
    FileStore,
    InvalidArgumentError,
    MismatchError,
    OutOfMemoryError,
    PeerError,
    RemoteRegion,
    Settings,
    StaleRegionError,
    TransferTimeoutError,
    World,
    join,
)

NO_TIMES: tuple[object, ...] = ("5", b"5", True, [1.0], 1j)
TIMES_OUT_OF_RANGE = (-1, -0.1, math.nan, math.inf, np.float64("nan"), 1e9)
NO_RANKS: tuple[object, ...] = ("1", 1.0, True, (1,))


@pytest.fixture
def world(settings: Settings, tmp_path: Path) -> Iterator[World]:
    with (
        Context(settings) as context,
        join(FileStore(tmp_path / "store"), 0, 2, context=context) as joined,
    ):
        yield joined


def test_a_target_that_is_no_region_is_named(pair: Pair) -> None:
    array = pair.right.zeros(4)
    region = pair.right.register(np.zeros(4))
    for wrong in (array, region, b"pickled"):
        kind = type(wrong).__name__
        for call in (
            lambda target: pair.to_right.write(b"x", target),
            lambda target: pair.to_right.write_many([(b"x", 0)], target),
            lambda target: pair.to_right.prepare_write(b"x", target),
            lambda target: pair.to_right.read(bytearray(1), target),
            lambda target: pair.to_right.notify(1, target),
        ):
            with pytest.raises(
                InvalidArgumentError, match=rf"RemoteRegion.*export\(\).* got {kind} "
            ):
                call(wrong)
    region.close()


def test_blocks_that_are_no_pairs_are_told_the_form(pair: Pair) -> None:
    remote = pair.right.export(pair.right.zeros(64))
    for blocks in (np.ones((3, 3)), [1, 2], [(b"x",)], 7):
        with pytest.raises(InvalidArgumentError, match=r"pairs \(tensor, dst_offset_bytes\)"):
            pair.to_right.write_many(blocks, remote)  # type: ignore[arg-type]


def test_a_look_that_finds_nothing_says_so(pair: Pair) -> None:
    with pytest.raises(
        TransferTimeoutError, match="no notification of rank 1 is there yet"
    ) as caught:
        pair.to_right.wait_notify(timeout_s=0)
    assert caught.value.code == "RDT_ETIMEDOUT"


def test_a_put_that_is_no_tensor_is_refused_as_by_write(pair: Pair) -> None:
    with (
        pair.right.recv_slot("s", 4, src=pair.to_left),
        pair.to_right.send_slot("s", 4, "float32") as sender,
        pytest.raises(InvalidArgumentError, match="CPU torch tensor, got list"),
    ):
        sender.put([1.0])  # type: ignore[arg-type]


def test_a_sender_that_leaves_before_a_dynamic_tensor_is_read_is_blamed(pair: Pair) -> None:
    with pair.right.recv_slot("late", (4,), src=pair.to_left, kind="dynamic") as slot:
        with pair.to_right.send_slot("late", (4,), "float32", kind="dynamic") as sender:
            transfer = sender.put(np.ones(4, np.float32))
        with pytest.raises(ClosedError, match="slot 'late' was closed"):
            transfer.wait()
        with pytest.raises(StaleRegionError, match=r"sender .*slot 'late'.*before .* wait\(\)"):
            slot.get()
        with pytest.raises(TransferTimeoutError):
            slot.get(timeout_s=0.05)  # it is told once
        with pair.to_right.send_slot("late", (4,), "float32", kind="dynamic") as sender:
            for value in range(5):  # and the slot goes on, with both its buffers
                transfer = sender.put(np.full(4, value, np.float32))
                with slot.get() as tensor:
                    assert tensor.tolist() == [value] * 4
                transfer.wait()


def test_what_is_held_stays_when_the_next_was_taken_back(pair: Pair) -> None:
    with pair.right.recv_slot("held", (4,), src=pair.to_left, kind="dynamic") as slot:
        with pair.to_right.send_slot("held", (4,), "float32", kind="dynamic") as sender:
            held = sender.put(np.full(4, 7, np.float32))
            first = slot.get()
            taken_back = sender.put(np.full(4, 8, np.float32))
        for transfer in (held, taken_back):
            with pytest.raises(ClosedError):
                transfer.wait()
        with pytest.raises(StaleRegionError):
            slot.get()
        with first as tensor:
            assert tensor.tolist() == [7] * 4
        with pair.to_right.send_slot("held", (4,), "float32", kind="dynamic") as sender:
            for value in range(3):
                sender.put(np.full(4, value, np.float32))
                with slot.get() as tensor:
                    assert tensor.tolist() == [value] * 4


@pytest.mark.parametrize("wrong", [*NO_TIMES, *TIMES_OUT_OF_RANGE], ids=repr)
def test_a_time_that_is_none_is_refused_by_its_name(pair: Pair, wrong: float) -> None:
    array = pair.right.zeros(4)
    remote = pair.right.export(array)
    transfer = pair.to_right.write(b"x", remote, notify=7)
    transfer.wait(np.float32(5))  # a number of numpy's is one
    pair.to_left.wait_notify(np.int64(5))
    pair.to_right.write(b"x", remote, notify=7)  # there, but nobody may look with a wrong time
    reason = "not a number" if any(wrong is each for each in NO_TIMES) else "not from 0 to"
    with (
        pair.right.recv_slot("s", 4, src=pair.to_left) as slot,
        pair.to_right.send_slot("s", 4, "float32") as sender,
    ):
        for call in (
            lambda: transfer.wait(wrong),
            lambda: pair.to_left.wait_notify(wrong),
            lambda: pair.to_left.wait_notify(timeout_s=wrong),
            lambda: pair.to_right.wait_ready(wrong),
            lambda: pair.to_right.send_slot("s", timeout_s=wrong),
            lambda: slot.get(wrong),
            lambda: sender.put(np.ones(4, np.float32), wrong),
            lambda: sender.buffer(timeout_s=wrong),
            lambda: pair.left.connect(pair.right.address, timeout_s=wrong),
        ):
            with pytest.raises(InvalidArgumentError, match=rf"timeout_s=.* is .*{reason}"):
                call()


@pytest.mark.parametrize("wrong", NO_RANKS, ids=repr)
def test_a_rank_that_is_no_number_is_refused(world: World, wrong: int) -> None:
    for call in (
        lambda: world[wrong],
        lambda: world.recv_slot("s", 4, src=wrong),
        lambda: world.group("g", [0, wrong]),
        lambda: world.context.connect(world.context.address, rank=wrong),
        lambda: world.context.add_job("another", b"secret", rank=wrong),
    ):
        with pytest.raises(InvalidArgumentError, match=r"rank=.* is a .*, not a whole number"):
            call()
    with world.group("alone", [0]) as group:
        for of_group, name in (
            (lambda: group.send(b"x", wrong), "dst"),
            (lambda: group.recv(bytearray(1), wrong), "src"),
            (lambda: group.broadcast(bytearray(1), wrong), "src"),
            (lambda: group.reduce(bytearray(1), wrong), "dst"),
            (lambda: group.gather(bytearray(1), bytearray(1), wrong), "dst"),
            (lambda: group.scatter(bytearray(1), bytearray(1), wrong), "src"),
        ):
            with pytest.raises(
                InvalidArgumentError, match=rf"{name}=.* is a .*, not a whole number"
            ):
                of_group()


def test_numbers_that_no_c_type_holds_are_named(pair: Pair, world: World) -> None:
    remote = pair.right.export(pair.right.zeros(64))
    write, read = pair.to_right.write, pair.to_right.read
    calls: list[tuple[str, Callable[[], object]]] = []
    for wrong in (1 << 64, -1, 1.5, "a", True):
        offset: int = wrong  # type: ignore[assignment]
        calls += [
            ("dst_offset_bytes", lambda v=offset: write(b"x", remote, dst_offset_bytes=v)),
            ("dst_offset_bytes", lambda v=offset: pair.to_right.prepare_write(
                b"x", remote, dst_offset_bytes=v)),
            ("src_offset_bytes", lambda v=offset: read(bytearray(1), remote, src_offset_bytes=v)),
            ("notify", lambda v=offset: write(b"x", remote, notify=v)),
            ("notify", lambda v=offset: pair.to_right.notify(v, remote)),
            ("notify", lambda v=offset: pair.to_right.prepare_write(b"x", remote).post(notify=v)),
            ("epoch", lambda v=offset: pair.left.add_job("k", b"s", epoch=v)),
        ]  # fmt: skip
    for rank in (1 << 31, -2):
        calls.append(("rank", lambda v=rank: pair.left.add_job("k", b"s", rank=v)))
        calls.append(("rank", lambda v=rank: pair.left.connect(pair.right.address, rank=v)))
    with world.group("alone", [0]) as group:
        for wrong in (1 << 64, -1, 1.5, "a"):
            tag: int = wrong  # type: ignore[assignment]
            calls.append(("tag", lambda v=tag: group.send(b"x", 0, tag=v)))
            calls.append(("tag", lambda v=tag: group.recv(bytearray(1), 0, tag=v)))
        for member in (1, -1, 1 << 32):
            calls.append(("dst", lambda v=member: group.send(b"x", v)))
            calls.append(("src", lambda v=member: group.recv(bytearray(1), v)))
            calls.append(("src", lambda v=member: group.broadcast(bytearray(1), v)))
        for name, call in calls:
            with pytest.raises(InvalidArgumentError, match=rf"^{name}=\S+ is "):
                call()


def test_what_is_no_bytes_and_no_text_is_named(pair: Pair) -> None:
    for name, call in (
        ("address", lambda: pair.left.connect("text")),  # type: ignore[arg-type]
        ("data", lambda: RemoteRegion.decode("text")),  # type: ignore[arg-type]
        ("secret", lambda: pair.left.add_job("k", "secret")),  # type: ignore[arg-type]
        ("job", lambda: pair.left.add_job(5, b"secret")),  # type: ignore[arg-type]
        ("job", lambda: pair.left.add_job("a\0b", b"secret")),
        ("name", lambda: pair.left.recv_slot(5, 4, src=pair.to_right)),  # type: ignore[arg-type]
        ("settings", lambda: Context("tcp")),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgumentError, match=rf"^{name}\b.* (is a|has a) "):
            call()
    remote = pair.right.export(pair.right.zeros(4))
    assert RemoteRegion.decode(bytearray(remote.encode())) == remote


def test_join_is_told_what_a_store_is(settings: Settings, tmp_path: Path) -> None:
    with Context(settings) as context:
        for wrong in (None, "rendezvous"):
            with pytest.raises(InvalidArgumentError, match=r"FileStore\(path\)"):
                join(wrong, 0, 2, context=context)  # type: ignore[arg-type]
        for size in (0, -1):
            with pytest.raises(InvalidArgumentError, match=f"size {size} is not 1 or more"):
                join(FileStore(tmp_path), 0, size, context=context)


def test_the_word_of_a_rank_that_left_is_raised_wherever_it_is_waited_for(
    settings: Settings, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "store")
    with (
        Context(settings) as left,
        Context(settings) as right,
        join(store, 0, 3, context=left, timeout_s=10) as world,
    ):

        def leave() -> None:
            with join(store, 1, 3, context=right):
                raise RuntimeError("out of luck")

        with pytest.raises(RuntimeError, match="out of luck"):
            leave()
        for call in (lambda: world[1], lambda: world.group("g", [0, 1])):
            with pytest.raises(PeerError, match="rank 1 left: RuntimeError: out of") as caught:
                call()
            assert caught.value.rank == 1
        with join(store, 2, 3, context=right):
            world[2].wait_ready()  # the neighbour's word is not the answer for this one


def test_a_sender_is_an_endpoint_or_a_rank(pair: Pair, world: World) -> None:
    for context in (pair.right, world.context):
        for wrong in ("e", 1.0, None, True):
            with pytest.raises(InvalidArgumentError, match=r"neither an Endpoint nor, .* a rank"):
                context.recv_slot("s", 4, src=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"only join\(\)"):
        pair.right.recv_slot("s", 4, src=0)


def test_no_dtype_is_float32_everywhere(pair: Pair) -> None:
    assert pair.left.empty(4, None).dtype == pair.left.zeros(4).dtype == np.float32
    with (
        pair.right.recv_slot("s", 4, None, src=pair.to_left) as slot,
        pair.to_right.send_slot("s", 4) as sender,
    ):
        sender.put(np.ones(4, np.float32))
        with slot.get(timeout_s=5) as got:
            assert got.dtype == np.float32
    with pytest.raises(InvalidArgumentError, match="give a shape with the dtype"):
        pair.to_right.send_slot("t", dtype="float32")


def test_a_tensor_of_another_shape_is_told_both(pair: Pair) -> None:
    with (
        pair.right.recv_slot("d", 4, src=pair.to_left),
        pair.to_right.send_slot("d", 4) as sender,
        pytest.raises(
            MismatchError, match=r"^dimension 0 of slot 'd': the slot has 4, the tensor 8"
        ),
    ):
        sender.put(np.ones(8, np.float32))


# ---- limits and addresses: the message has the line that helps -------------------------------


def test_the_arena_s_bound_is_told_with_one_that_would_do(settings: Settings) -> None:
    with Context(replace(settings, arena_max_mib=8, arena_mib=4)) as context:
        kept = context.zeros(1 << 20, "uint8")
        with pytest.raises(OutOfMemoryError, match="RDMATENSOR_ARENA_MAX_MIB=") as caught:
            context.empty((20 << 20) + 1, "uint8")
        del kept
    enough = int(re.findall(r"RDMATENSOR_ARENA_MAX_MIB=(\d+)", str(caught.value))[0])
    with Context(replace(settings, arena_max_mib=enough, arena_mib=4)) as context:
        kept = context.zeros(1 << 20, "uint8")
        context.empty((20 << 20) + 1, "uint8")
        del kept


def test_a_full_range_of_ports_is_told_by_its_setting(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DeviceError, match=f"RDMATENSOR_PORTS={port}-{port}: each process") as c:
            Context(replace(settings, addr="127.0.0.1", ports=(port, port)))
    assert ":0" not in str(c.value)


def test_addresses_that_are_not_there_are_told_by_their_settings(settings: Settings) -> None:
    open_ = replace(settings, loopback=False)
    for wrong, reason in (
        (
            replace(open_, addr="198.51.100.7"),
            r"with RDMATENSOR_ADDR=198\.51\.100\.7; this host has: .*lo",
        ),
        (replace(open_, ifname="nix0"), r"with RDMATENSOR_IFNAME=nix0; this host has"),
        (replace(settings, addr="198.51.100.7"), "RDMATENSOR_LOOPBACK=1 conflict"),
        (replace(settings, ifname="nix0"), "RDMATENSOR_LOOPBACK=1, which may conflict"),
    ):
        with pytest.raises(InvalidArgumentError, match=reason):
            Context(wrong)


def test_numbers_of_numpy_are_ranks(world: World) -> None:
    with pytest.raises(
        InvalidArgumentError,
        match="rank 5 is not one of the job's: expected another rank from 0 to 1",
    ):
        world[np.int64(5)]
    world.group("alone", [np.int32(0)]).close()  # type: ignore[list-item]
