"""The tables of states in the headers are those that the code goes by: names and transitions.

Whatever changes a state asks the code's table first, in every build with assertions, so that all
tests hold the code to it; here it is held to what the header tells its reader.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
ROOMS = ("memory", "endpoint", "slot", "message", "group", "api")  # of the core
COLLECTIVE = "collectives/collective"
# header of the table, header of the enum, file of the code's table, what states are called in C
TABLES = [
    ("endpoint/endpoint.h", "endpoint/endpoint.h", "endpoint/state.c", "RDTI_EP_"),
    ("memory/region.h", "memory/region_impl.h", "memory/region.c", "RDTI_REGION_"),
    ("group/group.h", "group/group_impl.h", "group/group_end.c", "RDTI_GROUP_"),
    ("message/request_impl.h", "message/request_impl.h", "message/request.c", "RDTI_REQUEST_"),
    (COLLECTIVE + ".h", COLLECTIVE + ".h", COLLECTIVE + ".c", "RDTI_COLL_"),
]
ENDS = {"gone", "freed", "finished"}  # which are no states of the code's


def told_by(header: str) -> dict[str, set[str]]:
    """Return the table of a header's comment: each state, and those that follow it."""
    lines = header.splitlines()
    first = next(i for i, line in enumerate(lines) if re.match(r" \*   state .*leaves by", line))
    column = lines[first].index("leaves by")
    cells: dict[str, str] = {}
    state = ""
    for line in lines[first + 1 :]:
        if line.strip() == "*":
            break
        named = re.match(r" \*   ([A-Z]+) ", line)
        state = named[1] if named else state
        cells[state] = f"{cells.get(state, '')} {line[column:]}"
    followers: dict[str, set[str]] = {}
    for name, cell in cells.items():
        arrows = re.findall(r"-> ((?:\w+, )*\w+(?: or \w+)?)", " ".join(cell.split()))
        words = {word for arrow in arrows for word in re.split(r", | or ", arrow)}
        followers[name] = words - ENDS
    return followers


def enum_of(header: str, prefix: str) -> list[str]:
    found = re.search(rf"enum \w+_state \{{([^}}]*{prefix}[^}}]*)\}}", header)
    assert found is not None
    return re.findall(rf"{prefix}(\w+)", found[1])


def gone_by(code: str, prefix: str) -> dict[str, set[str]]:
    """Return the table that is asked whenever a state changes."""
    table = re.search(r"may_become\[\] = \{(.*?)\n\};", code, re.DOTALL)
    assert table is not None
    rows = re.findall(rf"\[{prefix}(\w+)\] =(.*?),\n", table[1] + "\n", re.DOTALL)
    return {state: set(re.findall(rf"1u << {prefix}(\w+)", row)) for state, row in rows}


@pytest.mark.parametrize(("table", "enum", "code", "prefix"), TABLES, ids=str)
def test_what_the_header_tells_is_what_the_code_goes_by(
    table: str, enum: str, code: str, prefix: str
) -> None:
    told = told_by((CSRC / table).read_text(encoding="utf-8"))
    states = enum_of((CSRC / enum).read_text(encoding="utf-8"), prefix)

    assert list(told) == states
    assert told == gone_by((CSRC / code).read_text(encoding="utf-8"), prefix)


@pytest.mark.parametrize(
    ("call", "prefix"),
    [
        ("rdti_endpoint_set_state", "RDTI_EP_"),
        ("rdti_region_become", "RDTI_REGION_"),
        ("group_end_become", "RDTI_GROUP_"),
        ("rdti_request_become", "RDTI_REQUEST_"),
        ("coll_become", "RDTI_COLL_"),
    ],
)
def test_states_change_by_one_call(call: str, prefix: str) -> None:
    """But for requests that begin: what is sent waits for its turn, or for its own receive."""
    folders = ("collectives",) if prefix == "RDTI_COLL_" else ROOMS
    paths = [path for folder in folders for path in sorted((CSRC / folder).glob("*.c"))]
    files = {str(path.relative_to(CSRC)): path.read_text(encoding="utf-8") for path in paths}
    changes = re.findall(rf"\b{call}\(\w+, {prefix}(\w+)\);", "".join(files.values()))
    past_it = {
        (name, state)
        for name, text in files.items()
        for state in re.findall(rf"->state = {prefix}(\w+);", text)
    }
    begin = {
        ("group/messages.c", "LOCAL"),
        ("message/mailbox.c", "QUEUED"),
        ("message/persistent_send.c", "QUEUED"),
    }

    assert len(set(changes)) > 1
    assert past_it == (begin if prefix == "RDTI_REQUEST_" else set())


def test_a_table_that_tells_something_else_is_seen() -> None:
    header = (CSRC / "endpoint/endpoint.h").read_text(encoding="utf-8")

    assert told_by(header.replace("last close -> CLOSING", "last close -> LEFT")) != told_by(header)
    header = (CSRC / "message/request_impl.h").read_text(encoding="utf-8")
    assert "GRANTED" in told_by(header)["POSTED"]


def test_buffers_of_a_slot_go_round() -> None:
    """Their states are three counts, which whoever takes a tensor or gives it back looks at."""
    header = (CSRC / "slot/slot.h").read_text(encoding="utf-8")
    code = (CSRC / "slot/slot.c").read_text(encoding="utf-8")
    arrivals = (CSRC / "slot/slots.c").read_text(encoding="utf-8")

    assert told_by(header) == {"FREE": {"FULL"}, "FULL": {"HELD"}, "HELD": {"FREE"}}
    assert code.count("rdti_slot_check_buffers(slot);") == 2
    assert "arrived - released >= RDTI_SLOT_BUFFERS" in arrivals  # a peer's fault, and no assertion


def test_works_of_torch_go_by_their_table() -> None:
    """Each change asks the function that is held to the table here; there is no other store."""
    header = (CSRC / "c10d/works/work.hpp").read_text(encoding="utf-8")
    code = (CSRC / "c10d/works/work.cpp").read_text(encoding="utf-8")
    cases = re.findall(r"case State::(\w+):\s*return (.*?);", code)
    table = {
        state.upper(): {to.upper() for to in re.findall(r"to == State::(\w+)", answer)}
        for state, answer in cases
    }
    named = re.search(r"enum class State \{ (.*?) \}", header)

    assert named is not None
    assert [name.upper() for name in named[1].split(", ")] == list(table)
    assert told_by(header) == table
    assert code.count("state_.store(") == 1
    assert set(re.findall(r"\bbecome\(State::(\w+)\);", code)) == {"Armed", "Settled"}


def test_a_transfer_is_done_once() -> None:
    """Its two states are one flag, which one function raises, and only where it is down."""
    files = {
        path.name: path.read_text(encoding="utf-8")
        for path in sorted((CSRC / "progress").glob("*.c"))
    }
    raised = {name: text.count("->is_done, 1,") for name, text in files.items()}
    header = (CSRC / "progress/transfer.h").read_text(encoding="utf-8")

    assert told_by(header) == {"PENDING": {"DONE"}, "DONE": set()}
    assert {name: times for name, times in raised.items() if times} == {"transfer.c": 1}
    before = files["transfer.c"].split("->is_done, 1,")[0].rpartition("rdti_transfer_finish(")[2]
    assert "assert(!rdti_transfer_is_done(t));" in before
