"""What a slot gives, as a torch tensor."""

from __future__ import annotations

import pytest
import torch

from rdmatensor import Context, NotSupportedError, Settings


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_what_a_slot_gives_is_a_torch_tensor_over_its_memory(dtype: torch.dtype) -> None:
    settings = Settings(transport="shm", loopback=True, secret=b"slots")
    with Context(settings) as left, Context(settings) as right:
        left.add_job(rank=0)
        right.add_job(rank=1)
        to_right, to_left = left.connect(right.address, rank=1), right.connect(left.address)
        with (
            right.recv_slot("s", (4,), dtype, src=to_left) as slot,
            to_right.send_slot("s", (4,), dtype) as out,
        ):
            out.put(torch.arange(4, dtype=dtype)).wait()
            received = slot.get(timeout_s=10)
            assert received.tensor.dtype == dtype
            assert received.tensor.tolist() == [0, 1, 2, 3]
            assert received.tensor.data_ptr() == received.array.ctypes.data
            if dtype == torch.bfloat16:
                with pytest.raises(NotSupportedError, match=r"take SlotTensor\.tensor"):
                    torch.from_dlpack(received)
            else:
                shared = torch.from_dlpack(received)
                assert shared.data_ptr() == received.array.ctypes.data
                del shared
            received.release()
