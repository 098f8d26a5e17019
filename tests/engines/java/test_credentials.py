"""Iceberg's Java library renews credentials that expire again and again."""

import time
from pathlib import Path

import pytest
from lance_namespace import CreateNamespaceRequest

from tests.clients import jars
from tests.engines import java as engine
from tests.engines import toolkit
from tests.live import LiveServer
from tests.stores.fixtures import MakeLiveProfile, bind
from tests.stores.s3 import Moto

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]
LIFETIME_SECONDS = 10
PAUSE_MILLIS = 60


def test_a_thousand_reads_across_expiries(
    server: LiveServer, moto_s3: Moto, make_live_profile: MakeLiveProfile, tmp_path: Path
) -> None:
    libraries = engine.S3_LIBRARIES[jars.ICEBERG]
    toolkit.require(lambda: engine.prepare(libraries))
    fields = {"client_access": "sts", "role": moto_s3.role, "lifetime_seconds": LIFETIME_SECONDS}
    profile, _ = make_live_profile(server, moto_s3, **fields)
    server.client().create_namespace(CreateNamespaceRequest(id=["reads"]))
    bind(server, ["reads"], profile)
    time.sleep(1.1)  # the server reads its profiles once a second
    program = engine.READS_PROGRAM.read_text(encoding="utf-8")
    arguments = (server.url, server.key, "reads", str(PAUSE_MILLIS))
    output = engine.run(
        program, engine.READS_PROGRAM.stem, tmp_path, *arguments, libraries=libraries
    )
    assert output.splitlines() == toolkit.expected_output(program)
    with server.database() as database:
        issued = database.execute(
            "SELECT count(*) FROM catalog_auditevent"
            " WHERE action = 'credentials.issue' AND target = 'reads.t'"
        ).fetchone()
    assert issued is not None
    assert issued[0] >= 5
