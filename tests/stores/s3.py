"""Stores with the S3 protocol: moto, versitygw, or one that the environment names."""

import json
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import boto3
from botocore.config import Config

from tests.ports import free_port
from tests.stores import components, processes
from tests.stores.processes import NotReady, ServerProcess

REGION = "us-east-1"
_ATTEMPTS = 3
_DELETED_AT_ONCE = 1000
GIVEN_BUCKET_PREFIX = "monodon-test"
"""A bucket that the environment names is emptied; therefore its name must say that it is for tests."""


class S3Store:
    """A store, with a key that may do everything. Entering starts it, leaving ends it."""

    name: str
    endpoint: str
    sts_endpoint = ""
    """Empty: the store has no token service."""
    region = REGION
    access_key: str
    secret_key: str
    role = ""
    """ARN of a role that the key may assume."""
    role_with_external_id = ""
    """ARN of a role that the key may assume with ``external_id``."""
    external_id = ""

    def __init__(self) -> None:
        self._clients: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for client in self._clients.values():
            client.close()

    def client(self, service: str = "s3") -> Any:
        """A boto3 client with the store's key, made once: for a look from outside."""
        if service not in self._clients:
            self._clients[service] = self.client_with(
                self.access_key, self.secret_key, service=service
            )
        return self._clients[service]

    def client_with(
        self, access_key: str, secret_key: str, token: str | None = None, *, service: str = "s3"
    ) -> Any:
        """A new boto3 client with other credentials; the caller closes it. It does not retry."""
        return boto3.client(
            service,
            endpoint_url=self.sts_endpoint if service in {"sts", "iam"} else self.endpoint,
            region_name=self.region,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            aws_session_token=token,
            config=Config(
                s3={"addressing_style": "path"},
                retries={"total_max_attempts": 1},
                read_timeout=60,
                # AWS refuses short lifetimes, moto does not.
                parameter_validation=service != "sts",
            ),
        )

    def new_bucket(self) -> str:
        """The name of a new, empty bucket."""
        bucket = f"{GIVEN_BUCKET_PREFIX}-{secrets.token_hex(6)}"
        self.client().create_bucket(Bucket=bucket)
        return bucket

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """The keys of a bucket with a prefix, sorted."""
        pages = (
            self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        )
        return sorted(item["Key"] for page in pages for item in page.get("Contents", ()))

    def profile_fields(self) -> dict[str, Any]:
        """Fields of a storage profile with this store's key, without name and roots.

        ``secret`` is in clear text: the fixtures and ``live_profiles`` encrypt it.
        """
        return {
            "kind": "s3",
            "region": self.region,
            "endpoint": self.endpoint,
            "sts_endpoint": self.sts_endpoint,
            "path_style": True,
            "identity": "key",
            "key_id": self.access_key,
            "secret": self.secret_key,
            "client_access": "static",
        }


class Moto(S3Store):
    """Moto's server, which enforces keys, policies, session policies and expiry."""

    name = "moto"

    def __enter__(self) -> Self:
        self._server = ServerProcess("moto", processes.python("tests.stores.moto_server"))
        self._server.start(lambda: bool(self._facts()))
        facts = self._facts()
        self.endpoint = self.sts_endpoint = f"http://127.0.0.1:{facts['port']}"
        self.access_key, self.secret_key = facts["access_key"], facts["secret_key"]
        self.role, self.external_id = facts["role"], facts["external_id"]
        self.role_with_external_id = facts["role_with_external_id"]
        return self

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._server.stop()

    def _facts(self) -> dict[str, Any]:
        """What the server prints once it listens; empty before."""
        line = next((line for line in self._server.lines if line.startswith('{"port"')), "{}")
        facts: dict[str, Any] = json.loads(line)
        return facts


