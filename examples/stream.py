"""Stream tensors from rank 0 to rank 1: torchrun --nproc-per-node 2 examples/stream.py.

It needs no torch: torchrun only starts the two processes and names the ranks.
"""

import os
import tempfile
import time
from pathlib import Path

import numpy as np

from rdmatensor import FileStore, World, join

COUNT, SHAPE = 8, (256, 256)


# The sender: buffer() is the receiver's memory, or memory here if the path needs it.
def send(world: World) -> None:
    with world[1].send_slot("frames", SHAPE, "float32") as frames:
        waited_s = 0.0
        for number in range(COUNT):
            start_s = time.perf_counter()
            buffer = frames.buffer()  # waits until the receiver has released one of two buffers
            waited_s += time.perf_counter() - start_s
            buffer[:] = number
            frames.post().wait()
        print(f"sender: {COUNT} frames, waited {waited_s:.1f} s for the receiver", flush=True)


# The receiver: the array is the slot's memory, valid inside the block.
def receive(world: World) -> None:
    with world.recv_slot("frames", SHAPE, "float32", src=0) as frames:
        total = 0.0
        for _ in range(COUNT):
            with frames.get(timeout_s=30) as frame:
                time.sleep(0.05)  # a slow receiver: the sender waits, nothing piles up
                total += float(np.mean(frame))
        print(f"receiver: sum of means {total}", flush=True)


rank = int(os.environ["RANK"])
folder = Path(tempfile.gettempdir()) / f"stream-{os.environ['MASTER_PORT']}"
with join(FileStore(folder), rank, size=2) as world:
    send(world) if rank == 0 else receive(world)
