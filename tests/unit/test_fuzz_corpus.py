"""ci/fuzz_corpus.py: inputs of fuzz targets survive as text."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("fuzz_corpus", ROOT / "ci/fuzz_corpus.py")
assert SPEC is not None
assert SPEC.loader is not None
fuzz_corpus = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = fuzz_corpus
SPEC.loader.exec_module(fuzz_corpus)

KEPT = sorted((ROOT / "tests/fuzz/corpus").glob("*.hex"))


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8))
def test_text_gives_the_inputs_back(inputs: list[bytes]) -> None:
    text = fuzz_corpus.render(inputs)
    assert fuzz_corpus.parse(text) == inputs
    assert max(map(len, text.splitlines()), default=0) <= 100


@given(st.lists(st.binary(max_size=60), max_size=12), st.integers(0, 200))
def test_budget_keeps_the_smallest(inputs: list[bytes], budget: int) -> None:
    kept = fuzz_corpus.within_budget(inputs, budget)
    assert sum(map(len, kept)) <= budget
    assert len(set(kept)) == len(kept)
    left_out = set(inputs) - set(kept) - {b""}
    assert all(len(data) + sum(map(len, kept)) > budget for data in left_out)


def test_a_folder_comes_back(tmp_path: Path) -> None:
    source, back, text = tmp_path / "source", tmp_path / "back", tmp_path / "target.hex"
    source.mkdir()
    inputs = {b"\x00", bytes(range(256))}
    for number, data in enumerate(inputs):
        (source / str(number)).write_bytes(data)
    assert fuzz_corpus.pack(text, source) == 2
    assert fuzz_corpus.unpack(text, back) == 2
    assert {path.read_bytes() for path in back.iterdir()} == inputs


def test_what_is_no_text_of_inputs_is_refused() -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        fuzz_corpus.parse("# a comment\n0xyz\n")


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_every_kept_corpus_reads(path: Path) -> None:
    inputs = fuzz_corpus.parse(path.read_text(encoding="ascii"))
    assert inputs
    assert fuzz_corpus.within_budget(inputs) == inputs


def test_there_is_a_corpus() -> None:
    """Of every target: the table of codecs, the decoders next to it, and the state machines."""
    codecs = re.findall(r"^ +ENTRY\((\w+),", (ROOT / "tests/c/wire/codecs.h").read_text(), re.M)
    decoder = (ROOT / "tests/fuzz/decoder.c").read_text()
    extras = re.findall(r'^ +\{"(\w+)", run_\w+, seed_\w+\},', decoder, re.M)
    machines = [path.stem for path in (ROOT / "tests/fuzz").glob("*.c") if path.stem != "decoder"]
    assert len(codecs) > 20
    assert len(extras) > 5
    assert {path.stem for path in KEPT} == {*codecs, *extras, *machines}
