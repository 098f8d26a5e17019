"""LanceDB as a client of the live server, with a recorder of its requests."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import lancedb
from lancedb.namespace import LanceNamespaceDBConnection

from tests.live import LiveServer


def connect(
    live: LiveServer, *, url: str | None = None, pushdown: list[str] | None = None
) -> LanceNamespaceDBConnection:
    return lancedb.connect_namespace(
        "rest",
        {"uri": url or live.url, "header.x-api-key": live.key},
        namespace_client_pushdown_operations=pushdown,
    )


@contextmanager
def recorder(live: LiveServer) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a forwarding proxy and the endings of the requested paths."""
    requested_paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requested_paths.append(unquote(urlsplit(self.path).path).rpartition("/")[2])
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            server = http.client.HTTPConnection(urlsplit(live.url).netloc, timeout=60)
            with closing(server):
                server.request(self.command, self.path, body, dict(self.headers.items()))
                answer = server.getresponse()
                content = answer.read()
            self.send_response(answer.status)
            self.send_header("content-type", answer.headers["content-type"] or "")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}", requested_paths
        finally:
            proxy.shutdown()
            thread.join()
