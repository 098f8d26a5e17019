"""What docs/iceberg-clients.md tells a reader to type, for the tests to type it."""

import re

from server.options import PROJECT
from tests.live import LiveServer


def blocks(section: str, language: str, live: LiveServer) -> list[str]:
    """The code of a section, with the address and the key of the live server."""
    text = (PROJECT / "docs" / "iceberg-clients.md").read_text(encoding="utf-8")
    (part,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    found = re.findall(rf"^```{language}\n(.*?)^```", part, re.DOTALL | re.MULTILINE)
    return [
        code.replace("http://127.0.0.1:2333", live.url)
        .replace("admin:mnd_...", f"tests:{live.key}")
        .replace("'admin'", "'tests'")
        .replace("mnd_...", live.key)
        for code in found
    ]


def statements(block: str) -> list[str]:
    return [text.strip() for text in block.split(";") if text.strip()]
