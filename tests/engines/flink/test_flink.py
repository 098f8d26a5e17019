"""Flink's statements, and its upserts as seen by other clients and by the health of a table."""

import time
from collections.abc import Iterator

import httpx
import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.engines import flink as engine
from tests.engines import statements, toolkit
from tests.live import LiveServer

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def session(
    server: LiveServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[engine.Session]:
    toolkit.require(engine.prepare)
    with engine.session(tmp_path_factory.mktemp("flink")) as session:
        yield session


def test_statements(server: LiveServer, session: engine.Session) -> None:
    script = (engine.DIRECTORY / "statements.sql").read_text(encoding="utf-8")
    count = statements.check(
        statements.parse(toolkit.configured(script, server)), session, errors=engine.FlinkError
    )
    assert count > 40
    catalog = RestCatalog("tests", uri=server.url, token=server.key)
    wait_for_rows(catalog, "flink.later", [2, 3, 4, 5, 6])
    equality_deletes_are_counted(server)


def wait_for_rows(catalog: RestCatalog, name: str, ids: list[int]) -> None:
    """Wait until the stream has copied the rows, each once."""
    deadline = time.monotonic() + 120
    while True:
        rows = catalog.load_table(name).scan().to_arrow().sort_by("id")
        if rows["id"].to_pylist() == ids:
            return
        assert time.monotonic() < deadline, rows
        time.sleep(1)


def equality_deletes_are_counted(server: LiveServer) -> None:
    """Three upserts have written three delete files, so that the table needs compaction."""
    table = f"{server.url}/management/v1/tables/flink$stock"
    headers = {"x-api-key": server.key}
    measured = httpx.post(f"{table}/measure", headers=headers).raise_for_status().json()
    assert measured["statistics"]["equality_delete_files"] == 3
    assert measured["statistics"]["equality_deletes"] == 6
    assert measured["score"] < 100
    assert [action["kind"] for action in measured["planned"]] == ["compact"]
