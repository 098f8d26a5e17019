"""What Django answers, as the front sends it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    content: bytes = b""
    stream: Iterable[bytes] | None = None
    """The content piece by piece, instead; it has ``close``."""
    principal: str = ""
    """Who was authenticated."""

    def send(self, protocol: Any) -> None:
        """Send a whole answer; from here on the server needs no thread for it."""
        protocol.response_bytes(self.status, self.headers, self.content)
