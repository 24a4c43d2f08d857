"""Linear layers whose weights lie in another process's memory.

For example::

    with rdmatensor.budget.lend("4GiB" if rank == 1 else 0) as lent:
        if rank == 0:
            rdmatensor.stream.replace(model, "head", lent)
            ...

Weights come in segments that are multiplied while the next one is read; where the lender's memory
is mapped, they are read in place.
"""

from rdmatensor.stream.linear import Linear, replace
from rdmatensor.stream.product import linear
from rdmatensor.stream.remote import Remote, place

__all__ = ["Linear", "Remote", "linear", "place", "replace"]
