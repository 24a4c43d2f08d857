"""wire.md states what the headers of csrc/wire say: numbers, layouts, fields, hashes."""

import ast
import hashlib
import hmac
import operator
import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs/developer/wire.md").read_text(encoding="utf-8")
WIRE_HEADERS = sorted((ROOT / "csrc/wire").rglob("*.h"))
PUBLIC_HEADERS = (ROOT / "csrc/include").glob("rdmatensor*.h")
HEADERS = [*PUBLIC_HEADERS, ROOT / "csrc/base/crypto.h", *WIRE_HEADERS]
# Enumerations whose numbers travel; the others are names inside a process.
WIRE_ENUMS = (
    *("RDTI_FRAME_", "RDTI_MESSAGE_", "RDTI_STREAM_", "RDTI_PATH_", "RDTI_COSTS_"),
    *("RDTI_PLACEMENT_", "RDTI_VOTE_", "RDT_LANDING_", "RDTI_PS_OP_", "RDTI_PS_FLAG_"),
)
OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
}


def without_comments(path: Path) -> str:
    return re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def defines(text: str) -> dict[str, str]:
    joined = text.replace("\\\n", " ")
    found = re.findall(r"^#define (RDTI?_\w+)[ \t]+(\S.*)$", joined, flags=re.MULTILINE)
    return {name: re.sub(r"UINT(?:32|64)_C\((\w+)\)", r"\1", value) for name, value in found}


def enums(text: str) -> dict[str, str]:
    """Members with an explicit number; those that travel all have one."""
    return dict(re.findall(r"^\s+(RDTI?_\w+) =\s+(\d+),?\s*$", text, flags=re.MULTILINE))


SOURCE = {path: without_comments(path) for path in HEADERS}
EXPRESSIONS = {name: value for text in SOURCE.values() for name, value in defines(text).items()}
MEMBERS = {name: value for text in SOURCE.values() for name, value in enums(text).items()}


# Stated as bits of `flags` in the table of a part.
FLAGS = {f"RDTI_STREAM_{name}" for name in ("NOTIFY", "MORE", "STRIPED", "ACK_NOW")}


def evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return constant(node.id)
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](evaluate(node.left), evaluate(node.right))
    raise ValueError(ast.dump(node))


def constant(name: str) -> int:
    return evaluate(ast.parse((EXPRESSIONS | MEMBERS)[name].strip(), mode="eval").body)


def numeric_constants(path: Path) -> list[str]:
    names = []
    for name in defines(SOURCE[path]):
        try:
            constant(name)
        except (KeyError, SyntaxError, ValueError):
            continue
        names.append(name)
    return names


def stated() -> list[tuple[str, int]]:
    """What the page claims, in running text (`NAME` = 1) and in tables of enumerations."""
    text = re.findall(r"`(RDTI?_\w+)`\s+=\s+(0x[0-9a-f]+|\d+)", DOC)
    rows = re.findall(r"^\| `(RDTI?_\w+)` \| (\d+) \|", DOC, flags=re.MULTILINE)
    return [(name, int(value, 0)) for name, value in text + rows]


@pytest.mark.parametrize(("name", "value"), stated())
def test_stated_number_is_the_headers(name: str, value: int) -> None:
    assert value == constant(name)


def test_every_number_of_the_headers_is_stated() -> None:
    names = {name for path in WIRE_HEADERS for name in numeric_constants(path)}
    names |= {name for name in MEMBERS if name.startswith(WIRE_ENUMS)}
    assert len(names) > 60, "the headers were not understood"
    assert names - {name for name, _ in stated()} - FLAGS == set()


def test_flags_of_a_part_are_stated() -> None:
    row = re.search(r"^\| 1 \| 1 \| `flags` \| (.*) \|$", DOC, flags=re.MULTILINE)
    assert row is not None
    words = {f"RDTI_STREAM_{name}": int(bit) for bit, name in re.findall(r"(\d+) (\w+)", row[1])}
    assert words == {name: constant(name) for name in FLAGS}


# Fields that stand in place of others for one kind of message; they have a table of their own.
OVERLAID = {("rdti_stream_head", "inlined")}
LAYOUT = re.compile(
    r"^### (?P<title>[\w ]+): `(?P<size>\w+)` = \d+, `struct (?P<struct>\w+)`\n\n"
    r"(?P<table>(?:^\|.*\n)+)",
    flags=re.MULTILINE,
)
LAYOUTS = {match["title"]: match for match in LAYOUT.finditer(DOC)}


def rows(title: str) -> list[tuple[int, int | None, str]]:
    """Offset, bytes (None: as many as are left) and field of each row."""
    cells = [line.split("|")[1:4] for line in LAYOUTS[title]["table"].splitlines()[2:]]
    return [
        (int(offset), None if size.strip() == "n" else int(size), field.strip().strip("`"))
        for offset, size, field in cells
    ]


def struct_fields(name: str) -> list[str]:
    for text in SOURCE.values():
        body = re.search(rf"^struct {name} \{{\n(.*?)^\}};", text, flags=re.MULTILINE | re.DOTALL)
        if body is not None:
            return re.findall(r"(\w+)(?:\[\w+\])?;", body[1])
    raise KeyError(name)


