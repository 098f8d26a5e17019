"""The blocks of code of README.md and of the pages in docs/."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from server.options import PROJECT

URL = "http://127.0.0.1:2333"
KEY = "mnd_..."
"""The address and the key that the pages show."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    """Empty if the block has none, as indented blocks."""
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    return [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]


@functools.cache
def blocks() -> tuple[Block, ...]:
    return tuple(block for page in pages() for block in _of_page(page))


def _of_page(page: Path) -> Iterator[Block]:
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            yield Block(page.name, token.map[0] + 1, token.info.strip(), token.content)


@functools.cache
def inline_codes() -> tuple[tuple[str, str], ...]:
    """The pages and texts of code within sentences and tables."""
    parser = MarkdownIt().enable("table")
    return tuple(
        (page.name, child.content)
        for page in pages()
        for token in parser.parse(page.read_text(encoding="utf-8"))
        for child in token.children or ()
        if child.type == "code_inline"
    )
