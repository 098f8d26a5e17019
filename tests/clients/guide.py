"""Code blocks of the client guides, so that tests can run them."""

import re

from server.options import PROJECT
from tests.live import LiveServer


def blocks(
    section: str, language: str, live: LiveServer, *, guide: str = "iceberg-clients"
) -> list[str]:
    """The code of a section, with the address and the key of the live server.

    The section without a name is the text before the first heading.
    """
    text = (PROJECT / "docs" / f"{guide}.md").read_text(encoding="utf-8")
    start = rf"^## {section}\n" if section else r"\A"
    (chapter,) = re.findall(rf"{start}(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    code_blocks = re.findall(rf"^```{language}\n(.*?)^```", chapter, re.DOTALL | re.MULTILINE)
    return [
        code.replace("http://127.0.0.1:2333", live.url)
        .replace("admin:mnd_...", f"tests:{live.key}")
        .replace("'admin'", "'tests'")
        .replace("mnd_...", live.key)
        for code in code_blocks
    ]


def statements(block: str) -> list[str]:
    return [text.strip() for text in block.split(";") if text.strip()]
