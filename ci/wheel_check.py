"""Run inside an environment that has the wheel: is it whole?

Usage: wheel_check.py bare|torch|other
bare: an environment without torch. torch: one with a torch that the wheel has a module for.
other: one with another torch, and a compiler.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

# What a shared object of the wheel may ask the loader for: what every Linux has, and also torch's
# libraries where torch was loaded before. libibverbs is on no list: it is loaded at run time, and
# only where it is installed. Thread-local variables need the loader itself.
SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|gcc_s)\.so\.\d+|ld-linux[\w-]*\.so\.\d+)")
LIBRARY = re.compile(r"librdmatensor\.so(\.\d+)?")
TORCH = re.compile(r"lib(torch(_\w+)?|c10)\.so|libstdc\+\+\.so\.\d+")
COMPILE_S = 1200  # on two cores that others use, too
NEEDED = re.compile(r"\(NEEDED\)\s+Shared library: \[(?P<name>.+)\]")


def run(*arguments: str, limit_s: int = 120) -> str:
    """Run this interpreter again and return what it printed."""
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=limit_s
    ).stdout.strip()


def allowed_needs(file_name: str) -> tuple[re.Pattern[str], ...]:
    """Return what this shared object may need: the library itself nothing but the system."""
    if LIBRARY.fullmatch(file_name):
        return (SYSTEM,)
    return (SYSTEM, LIBRARY, TORCH) if file_name.startswith("_c10d_torch") else (SYSTEM, LIBRARY)


def needed_by(shared: Path) -> list[str]:
    """Return the libraries without which the loader refuses this shared object (binutils)."""
    command = ["readelf", "--dynamic", "--wide", str(shared)]
    environment = {**os.environ, "LC_ALL": "C"}
    said = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=60, env=environment
    ).stdout
    assert "Dynamic section at offset" in said, f"{shared} is not a shared object:\n{said}"
    return [found["name"] for found in NEEDED.finditer(said)]


def check_needed(folder: Path) -> None:
    """Every shared object of the package needs only what is on its list."""
    shared = sorted(folder.rglob("*.so*"))
    assert any(LIBRARY.fullmatch(path.name) for path in shared), f"no librdmatensor in {folder}"
    for path in shared:
        lists = allowed_needs(path.name)
        needed = needed_by(path)
        assert needed, f"{path.name} needs nothing, not even libc"
        odd = [name for name in needed if not any(one.fullmatch(name) for one in lists)]
        assert not odd, f"{path.name} needs {', '.join(odd)}, which is not on the list"


def check_packages() -> None:
    """Both packages stand in this environment, typed, with entry point and command."""
    for name in ("rdmatensor", "graph_analysis"):
        spec = importlib.util.find_spec(name)
        assert spec is not None, f"{name} is not installed"
        assert spec.origin is not None, f"{name} has no __init__.py"
        folder = Path(spec.origin).parent
        assert Path(sys.prefix) in folder.parents, f"{name} is imported from {folder}"
        assert (folder / "py.typed").is_file(), f"{name} has no py.typed"
        run("-c", f"import {name}")
    entries = importlib.metadata.entry_points(group="torch.backends", name="rdmatensor")
    assert [entry.value for entry in entries] == ["rdmatensor._autoload:register"]
    command = Path(sys.prefix) / "bin" / "rdmatensor"
    subprocess.run([command, "--help"], check=True, stdout=subprocess.DEVNULL, timeout=60)
    # Its status is the machine's; what it finds is not judged here.
    done = subprocess.run(
        [command, "doctor", "--json"], check=False, stdout=subprocess.PIPE, timeout=60
    )
    findings = json.loads(done.stdout)["findings"]
    assert {"version", "shm", "tcp"} <= {found["subject"] for found in findings}


def check_library() -> None:
    """The cffi module loads its library, of the version that the package claims."""
    code = (
        "from rdmatensor._rdmatensor_cffi import ffi, lib;"
        "print(ffi.string(lib.rdt_version()).decode(), lib.rdt_abi_version() >> 16)"
    )
    version, abi_major = run("-c", code).split()
    assert version == importlib.metadata.version("rdmatensor")
    assert int(abi_major) > 0


# Two ranks add up an array; no torch is there.
ARRAYS = """
import multiprocessing, sys, tempfile
import numpy as np
import rdmatensor

def rank(number, folder):
    with rdmatensor.join(rdmatensor.FileStore(folder), number, size=2) as world:
        array = np.full(1000, number + 1, np.float32)
        world.group("all").all_reduce(array).wait()
        assert (array == 3).all()

if __name__ == "__main__":
    start = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [start.Process(target=rank, args=(one, folder)) for one in range(2)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join()
    assert [one.exitcode for one in ranks] == [0, 0]
    print("done")
"""
# Two ranks of torch.distributed add up a tensor.
RANKS = """
import sys, tempfile
import torch, torch.distributed as dist, torch.multiprocessing as mp

def rank(number, folder):
    dist.init_process_group("rdmatensor", init_method=f"file://{folder}/store", rank=number,
                            world_size=2)
    tensor = torch.full((1000,), float(number + 1))
    dist.all_reduce(tensor)
    assert tensor.eq(3).all()
    dist.destroy_process_group()

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (folder,), nprocs=2)
    print("done")
"""


def run_file(text: str) -> str:
    """Run a program of its own file, as processes that it starts import it."""
    path = Path("program.py")
    path.write_text(text, encoding="utf-8")
    return run(str(path))


def backends() -> dict[str, str]:
    """The modules that the wheel says it has, by file, with the torch of each."""
    code = "import json; from rdmatensor._build_stamp import BACKENDS as b; print(json.dumps(b))"
    found: dict[str, str] = json.loads(run("-c", code))
    return found


def check_files() -> None:
    """The wheel has the modules that it says it has, and one cffi module for all Pythons."""
    folder = Path(run("-c", "import rdmatensor; print(rdmatensor.__path__[0])"))
    assert {path.name for path in folder.glob("_c10d*")} == set(backends())
    assert [path.name for path in folder.glob("_rdmatensor_cffi*")] == ["_rdmatensor_cffi.abi3.so"]
    assert (folder / "_csrc" / "c10d" / "backend.hpp").is_file()


def check_bare() -> None:
    """Without torch: nothing that the package imports needs it, and arrays move."""
    assert importlib.util.find_spec("torch") is None
    assert run_file(ARRAYS) == "done"


def check_torch() -> None:
    """With torch: the backend is there after `import torch`, in any order of imports."""
    available = "torch.distributed.is_backend_available('rdmatensor')"
    for first in ("torch.distributed", "rdmatensor, torch.distributed"):
        assert run("-W", "error", "-c", f"import {first}; print({available})") == "True", first
    code = "from rdmatensor._backend.extension import load_extension as e; print(e().__file__)"
    assert Path(run("-c", code)).name in backends()
    assert run_file(RANKS) == "done"


def check_other() -> None:
    """With a torch that the wheel has no module for: it is compiled once, and then works."""
    code = "from rdmatensor._backend.extension import load_extension as e; print(e().__file__)"
    assert Path(run("-c", code, limit_s=COMPILE_S)).name not in backends()
    assert run_file(RANKS) == "done"


if __name__ == "__main__":
    check_packages()
    check_library()
    check_needed(Path(run("-c", "import rdmatensor; print(rdmatensor.__path__[0])")))
    check_files()
    {"bare": check_bare, "torch": check_torch, "other": check_other}[sys.argv[1]]()
