"""Answers of Django, in the form in which the front sends them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    content: bytes = b""
    stream: Iterable[bytes] | None = None
    """The content in pieces, instead; it has ``close`` and ``closed``."""
    file: str = ""
    """The path of the file whose whole content ``stream`` has, if it is one."""
    principal: str = ""
    """The authenticated principal."""

    def send(self, protocol: Any) -> None:
        """Send a complete answer, which needs no thread of the server any more."""
        if self.file:
            protocol.response_file(self.status, self.headers, self.file)
        else:
            protocol.response_bytes(self.status, self.headers, self.content)
