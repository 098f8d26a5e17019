"""Stock PyIceberg without credentials: the server signs each of its requests to the store."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from lance_namespace import CreateNamespaceRequest

from tests import optional
from tests.live import LiveServer
from tests.stores import components
from tests.stores.fixtures import REQUIRE, MakeLiveProfile, bind
from tests.stores.s3 import Versitygw

PROJECT = Path(__file__).parents[2]
NAMESPACE = "signed_pyiceberg"


def run_pyiceberg(server: LiveServer) -> dict[str, object]:
    try:
        libraries = components.s3fs()
    except components.Missing as error:
        optional.require(str(error), REQUIRE)
    environment = {name: v for name, v in os.environ.items() if not name.startswith("AWS_")}
    environment["PYTHONPATH"] = str(libraries)
    # Otherwise all tables share a file system of fsspec, with the signer of the last one.
    environment["FSSPEC_S3_SKIP_INSTANCE_CACHE"] = "true"
    command = [sys.executable, "-m", "tests.clients.signed_pyiceberg"]
    completed = subprocess.run(
        [*command, server.url, server.key, NAMESPACE],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr[-5000:]
    result: dict[str, object] = json.loads(completed.stdout)
    return result


def test_pyiceberg_writes_and_reads_without_credentials(
    live: LiveServer, versitygw: Versitygw, make_live_profile: MakeLiveProfile
) -> None:
    profile, root = make_live_profile(live, versitygw, client_access="signing")
    live.client().create_namespace(CreateNamespaceRequest(id=[NAMESPACE]))
    bind(live, [NAMESPACE], profile)
    time.sleep(1.1)  # the server reads its profiles once a second
    result = run_pyiceberg(live)
    removal, foreign = str(result.pop("removal")), str(result.pop("foreign"))
    assert result == {
        "properties": {"s3.signer": "S3V4RestSigner", "s3.access-key-id": None},
        "appended": [1, 2, 3],
        "deleted": [2, 3],
        "overwritten": [4, 5],
        "other": [7],
        "big": [3 * 5 * 1024**2, [1, 2]],
    }
    # PyIceberg removes a file by DeleteObjects, but does not send the body, which names the file.
    assert "400" in removal
    assert "?delete" in removal
    bucket = root.removeprefix("s3://").partition("/")[0]
    assert sum(key.endswith("/data/big") for key in versitygw.keys(bucket)) == 1
    assert "403" in foreign or "400" in foreign