def test_every_struct_of_the_wire_has_a_layout() -> None:
    inside = {"rdti_reader", "rdti_writer", "rdti_fields"}
    found = {
        name
        for path in WIRE_HEADERS
        for name in re.findall(r"^struct (\w+) \{", SOURCE[path], flags=re.MULTILINE)
    }
    described = {match["struct"] for match in LAYOUTS.values()}
    assert found - inside == described - {"rdt_remote_region"}


@pytest.mark.parametrize("title", LAYOUTS)
def test_layout_has_no_gaps_and_the_stated_size(title: str) -> None:
    end = 0
    for offset, size, _ in rows(title):
        assert offset == end
        end += size or 0
    assert end == constant(LAYOUTS[title]["size"])


@pytest.mark.parametrize("title", LAYOUTS)
def test_layout_has_the_fields_of_the_struct_in_order(title: str) -> None:
    named = [field.partition(".")[0] for _, _, field in rows(title) if not field.startswith("(")]
    struct = LAYOUTS[title]["struct"]
    fields = [field for field in struct_fields(struct) if (struct, field) not in OVERLAID]
    assert list(dict.fromkeys(named)) == fields


def test_inlined_payload_and_its_offset_end_the_head() -> None:
    row = r"^\| (\d+) \| (\d+) \| `%s` \|"
    part = DOC[DOC.index("### Part:") :]
    (inlined,) = re.findall(row % "inlined", part, flags=re.MULTILINE)
    _, offset = re.findall(row % "off_bytes", part, flags=re.MULTILINE)[:2]
    assert int(inlined[1]) == constant("RDTI_STREAM_INLINE_BYTES")
    assert int(inlined[0]) + int(inlined[1]) == int(offset[0])
    assert int(offset[0]) + int(offset[1]) == constant("RDTI_STREAM_HEAD_BYTES")


def test_payload_lengths_of_frames_are_those_of_the_layouts() -> None:
    table = re.findall(
        r"^\| `RDTI_FRAME_\w+` \| \d+ \| ([\w ]+|-) \| (\d+)(?: to (\d+))? \|",
        DOC,
        flags=re.MULTILINE,
    )
    assert len(table) == sum(name.startswith("RDTI_FRAME_") for name in MEMBERS)
    for payload, least, most in table:
        title = payload.capitalize()
        want = 0 if payload == "-" else constant(LAYOUTS[title]["size"])
        largest = {
            "Path": want + constant("RDTI_OFFER_MAX_BYTES"),
            "Move": want + constant("RDTI_OFFER_MAX_BYTES"),
            "Verbs words": constant("RDTI_LANE_WORDS_MAX_BYTES"),
        }.get(title, want)
        assert (int(least), int(most or least)) == (want, largest)


# ---- The example ---------------------------------------------------------------------------------

MAGIC = {"HELLO": b"RDTH", "CHALLENGE": b"RDTC", "JOIN": b"RDTJ"}


def example_bytes(message: str) -> bytes:
    """The example's message, from the page's offsets alone."""
    size = constant(LAYOUTS[message]["size"])
    out = bytearray(size)
    version = constant("RDTI_WIRE_VERSION")
    out[0:8] = MAGIC[message] + version.to_bytes(2, "little") + size.to_bytes(2, "little")
    values = re.findall(rf"^\| {message} \| `(\w+)` \| `?([^`|]+?)`? \|$", DOC, flags=re.MULTILINE)
    places = {field: (offset, size) for offset, size, field in rows(message)}
    assert set(places) - {"(head)", "mac"} == {field for field, _ in values}
    for field, value in values:
        offset, width = places[field]
        assert width is not None
        out[offset : offset + width] = example_value(value, width)
    return bytes(out)


def example_value(text: str, width: int) -> bytes:
    span = re.fullmatch(r"([0-9a-f]{2})\.\.([0-9a-f]{2})", text)
    if span is not None:
        data = bytes(range(int(span[1], 16), int(span[2], 16) + 1))
        assert len(data) == width
        return data
    if re.fullmatch(r"-?\d+", text):
        return int(text).to_bytes(width, "little", signed=text.startswith("-"))
    return text.encode().ljust(width, b"\0")


def keyed(key: bytes, *parts: bytes) -> str:
    return hmac.new(key, b"".join(parts), hashlib.sha256).hexdigest()


def example_hashes() -> dict[str, str]:
    secret = re.search(r"With the secret `([^`]+)`", DOC)
    assert secret is not None
    key = secret[1].encode()
    transcript = example_bytes("HELLO") + example_bytes("CHALLENGE")[:-32]
    session = keyed(key, b"rdt session", transcript)
    return {
        "mac of CHALLENGE": keyed(key, b"rdt listener", transcript),
        "mac of AUTH": keyed(key, b"rdt connector", transcript),
        "session key": session,
        "mac of JOIN": keyed(bytes.fromhex(session), b"rdt join", example_bytes("JOIN")[:-32]),
    }


def test_hashes_of_the_example_follow_from_the_page() -> None:
    shown = dict(re.findall(r"^(mac of \w+|session key)\s+([0-9a-f]{64})$", DOC, re.MULTILINE))
    assert shown == example_hashes()


def test_hashes_of_the_example_are_what_the_c_test_wants() -> None:
    source = (ROOT / "tests/c/wire/handshake_test.c").read_text(encoding="utf-8")
    wanted = "".join(re.findall(r"0x([0-9a-f]{2}),?\s", source.replace("}", " ")))
    for name, value in example_hashes().items():
        assert value in wanted, name
