"""Draining: a server that is about to stop sends its clients elsewhere first.

While the file ``MONODON_DRAIN_FILE`` exists, ``/health/ready`` answers 503, so that a load balancer opens
no further connections, and every answer closes its connection, so that clients with open connections
connect again, to another server. No request fails: those that arrive are still answered.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

from django.conf import settings

from api.front.answer import Answer

_LOOK_SECONDS = 0.5
_CLOSE = ("Connection", "close")


def is_requested() -> bool:
    """True if this server is about to stop."""
    return bool(settings.MONODON_DRAIN_FILE) and Path(settings.MONODON_DRAIN_FILE).exists()


class Draining:
    """Looks for the file twice a second, so that requests do not have to."""

    def __init__(self) -> None:
        self._is_requested = False
        self._task: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look for the file from now on; not at all without ``MONODON_DRAIN_FILE``."""
        if settings.MONODON_DRAIN_FILE:
            self._task = loop.create_task(self._look())

    async def _look(self) -> None:
        while True:
            self._is_requested = is_requested()
            await asyncio.sleep(_LOOK_SECONDS)

    def closing(self, answer: Answer) -> Answer:
        """The answer, which closes its connection while the server is draining."""
        if not self._is_requested or _CLOSE in answer.headers:
            return answer
        return replace(answer, headers=[*answer.headers, _CLOSE])
