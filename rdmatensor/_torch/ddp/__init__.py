"""DistributedDataParallel's buckets and gradients in the arena: all that uses its private names.

RDMATENSOR_ADOPT=0 (`Settings.adopt`) switches it off: the wrappers then only report modules to
describe() and the recorder. RDMATENSOR_HOOKS=0 installs no wrapper at all.

What it takes from torch, with csrc/c10d/ddp, and what a change there breaks:

- `DistributedDataParallel._ddp_init_helper()`, `_pre_forward()`, `_post_forward()`, wrapped by
  adopt.py. One that is missing is not wrapped. Without the first, buckets are in torch's own memory
  and modules have no names for describe(); without the second, rebuilt buckets are; without the
  third, no gradient is allocated in its bucket. All is still sent, with copies.
- `_has_rebuilt_buckets`, read by adopt.py and gradients.py. Without it, each forward pass counts as
  one that may rebuild the buckets, and no gradient is allocated in its bucket.
- `_delay_all_reduce_params`, `batched_grad_copy`, `_use_python_reducer`, read by gradients.py:
  cases in which gradients are not in buckets, or are moved later. A new name for one of them would
  be overlooked; csrc/c10d/ddp/gradients.cpp checks each place before the reducer writes there.
- `reducer`, and its protected members `buckets_` and `next_bucket_`
  (csrc/c10d/ddp/reducer_buckets.cpp). If they change, the extension does not compile, and it loads
  only into the torch that it was built for.

Attributes without an underscore, such as `static_graph`, are read too.
"""
