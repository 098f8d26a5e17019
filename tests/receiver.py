"""A receiver of webhooks on loopback, for tests."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler"], None]


class Receiver:
    """An HTTP server on loopback that stores its requests. It sends `answers` in order, then 204."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes, str]] = []
        self.answers: list[int | Answer] = []
        self.lock = threading.Lock()
        self.server = _Server(("127.0.0.1", 0), Handler)
        self.server.receiver = self  # type: ignore[attr-defined]
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook?of=tests"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body, _ in self.got]

    @property
    def types(self) -> list[str]:
        return [event["type"].removeprefix("monodon.") for event in self.events]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        receiver: Receiver = self.server.receiver  # type: ignore[attr-defined]
        with receiver.lock:
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.got.append((headers, body, self.path))
            answer = receiver.answers.pop(0) if receiver.answers else 204
        if callable(answer):
            answer(self)
        else:
            self.send_response(answer, "so be it")
            self.send_header("content-length", "0")
            self.end_headers()

    def log_message(self, *args: object) -> None: ...
