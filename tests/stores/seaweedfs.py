"""SeaweedFS: an S3 store with a token service that enforces session policies."""

import contextlib
import json
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Self

from botocore.exceptions import BotoCoreError, ClientError

from tests.ports import free_port
from tests.stores import components
from tests.stores.processes import ServerProcess
from tests.stores.s3 import S3Store

_ROLE = "lake"
_PROBE = "monodon-test-ready"
_SERVICES = ("master", "volume", "filer", "s3")


class SeaweedFs(S3Store):
    """All of SeaweedFS's services in one process. Sessions of its role last 900 seconds at least."""

    name = "seaweedfs"

    def __init__(self) -> None:
        super().__init__()
        self.access_key, self.secret_key = "monodon-tests", secrets.token_hex(20)
        self.role = f"arn:aws:iam::123456789012:role/{_ROLE}"

    def __enter__(self) -> Self:
        """Raises components.Missing if the program is not installed."""
        program = components.seaweedfs()
        self._directory = Path(tempfile.mkdtemp(prefix="monodon-seaweedfs-"))
        ports = {name: free_port() for name in _SERVICES}
        self.endpoint = self.sts_endpoint = f"http://127.0.0.1:{ports['s3']}"
        self._server = ServerProcess(
            "seaweedfs",
            [
                *(str(program), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"),
                *(f"-{name}.port={port}" for name, port in ports.items()),
                *(f"-{name}.port.grpc={free_port()}" for name in _SERVICES),
                *("-s3.port.iceberg=0", "-s3.port.lance=0"),
                *(f"-dir={self._directory}", "-master.volumeSizeLimitMB=64", "-volume.max=0"),
                *(f"-s3.config={self._write('keys', self._keys())}",),
                *(f"-s3.iam.config={self._write('roles', self._roles())}",),
            ],
        )
        self._server.start(self._answers)
        return self

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._server.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _keys(self) -> dict[str, object]:
        key = {"accessKey": self.access_key, "secretKey": self.secret_key}
        actions = ["Admin", "Read", "List", "Tagging", "Write"]
        return {"identities": [{"name": "tests", "credentials": [key], "actions": actions}]}

    def _roles(self) -> dict[str, object]:
        storage = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}
        trust = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": ["sts:AssumeRole"]}
        return {
            "sts": {
                "tokenDuration": "1h",
                "maxSessionLength": "12h",
                "issuer": "tests",
                "signingKey": "dGhlIHNpZ25pbmcga2V5IG9mIHRoZSB0ZXN0cyBvbmx5",
            },
            "policies": [{"name": "storage", "document": _policy(storage)}],
            "roles": [
                {
                    "roleName": _ROLE,
                    "roleArn": self.role,
                    "attachedPolicies": ["storage"],
                    "trustPolicy": _policy(trust),
                }
            ],
        }

    def _write(self, name: str, content: dict[str, object]) -> Path:
        file = self._directory / f"{name}.json"
        file.write_text(json.dumps(content))
        return file

    def _answers(self) -> bool:
        """True once objects can be written: the services find each other after they listen."""
        with contextlib.suppress(ClientError, BotoCoreError):
            self.client().create_bucket(Bucket=_PROBE)
        try:
            self.client().put_object(Bucket=_PROBE, Key="ready", Body=b"ready")
        except (ClientError, BotoCoreError):
            return False
        return True


def _policy(statement: dict[str, object]) -> dict[str, object]:
    return {"Version": "2012-10-17", "Statement": [statement]}
