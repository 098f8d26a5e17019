"""A client of the event stream that reconnects automatically, like EventSource in browsers."""

import contextlib
import json
from typing import Any
from urllib.parse import urlencode

import urllib3

from tests.background import Background
from tests.live import LiveServer


class Listener(Background):
    """Follows the stream in a thread until the end of the block, and stores the events in order."""

    def __init__(self, server: LiveServer, *, last_id: str = "", **query: str) -> None:
        self.events: list[dict[str, Any]] = []
        self.last_id = last_id
        self.opened = 0
        """Number of times that the stream was opened."""
        self.statuses: set[int] = set()
        self._url = f"{server.url}/management/v1/events/stream?{urlencode(query)}"
        self._key = server.key
        self._http = urllib3.PoolManager(retries=False)
        self._response: urllib3.BaseHTTPResponse | None = None
        super().__init__()

    @property
    def ids(self) -> list[str]:
        return [event["id"] for event in self.events]

    def work(self, number: int) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(urllib3.exceptions.HTTPError, OSError):
                self._follow()
            self._stop.wait(0.1)

    def _follow(self) -> None:
        headers = {"x-api-key": self._key}
        if self.last_id:
            headers["last-event-id"] = self.last_id
        # A read times out after a second, so that the thread can stop. Otherwise it reconnects.
        response = self._http.request(
            "GET",
            self._url,
            headers=headers,
            preload_content=False,
            timeout=urllib3.Timeout(connect=10, read=3),
        )
        self.statuses.add(response.status)
        try:
            if response.status == 200:
                self.opened += 1
                self._read(response)
        finally:
            response.close()

    def _read(self, response: urllib3.BaseHTTPResponse) -> None:
        incomplete, identity, data = b"", "", ""
        while not self._stop.is_set():
            piece = response.read1(65_536)
            if not piece:
                return
            *lines, incomplete = (incomplete + piece).split(b"\n")
            for line in lines:
                name, _, value = line.decode().partition(": ")
                if name == "id":
                    identity = value
                elif name == "data":
                    data = value
                elif not line:
                    if data:
                        self.events.append(json.loads(data))
                    self.last_id, data = identity or self.last_id, ""
