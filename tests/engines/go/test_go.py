"""The program of the docs, with Iceberg's Go library, and the library's own tests of catalogs."""

import re
from pathlib import Path

import pytest

from tests.engines import go as engine
from tests.engines import toolkit
from tests.live import LiveServer

pytestmark = [pytest.mark.engines, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def server(server_without_spaces: LiveServer) -> LiveServer:
    """iceberg-go encodes spaces in paths differently."""
    return server_without_spaces


@pytest.fixture(scope="module")
def program(server: LiveServer) -> str:
    return toolkit.configured(engine.PROGRAM.read_text(encoding="utf-8"), server)


@pytest.fixture(scope="module")
def built(program: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    toolkit.require(engine.prepare)
    directory = tmp_path_factory.mktemp("go")
    engine.build(program, directory)
    return directory


def test_program(program: str, built: Path) -> None:
    output = engine.run(built / "orders")
    assert output.splitlines() == toolkit.expected_output(program)


def test_conformance(server: LiveServer, built: Path) -> None:
    """All tests of the suite run, and pass."""
    output = engine.run(
        built / "conformance", "-test.v", CATALOG_URI=server.url, CATALOG_TOKEN=server.key
    )
    results = re.findall(r"--- (PASS|FAIL|SKIP): TestConformance/(\w+)", output)
    assert {result for result, _ in results} == {"PASS"}, output
    assert len(results) >= 18
