"""The files of the engines in docs/iceberg-clients.md. `python -m tests.engines.guide` copies them there.

A comment before a block names the file that it shows.
"""

import re
import sys

from server.options import PROJECT

GUIDE = PROJECT / "docs" / "iceberg-clients.md"
FILES = (
    "tests/engines/trino/lake.properties",
    "tests/engines/trino/statements.sql",
    "tests/engines/flink/statements.sql",
    "tests/engines/sail/start.sh",
    "tests/engines/sail/session.py",
    "tests/engines/sail/statements.sql",
    "tests/engines/clickhouse/statements.sql",
    "tests/engines/dlt/secrets.toml",
    "tests/engines/dlt/orders.py",
    "tests/engines/java/Orders.java",
    "tests/engines/go/program/orders.go",
    "tests/engines/rust/program/Cargo.toml",
    "tests/engines/rust/program/src/main.rs",
)
_BLOCK = re.compile(
    r"(?<=^<!-- file: )(\S+)( -->\n+```\w+\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL
)


def files_shown(text: str) -> list[str]:
    """The files that a text shows."""
    return [match[1] for match in _BLOCK.finditer(text)]


def render(text: str) -> str:
    """The text with the current content of its files."""

    def replace(match: re.Match[str]) -> str:
        content = (PROJECT / match[1]).read_text(encoding="utf-8").rstrip("\n")
        return f"{match[1]}{match[2]}{content}\n"

    return _BLOCK.sub(replace, text)


def main() -> int:
    GUIDE.write_text(render(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
