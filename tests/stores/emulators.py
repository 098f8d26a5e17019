"""Emulators of Azure and Google Cloud storage. Neither enforces permissions of users."""

import base64
import hashlib
import hmac
import json
import secrets
import shutil
import tempfile
from email.utils import formatdate
from pathlib import Path
from typing import Any, Self

import httpx

from tests.live import free_port
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


class FakeGcs:
    """fake-gcs-server, which checks no credentials."""

    endpoint: str

    def __enter__(self) -> Self:
        """Raises components.Missing."""
        program = components.fake_gcs()
        port = free_port()
        self.endpoint = f"http://127.0.0.1:{port}"
        self._server = ServerProcess(
            "fake-gcs-server",
            [
                *(str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)),
                *("-backend", "memory", "-public-host", f"127.0.0.1:{port}"),
                *("-external-url", self.endpoint, "-log-level", "error"),
            ],
        )
        self._server.start(lambda: listens(port))
        return self

    def __exit__(self, *exc: object) -> None:
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