class Versitygw(S3Store):
    """versitygw on a directory. It enforces keys and has no token service.

    ``directory`` keeps the objects; without it a temporary one is removed at the end.
    """

    name = "versitygw"

    def __init__(self, *, directory: Path | None = None, port: int = 0) -> None:
        super().__init__()
        self._directory = directory
        self._port = port
        self.access_key, self.secret_key = "monodon-tests", secrets.token_hex(20)

    def __enter__(self) -> Self:
        """Raises components.Missing if versitygw is neither built nor can be built."""
        program = components.versitygw()
        self._temporary = None if self._directory else Path(tempfile.mkdtemp(prefix="monodon-s3-"))
        try:
            self._start(program, self._directory or self._temporary)
        except BaseException:
            self._remove_temporary()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._server.stop()
        self._remove_temporary()

    def make_old(self, bucket: str, key: str, days: float) -> None:
        """Set the time of an object back."""
        directory = self._directory or self._temporary
        assert directory is not None
        moment = time.time() - days * 86_400
        os.utime(directory / "objects" / bucket / key, (moment, moment))

    def _start(self, program: Path, directory: Path | None) -> None:
        assert directory is not None
        objects, sidecar = directory / "objects", directory / "metadata"
        for each in (objects, sidecar):
            each.mkdir(parents=True, exist_ok=True)
        if self._port and listens(self._port):
            raise NotReady(f"Port {self._port} is in use; choose another one")
        for attempt in range(_ATTEMPTS):
            port = self._port or free_port()
            self._server = ServerProcess(
                "versitygw",
                [
                    *(str(program), "--port", f"127.0.0.1:{port}", "--region", self.region),
                    *("--quiet", "posix"),
                    *(() if _has_attributes(objects) else ("--sidecar", str(sidecar))),
                    str(objects),
                ],
                {"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key},
            )
            try:
                self._server.start(lambda port=port: listens(port))
            except NotReady:
                # Another process may have taken the port in between.
                if self._port or attempt == _ATTEMPTS - 1:
                    raise
            else:
                self.endpoint = f"http://127.0.0.1:{port}"
                return

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


class Proxied(S3Store):
    """Another store, reached through a proxy. Buckets are created and read directly."""

    def __init__(self, store: S3Store, url: str) -> None:
        super().__init__()
        self._store = store
        self.name = store.name
        self.endpoint, self.sts_endpoint, self.region = url, store.sts_endpoint, store.region
        self.access_key, self.secret_key = store.access_key, store.secret_key
        self.role, self.external_id = store.role, store.external_id
        self.role_with_external_id = store.role_with_external_id

    def client(self, service: str = "s3") -> Any:
        return self._store.client(service)

    def new_bucket(self) -> str:
        return self._store.new_bucket()


class GivenStore(S3Store):
    """The store that MONODON_TEST_S3_ENDPOINT names: AWS, Ceph, R2, SeaweedFS.

    Its bucket, or those that the tests create, are emptied: before each use, and at the end.
    """

    name = "given"

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__()
        self.endpoint = environment["MONODON_TEST_S3_ENDPOINT"]
        self.sts_endpoint = environment.get("MONODON_TEST_S3_STS_ENDPOINT", "")
        self.region = environment.get("MONODON_TEST_S3_REGION", REGION)
        self.access_key = environment["MONODON_TEST_S3_ACCESS_KEY"]
        self.secret_key = environment["MONODON_TEST_S3_SECRET_KEY"]
        self._given = environment.get("MONODON_TEST_S3_BUCKET", "")
        self._created: list[str] = []
        if self._given and not self._given.startswith(GIVEN_BUCKET_PREFIX):
            raise ValueError(
                f"The tests empty MONODON_TEST_S3_BUCKET, so its name must begin with"
                f" '{GIVEN_BUCKET_PREFIX}', and '{self._given}' does not"
            )
        if self._given and "PYTEST_XDIST_WORKER" in environment:
            raise ValueError("Parallel tests would share MONODON_TEST_S3_BUCKET: use pytest -n 0")

    def __exit__(self, *exc: object) -> None:
        if self._given:
            self._empty(self._given)
        for bucket in self._created:
            self._empty(bucket)
            self.client().delete_bucket(Bucket=bucket)
        super().__exit__(*exc)

    def new_bucket(self) -> str:
        if self._given:
            self._empty(self._given)
            return self._given
        bucket = super().new_bucket()
        self._created.append(bucket)
        return bucket

    def _empty(self, bucket: str) -> None:
        keys = self.keys(bucket)
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            chunk = [{"Key": key} for key in keys[start : start + _DELETED_AT_ONCE]]
            self.client().delete_objects(Bucket=bucket, Delete={"Objects": chunk})


def listens(port: int) -> bool:
    """True if a server accepts connections on a port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _has_attributes(directory: Path) -> bool:
    """True if the file system has extended attributes, where versitygw keeps metadata of objects."""
    try:
        os.setxattr(directory, "user.monodon", b"1")
        os.removexattr(directory, "user.monodon")
    except (OSError, AttributeError):
        return False
    return True
