"""Batches of samples that workers lease, so that each is processed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from rdmatensor._native.arguments import U32_MAX, invalid, whole, whole_in
from rdmatensor._native.ffi import CData, ffi, lib
from rdmatensor.ps.table import Run


class WorkQueue:
    """Chunks 0 to chunks - 1, each for one worker; made by Worker.queue(). Iterate over it.

    A chunk is done when clock() has returned after it, and its pushes are applied once, also if a
    worker dies: its chunk goes to another worker. In "sync" the order of chunks is the same in each
    run while no worker dies.

    Attributes:
        name: Of the queue.
        chunks: Number of chunks.
    """

    def __init__(
        self, run: Run, refresh: Callable[[], None], name: str, chunks: int, ids: list[int]
    ) -> None:
        self.name, self.chunks = name, chunks
        self._run, self._refresh = run, refresh
        self._ids = ffi.new("uint32_t[]", ids)
        self._chunk, self._is_stale = ffi.new("uint64_t *"), ffi.new("uint32_t *")

    def __iter__(self) -> Iterator[int]:
        """Yield the chunks of this worker; call clock() after each.

        Raises:
            InvalidArgumentError: clock() was not called since the last chunk.
            TransferTimeoutError: The other workers have not ended their chunks in time.
            PeerError: A server, or a worker without which the job ends, died.
        """
        while (chunk := self._lease()) is not None:
            yield chunk

    def _lease(self) -> int | None:
        def begin(ptr: CData, timeout_ns: int, err: CData) -> int:
            status: int = lib.rdt_ps_worker_lease(
                ptr, self._ids, self._chunk, self._is_stale, timeout_ns, err
            )
            return status

        self._run("queue", begin)
        if self._is_stale[0]:
            self._refresh()
        chunk = int(self._chunk[0])
        return None if chunk == lib.RDT_PS_CHUNK_NONE else chunk

    def __repr__(self) -> str:
        return f"<WorkQueue {self.name!r} of {self.chunks} chunks>"


def batches(
    queue: Callable[[str, int], WorkQueue],
    data: Sequence[torch.Tensor],
    batch_size: int,
    epochs: int,
    seed: int | None,
    name: str,
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the batches of this worker; see Worker.batches()."""
    tensors = tuple(data)
    if not tensors or any(
        not isinstance(one, torch.Tensor) or one.dim() == 0 or len(one) != len(tensors[0])
        for one in tensors
    ):
        raise invalid("batches", "data must be tensors of one length, the number of samples")
    size = whole(batch_size, "batches", "batch_size")
    if size < 1:
        raise invalid("batches", f"batch_size={size} is not 1 or more")
    samples = len(tensors[0])
    draw = torch.Generator()
    for epoch in range(whole_in(epochs, U32_MAX, "batches", "epochs")):
        order = torch.arange(samples)
        if seed is not None:
            order = torch.randperm(samples, generator=draw.manual_seed(seed + epoch))
        for chunk in queue(f"{name}/{epoch}", -(-samples // size)):
            picked = order[chunk * size : (chunk + 1) * size]
            yield tuple(one[picked] for one in tensors)
