"""Emulators of Azure and Google Cloud storage. Neither enforces permissions of users."""

import base64
import hashlib
import hmac
import json
import secrets
import shutil
import tempfile
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, unquote, urlencode

import httpx

from tests.ports import free_port
from tests.stores import components
from tests.stores.processes import ServerProcess
from tests.stores.s3 import listens

_VERSION = "2021-12-02"


class Azurite:
    """Azurite's blob service, with the account and the key that every installation has."""

    account = "devstoreaccount1"
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    endpoint: str
    """With the account as path."""

    def __enter__(self) -> Self:
        """Raises components.Missing."""
        program = components.azurite()
        self._directory = Path(tempfile.mkdtemp(prefix="monodon-azurite-"))
        port = free_port()
        self._server = ServerProcess(
            "azurite",
            [
                *("node", str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port)),
                *("--location", str(self._directory), "--silent", "--skipApiVersionCheck"),
            ],
        )
        self._server.start(lambda: listens(port))
        self.endpoint = f"http://127.0.0.1:{port}/{self.account}"
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def new_container(self) -> str:
        name = f"monodon-test-{secrets.token_hex(6)}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
        lines = [
            "PUT",
            *[""] * 11,
            *(f"{header}:{value}" for header, value in sorted(headers.items())),
            # The account is in the path as well as before it.
            f"/{self.account}/{self.account}/{name}\nrestype:container",
        ]
        digest = hmac.digest(base64.b64decode(self.key), "\n".join(lines).encode(), hashlib.sha256)
        signature = base64.b64encode(digest).decode()
        answer = httpx.put(
            f"{self.endpoint}/{name}",
            params={"restype": "container"},
            headers=headers | {"authorization": f"SharedKey {self.account}:{signature}"},
        )
        assert answer.status_code == 201, answer.text
        return name

    def profile_fields(self) -> dict[str, Any]:
        """Fields of a storage profile; roots are `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/…`."""
        return {
            "kind": "adls",
            "endpoint": self.endpoint,
            "identity": "key",
            "key_id": self.account,
            "secret": self.key,
        }


_NO_BUCKET = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>NoSuchBucket</Code>"
    b"<Message>The specified bucket does not exist.</Message></Error>"
)
"""Google's answer to a list of a missing bucket; that of fake-gcs-server is a failure of the server."""


class _Uploads(BaseHTTPRequestHandler):
    """Forwards requests to fake-gcs-server, with uploads of the XML API in the form of its JSON API.

    Of the XML API it only serves reads, lists and deletions.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "_Gateway"

    def do_GET(self) -> None:
        self._relay()

    def do_HEAD(self) -> None:
        self._relay()

    def do_POST(self) -> None:
        self._relay()

    def do_DELETE(self) -> None:
        self._relay()

    def do_PUT(self) -> None:
        query = {"uploadType": "media", "name": unquote(self.path.lstrip("/").partition("/")[2])}
        if self.headers.get("x-goog-if-generation-match") == "0":
            query["ifGenerationMatch"] = "0"
        self.path += f"?{urlencode(query)}"
        self._relay()

    def _relay(self) -> None:
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        answer = self.server.client.request(
            self.command,
            # fake-gcs-server does not decode "%2D" in the name of a bucket.
            f"{self.server.store}{quote(unquote(path))}?{query}",
            content=body,
            headers={k: v for k, v in self.headers.items() if k.lower() not in _NOT_FORWARDED},
        )
        headers = {k: v for k, v in answer.headers.items() if k not in _OF_ONE_CONNECTION}
        if self.command == "PUT" and answer.is_success:
            row = answer.json()
            headers |= {"etag": row["etag"], "x-goog-generation": str(row["generation"])}
        status, content = answer.status_code, answer.content
        if status == 500 and b"no bucket named" in content:
            status, content = 404, _NO_BUCKET
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        length = answer.headers.get("content-length", 0) if self.command == "HEAD" else len(content)
        self.send_header("content-length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *args: object) -> None: ...


# Without a token, the header is "Bearer ", which clients refuse to send.
_NOT_FORWARDED = {"authorization", "connection", "content-length", "host", "transfer-encoding"}
_OF_ONE_CONNECTION = {"connection", "content-length", "transfer-encoding", "content-encoding"}


class _Gateway(ThreadingHTTPServer):
    """Starts on entry; `store` is the URL of fake-gcs-server."""

    daemon_threads = True

    def __init__(self, store: str) -> None:
        super().__init__(("127.0.0.1", 0), _Uploads)
        self.store = store
        self.client = httpx.Client(timeout=60)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
        self.client.close()


class FakeGcs:
    """fake-gcs-server, which checks no credentials."""

    endpoint: str

    def __enter__(self) -> Self:
        """Raises components.Missing."""
        program = components.fake_gcs()
        port = free_port()
        self._server = ServerProcess(
            "fake-gcs-server",
            [
                *(str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)),
                *("-backend", "memory", "-public-host", f"127.0.0.1:{port}"),
                *("-external-url", f"http://127.0.0.1:{port}", "-log-level", "error"),
            ],
        )
        self._server.start(lambda: listens(port))
        self._gateway = _Gateway(f"http://127.0.0.1:{port}")
        self._gateway.start()
        self.endpoint = self._gateway.url
        return self

    def __exit__(self, *exc: object) -> None:
        self._gateway.stop()
        self._server.stop()

    def new_bucket(self) -> str:
        name = f"monodon-test-{secrets.token_hex(6)}"
        answer = httpx.post(
            f"{self.endpoint}/storage/v1/b", params={"project": "tests"}, json={"name": name}
        )
        assert answer.status_code == 200, answer.text
        return name

    def service_account(self) -> str:
        """The JSON of a service account that is never used to sign: the emulator needs no token."""
        return json.dumps(
            {
                "type": "service_account",
                "gcs_base_url": self.endpoint,
                "disable_oauth": True,
                "client_email": "tests@example.com",
                "private_key_id": "1",
                "private_key": "unused",
            }
        )

    def profile_fields(self) -> dict[str, Any]:
        """Fields of a storage profile; roots are `gs://BUCKET/…`."""
        return {
            "kind": "gcs",
            "endpoint": self.endpoint,
            "identity": "key",
            "secret": self.service_account(),
        }
