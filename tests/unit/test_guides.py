"""threads.md and ownership.md: what they name exists, their numbers are the code's."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import rdmatensor

ROOT = Path(__file__).parents[2]
THREADING = (ROOT / "docs/explanation/threads.md").read_text(encoding="utf-8")
OWNERSHIP = (ROOT / "docs/explanation/ownership.md").read_text(encoding="utf-8")
HEADER = "".join(
    (ROOT / "csrc/include" / name).read_text(encoding="utf-8")
    for name in ("rdmatensor.h", "rdmatensor_group.h", "rdmatensor_ext.h")
)
BOTH = pytest.mark.parametrize("document", [THREADING, OWNERSHIP], ids=["threading", "ownership"])


def source(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def number(name: str, of: str) -> int:
    """The value of a macro that is one number."""
    found = re.search(rf"#define {name} (?:UINT\d+_C\()?(\d+)", source(of))
    assert found is not None, name
    return int(found[1])


@BOTH
def test_calls_and_codes_that_are_named_exist(document: str) -> None:
    named = set(re.findall(r"\brdt_\w+", document))
    assert len(named) > 4
    assert named <= set(re.findall(r"\b(rdt_\w+)\(", HEADER))
    codes = set(re.findall(r"\bRDT_[A-Z]+", document))
    assert codes
    assert codes <= set(re.findall(r"\bRDT_[A-Z]+", HEADER))


@BOTH
def test_files_that_are_named_exist(document: str) -> None:
    files = re.findall(r"`(csrc/[\w/.]+)`", document)
    assert files
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_the_times_of_waiters_are_the_codes() -> None:
    least = number("RDTI_SPIN_LEAST_NS", "csrc/progress/engine_impl.h")
    most = number("RDTI_SPIN_MOST_NS", "csrc/progress/engine_impl.h")
    nap = number("RDTI_SLICE_NS", "csrc/progress/engine_impl.h")
    assert f"spins for {least // 1000} us, or for up to {most / 10**6:g} ms" in THREADING
    assert f"A sleep is never longer than {nap // 10**6} ms at a\ntime" in THREADING


def test_the_litmus_test_of_the_doorbell_runs_as_often_as_is_said() -> None:
    hops = source("tests/c/base/doorbell_litmus_test.c")
    assert "a litmus test runs 10^7\nrounds of it" in THREADING
    assert f"#define FUTEX_HOPS UINT64_C({10**7})" in hops


def test_every_thread_of_the_library_is_told() -> None:
    """A file that starts threads is a line of the document; a new one fails here first."""
    told = {
        "csrc/progress/engine.c": "**progress thread**",
        "csrc/memory/segment.c": "get a new piece of the arena its pages",
        "csrc/transport/verbs/memory/registrar.c": "that registers memory larger than 64 MiB",
        "csrc/c10d/works/completion_thread.cpp": "finishers of the `torch.distributed` backend",
        "csrc/ps/server/server.c": "one for each parameter server",
        "csrc/c10d/rendezvous/store_client.cpp": (
            "on which a group of `torch.distributed` asks its store"
        ),
    }
    starts = re.compile(r"pthread_create\(|std::j?thread\((?!::)|\bstart_thread\(")
    found = {
        str(path.relative_to(ROOT))
        for pattern in ("*.c", "*.cpp")
        for path in (ROOT / "csrc").rglob(pattern)
        if starts.search(path.read_text(encoding="utf-8"))
    }
    assert found == set(told)
    assert [words for words in told.values() if words not in THREADING] == []


def test_threads_of_the_library_take_no_signals() -> None:
    for name in ("progress/engine.c", "memory/segment.c", "transport/verbs/memory/registrar.c"):
        text = source(f"csrc/{name}")
        assert 0 <= text.find("sigfillset(") < text.find("pthread_create("), name
    torch = source("csrc/c10d/works/thread.hpp")
    assert "sigfillset(" in torch
    assert torch.count("std::thread(") == torch.count("SignalsBlocked blocked;") == 1


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("Context", "World", "Group", "Region"), "any"),
        (("Endpoint",), "any"),
        (("SlotReceiver", "SlotSender", "Transfer"), "one"),
    ],
)
def test_the_classes_say_the_same_of_threads(names: tuple[str, ...], words: str) -> None:
    row = re.search(rf"^\| .*`{names[-1]}`.* \| (\w+)", THREADING, re.MULTILINE)
    assert row is not None
    assert row[1] == words
    for name in names:
        doc = inspect.getdoc(getattr(rdmatensor, name)) or ""
        said = re.search(r"Threads:\n    (\w+) thread", doc)
        assert said is not None, name
        assert said[1].lower() == words, name


def test_the_states_of_a_slot_and_of_a_region_are_the_codes() -> None:
    slot = source("csrc/slot/slot.h")
    for state in ("FREE", "FULL", "HELD"):
        assert re.search(rf"^ \*   {state} ", slot, re.MULTILINE), state
        assert f"| {state} |" in OWNERSHIP
    assert "A slot has two buffers" in OWNERSHIP
    assert number("RDTI_SLOT_BUFFERS", "csrc/slot/slot.h") == 2
    region = source("csrc/memory/region.h")
    for state in ("PRIVATE", "EXPORTED", "QUARANTINE"):
        assert re.search(rf"^ \*   {state} ", region, re.MULTILINE), state
        assert re.search(rf"^\| {state.lower()}\b", OWNERSHIP, re.MULTILINE), state


def test_what_works_in_a_forked_child_is_what_the_header_says() -> None:
    assert "rdt_transfer_test()" in THREADING
    rule = re.search(r"In a forked child every call.*?(?= \*   - )", HEADER, re.DOTALL)
    assert rule is not None
    assert "RDT_EFORKED" in rule[0]
    assert "rdt_transfer_test()" in rule[0]
