"""Every fenced block of README.md and docs/ runs as it is printed, page by page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from page_blocks import PAGES, REASONS, ROOT, Page, blocks_of, matches, without_blocks

RUN = [page for page in PAGES if any(True for _ in blocks_of(page.read_text(encoding="utf-8")))]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    Page(tmp_path).run(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_is_fenced_and_has_a_language(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [block.line for block in blocks_of(text) if not block.language] == []
    rest = without_blocks(text)
    indented = re.findall(r"\n\n( {4}\S[^\n]*)", rest)
    assert [line for line in indented if not line.lstrip().startswith(("- ", "* "))] == []


def test_each_reason_is_used() -> None:
    used = {
        block.words
        for page in PAGES
        for block in blocks_of(page.read_text(encoding="utf-8"))
        if block.how == "not run"
    }
    assert used == set(REASONS)


@pytest.mark.parametrize(
    "text",
    [
        "```python\nraise SystemExit(1)\n```",
        "```bash\nfalse\ntrue\n```",
        "```console\n$ echo one\ntwo\n```",
        "```console\n$ echo one two\none\n```",
        "```c\nint main(void) { return missing; }\n```",
        "<!-- not run: because -->\n```bash\ntrue\n```",
        "<!-- run: host 0 -->\n```console\n$ false\n```",
        "```cobol\nSTOP RUN.\n```",
    ],
)
def test_a_block_that_is_wrong_fails(text: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"^line \d"):
        Page(tmp_path).run(text)


def test_blocks_of_a_page_share_a_folder(tmp_path: Path) -> None:
    page = Page(tmp_path)
    text = """
<!-- file: hello.py -->
```python
import os, sys
print("hello", sys.argv[1], os.environ.get("RDMATENSOR_TEST_HOST"))
```

```console
$ python hello.py a && \\
  python hello.py b
hello a None
...
```

<!-- run: host 0 -->
```console
$ while [ ! -e met ]; do sleep 0.05; done; python hello.py 0
hello 0 host0
```

<!-- run: host 1 -->
```console
$ touch met; python hello.py node1:29500
```

```text
anything
```
"""
    assert page.run(text) == 3
    assert page.here("node1:29500") == f"127.0.0.1:{page.ports['29500']}"
    assert page.here('cat "$HOME/secret"') == f'cat "{tmp_path}/secret"'


def test_output_of_ranks_is_compared_whatever_their_order() -> None:
    assert matches("b\na\n", "a\nb")
    assert matches("a  b\n\n", "a b")
    assert matches("rank 0 3rank 1 3\n\n", "rank 0 3\nrank 1 3")
    assert not matches("a\nb\nc\n", "a\nb")
    assert matches("a\nb\nc\n", "a\n...")
    assert not matches("a\n", "a\nb\n...")


@pytest.mark.parametrize("page", sorted((ROOT / "docs/tutorials").glob("*-*.md")), ids=str)
def test_a_tutorial_runs_its_program_of_examples(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    shown = set(re.findall(r"literalinclude\} \.\./\.\./examples/(\w+\.py)", text))
    run = "".join(block.body for block in blocks_of(text) if block.language == "console")
    assert len(shown) == 1
    assert f"examples/{shown.pop()}" in run


def test_every_picture_is_drawn_and_shown() -> None:
    script = (ROOT / "docs/_ext/pictures.py").read_text(encoding="utf-8")
    drawn = set(re.findall(r'^    "(\w+)": \1,$', script, re.MULTILINE))
    shown = {
        name
        for page in PAGES
        for name in re.findall(r"pictures/(\w+)\.svg", page.read_text(encoding="utf-8"))
    }
    assert len(drawn) >= 7
    assert shown == drawn
