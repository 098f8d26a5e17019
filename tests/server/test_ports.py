"""The web server's port: no other process gets it, and no other listener is mistaken for the server."""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from server import supervisor
from server.errors import PortUnavailable
from server.ports import Port
from tests.ports import free_port
from tests.server.running import Running, eventually

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing holds the port")
HOST = "127.0.0.1"


class _SaysReady(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status": "ok"}')

    def log_message(self, *args: object) -> None:
        pass


class _Sharing(HTTPServer):
    """A server that shares its port, as only another process of the same user can."""

    allow_reuse_port = True
    allow_reuse_address = False

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()


@contextmanager
def stranger(port: int) -> Iterator[None]:
    """A foreign server, which answers every request with 200."""
    server = _Sharing((HOST, port), _SaysReady)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_readiness_is_requested_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("http_proxy", f"http://{HOST}:1")
    with stranger(port):
        assert supervisor._get(f"http://{HOST}:{port}/health/ready") == (200, '{"status": "ok"}')


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "localhost"])
def test_a_held_port_cannot_be_used_by_others(host: str) -> None:
    number = free_port()
    port = Port(host, number)
    port.hold()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        for option in (0, socket.SO_REUSEADDR):
            with socket.socket(family) as other:
                if option:
                    other.setsockopt(socket.SOL_SOCKET, option, 1)
                with pytest.raises(OSError, match="in use") as refused:
                    other.bind((host, number))
                assert refused.value.errno == errno.EADDRINUSE
        assert port.is_served_by(os.getsid(0)) is (sys.platform != "linux")
    finally:
        port.release()
    with socket.socket(family) as other:
        other.bind((host, number))


@pytest.mark.parametrize("shares", [False, True])
def test_a_port_in_use_cannot_be_held(shares: bool) -> None:
    with socket.socket() as other:
        if shares:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind((HOST, 0))
        other.listen()
        number = other.getsockname()[1]
        with pytest.raises(PortUnavailable, match=f"Cannot listen on {HOST}:{number}"):
            Port(HOST, number).hold()


@on_linux
def test_a_listener_of_another_session_is_foreign() -> None:
    number = free_port()
    port = Port(HOST, number)
    port.hold()
    session = os.getsid(0)
    with stranger(number):
        assert port.is_served_by(session) is True
        sleeper = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
        try:
            with pytest.raises(PortUnavailable, match="another process listens there"):
                port.is_served_by(sleeper.pid)
        finally:
            sleeper.kill()
            sleeper.wait()
    port.release()


@on_linux
def test_a_foreign_listener_is_not_mistaken_for_the_server(tmp_path: Path) -> None:
    with Running(tmp_path / "home") as running:
        eventually(lambda: "state in" in running.output, within=10, description="the port is held")
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((HOST, running.port))
        with stranger(running.port):
            assert running.wait_exit(within=90) == 1
        assert "is ready at" not in running.output
        assert "panicked" not in running.output
        (refusal,) = [line for line in running.lines if "Cannot listen on" in line]
        assert refusal == (
            f"monodon  | Cannot listen on {HOST}:{running.port} (another process listens there)."
            " Set MONODON_PORT (or MONODON_HOST) to another one, or stop what uses it."
        )
