"""Every block of code in README.md and docs/ is run here, or listed in tests/docs/elsewhere.py with a reason."""

import re

import pytest

from server.options import PROJECT
from tests.docs.blocks import blocks
from tests.docs.elsewhere import ELSEWHERE, listed
from tests.docs.reader import RUN, Reader
from tests.docs.scenes import SCENES

pytestmark = [
    pytest.mark.xdist_group("documentation"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # clients keep their connections
]
FIGURES = {"text", "mermaid"}
DATA = {"json", "yaml", "toml", "hcl"}
"""tests/docs/test_data.py reads them."""
_END = object()
PAGES = sorted(
    {block.page for block in blocks() if block.language in RUN and block not in listed()}
)


# --- the list ------------------------------------------------------------------------------------


def test_every_block_is_run_or_listed():
    languages = RUN | FIGURES | DATA
    missing = [
        block for block in blocks() if block.language not in languages and block not in listed()
    ]
    assert [(str(block), block.language) for block in missing] == []


def test_each_entry_names_a_block():
    assert len(blocks()) > 100
    named = {entry[:2]: list(map(str, entry.blocks())) for entry in ELSEWHERE}
    assert {entry: places for entry, places in named.items() if len(places) != 1} == {}
    assert len(listed()) == len(ELSEWHERE)


def test_each_entry_names_a_test_that_exists():
    for test in {entry.test for entry in ELSEWHERE if entry.test}:
        path, _, name = test.partition("::")
        code = (PROJECT / path).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(" if name else r"^def test_", code, re.MULTILINE), test


def test_each_scene_belongs_to_a_page_that_is_run():
    assert set(SCENES) - set(PAGES) == set()


# --- running -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_page(reader: Reader, page: str) -> None:
    scene = iter(SCENES[page](reader) or ()) if page in SCENES else iter(())
    for block in blocks():
        if block.page == page and block.language in RUN and block not in listed():
            next(scene, None)
            reader.run(block)
            print(f"--- {block}\n{reader.output}")
    assert next(scene, _END) is _END, "the scene has more steps than the page has blocks"
    reader.variables.clear()
