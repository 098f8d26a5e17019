"""Iceberg's Java library without credentials: the server signs each of its requests to the store."""

import time
from pathlib import Path

import pytest
from lance_namespace import CreateNamespaceRequest

from tests.engines import java as engine
from tests.engines import toolkit
from tests.live import LiveServer
from tests.stores.fixtures import MakeLiveProfile, bind
from tests.stores.s3 import Versitygw

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


@pytest.mark.parametrize("version", engine.S3_LIBRARIES)
def test_program(
    server: LiveServer,
    versitygw: Versitygw,
    make_live_profile: MakeLiveProfile,
    tmp_path: Path,
    version: str,
) -> None:
    libraries = engine.S3_LIBRARIES[version]
    toolkit.require(lambda: engine.prepare(libraries))
    profile, _ = make_live_profile(server, versitygw, client_access="signing")
    namespace = f"signed_{version}"
    server.client().create_namespace(CreateNamespaceRequest(id=[namespace]))
    bind(server, [namespace], profile)
    time.sleep(1.1)  # the server reads its profiles once a second
    program = engine.SIGNED_PROGRAM.read_text(encoding="utf-8")
    arguments = (server.url, server.key, namespace)
    output = engine.run(
        program, engine.SIGNED_PROGRAM.stem, tmp_path, *arguments, libraries=libraries
    )
    assert output.splitlines() == toolkit.expected_output(program)
