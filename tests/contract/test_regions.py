"""Regions: exported memory, what becomes of it, and memory that the user had already."""

from __future__ import annotations

import gc
import time
import weakref

import numpy as np
import pytest
from pairs import Pair

from rdmatensor import ClosedError, InvalidArgumentError, StaleRegionError


def test_a_freed_region_is_stale_and_what_follows_it_is_untouched(pair: Pair) -> None:
    dst = pair.right.zeros(1000)
    region = pair.right.export(dst)
    pair.to_right.write(np.ones(1000, np.float32), region).wait()
    del dst
    pair.hear_of_the_end()
    successors = [pair.right.zeros(1000) for _ in range(50)]
    for attempt in range(20):
        with pytest.raises(StaleRegionError, match="freed"):
            pair.to_right.write(np.full(1000, 9, np.float32), region, notify=attempt).wait()
        with pytest.raises(StaleRegionError):
            pair.to_right.read(np.zeros(1000, np.float32), region).wait()
    assert not any(successor.any() for successor in successors)


def test_the_same_place_exported_again_has_another_generation(pair: Pair) -> None:
    seen = set()
    for _ in range(20):
        array = pair.right.zeros(1000)
        region = pair.right.export(array)
        assert region == pair.right.export(array)
        seen.add((region.index, region.generation))
        pair.to_right.write(np.ones(1000, np.float32), region).wait()
        assert array.all()
        del array
    assert len(seen) == 20


def test_a_view_keeps_the_region_alive(pair: Pair) -> None:
    array = pair.right.zeros(1000)
    region = pair.right.export(array)
    view = array[500:600]
    del array
    gc.collect()
    pair.to_right.write(np.ones(1000, np.float32), region).wait()
    assert view.all()


def test_registered_memory_is_written_in_place(pair: Pair) -> None:
    mine = np.zeros(5000, np.float64)
    with pair.right.register(mine) as registered:
        region = registered.export()
        assert region == pair.right.export(mine)
        pair.to_right.write(np.arange(5000.0), region, notify=1)
        pair.to_left.wait_notify(timeout_s=10)
        assert (mine == np.arange(5000)).all()
        got = np.zeros(5000)
        pair.to_right.read(got, region).wait()
        assert (got == mine).all()
    pair.hear_of_the_end()
    with pytest.raises(StaleRegionError):
        pair.to_right.write(np.zeros(5000), region).wait()
    with pytest.raises(ClosedError):
        registered.export()
    assert (mine == np.arange(5000)).all()


def test_registered_memory_is_kept_as_long_as_peers_may_write_it(pair: Pair) -> None:
    mine = np.zeros(1000)
    alive = weakref.ref(mine)
    registered = pair.right.register(mine)
    pair.to_right.write(np.ones(1000), registered.export()).wait()
    del mine
    gc.collect()
    assert alive() is not None
    registered.close()
    deadline_s = time.monotonic() + 5
    while alive() is not None and time.monotonic() < deadline_s:
        pair.right.progress()  # the peer's acknowledgement is on its way
        time.sleep(0.001)
    assert alive() is None


def test_a_registered_bytearray_cannot_be_resized(pair: Pair) -> None:
    data = bytearray(100)
    with pair.right.register(data), pytest.raises(BufferError):
        data.append(1)
    gc.collect()


def test_what_cannot_be_exported(pair: Pair) -> None:
    array = pair.right.zeros((10, 10))
    for refused in (np.zeros(10), array[2:5], array[:, 1:3], b"literal"):
        with pytest.raises(InvalidArgumentError):
            pair.right.export(refused)
    with pytest.raises(InvalidArgumentError):
        pair.right.register(b"read only")
    assert pair.right.export(array.reshape(100)) == pair.right.export(array)


def test_zero_size_is_legal_everywhere(pair: Pair) -> None:
    nothing = pair.right.zeros((0, 4))
    region = pair.right.export(nothing)
    assert region.len_bytes == 0
    pair.to_right.write(np.zeros((0, 4), np.float32), region, notify=5).wait()
    assert pair.to_left.wait_notify(timeout_s=10) == 5
    with pytest.raises(InvalidArgumentError):
        pair.to_right.write(b"x", region)
