"""Let `import horovod` find rdmatensor.horovod where no real Horovod is."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_THEIRS, _OURS = "horovod", "rdmatensor.horovod"
_LACKS = {
    "tensorflow": "use Keras 3 on torch with horovod.keras, or horovod.torch",
    "mxnet": "use horovod.torch",
    "spark": "start ranks with `rdmatensor horovodrun` or horovod.run()",
    "ray": "start ranks with `rdmatensor horovodrun`, or Ray Train with this backend",
    "mpi": "ranks meet through a store of torch.distributed",
}


class _Alias(Loader):
    """Gives a module a second name; it is loaded once, under its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        del spec
        module = importlib.import_module(self._name)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # the import system has replaced it by the alias's


class _Finder(MetaPathFinder):
    """Stands last on sys.meta_path: it is asked for what no other finder has found.

    Once `horovod` is rdmatensor's, it also stands first: others would load modules twice.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        root, _, rest = fullname.partition(".")
        if root != _THEIRS:
            return None
        if rest and sys.modules.get(_THEIRS) is not sys.modules.get(_OURS):
            return None  # a real Horovod that lacks this module
        if rest.partition(".")[0] in _LACKS:
            raise ImportError(
                f"rdmatensor has no {fullname}: {_LACKS[rest.partition('.')[0]]}", name=fullname
            )
        name = f"{_OURS}.{rest}" if rest else _OURS
        if importlib.util.find_spec(name) is None:
            return None
        if not rest:
            sys.meta_path.insert(0, self)
            if os.environ.get("HOROVOD_RANK", "0") == "0":
                print("rdmatensor: `import horovod` is rdmatensor.horovod here", file=sys.stderr)
        return ModuleSpec(fullname, _Alias(name), is_package=not rest)


def append_finder() -> None:
    """Append the finder to sys.meta_path unless it is there."""
    if not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.append(_Finder())
