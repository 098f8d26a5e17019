"""Sail's statements, and its tables and rows seen by other clients."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.clients import duck
from tests.engines import sail as engine
from tests.engines import statements, toolkit
from tests.engines.sessions import Session, StatementError
from tests.live import LiveServer
from tests.stores.fixtures import MakeLiveProfile, bind
from tests.stores.s3 import S3Store

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server(server_without_spaces: LiveServer) -> LiveServer:
    """Sail reads `%20` where a path has a space."""
    return server_without_spaces


@pytest.fixture(scope="module")
def script(server: LiveServer) -> str:
    text = (engine.DIRECTORY / "start.sh").read_text(encoding="utf-8")
    return toolkit.configured(text, server)


@pytest.fixture(scope="module")
def session(
    server: LiveServer, script: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    toolkit.require(engine.prepare)
    directory = tmp_path_factory.mktemp("sail")
    with engine.server(script, directory) as port, engine.session(port, directory) as session:
        yield session


def test_statements(server: LiveServer, session: Session) -> None:
    text = (engine.DIRECTORY / "statements.sql").read_text(encoding="utf-8")
    count = statements.check(statements.parse(text), session, errors=StatementError)
    assert count > 35
    catalog = RestCatalog("tests", uri=server.url, token=server.key)
    orders = catalog.load_table("sail.orders")
    assert orders.location() == f"{location(catalog, 'sail')}/orders"
    assert orders.scan().to_arrow().sort_by("id").select(["id", "item"]).to_pylist() == [
        {"id": 1, "item": "ice"},
        {"id": 2, "item": "horn"},
        {"id": 4, "item": "fur"},
    ]


def location(catalog: RestCatalog, namespace: str) -> str:
    return str(catalog.load_namespace_properties(namespace)["location"])


def test_rows_of_other_clients(server: LiveServer, session: Session) -> None:
    """Rows of PyIceberg, without those that DuckDB deletes by position, and an older snapshot."""
    catalog = RestCatalog("tests", uri=server.url, token=server.key)
    catalog.create_namespace("sail_mixed")
    rows = pa.table({"id": [1, 2, 3], "item": ["ice", "tusk", "fin"]})
    table = catalog.create_table("sail_mixed.orders", schema=rows.schema)
    table.append(rows)
    snapshot = table.metadata.current_snapshot_id
    with duck.attached(server) as duckdb:
        duckdb.execute("DELETE FROM lake.sail_mixed.orders WHERE id = 2")
    name = "lake.sail_mixed.orders"
    assert session(f"SELECT id FROM {name} ORDER BY id") == [[1], [3]]
    assert session(f"SELECT count(*) FROM {name} VERSION AS OF {snapshot}") == [[3]]


def test_a_wrong_key_is_refused(server: LiveServer, script: str, tmp_path: Path) -> None:
    toolkit.require(engine.prepare)
    with (
        engine.server(script.replace(server.key, "mnd_wrong"), tmp_path) as port,
        engine.session(port, tmp_path) as session,
        pytest.raises(StatementError, match="401"),
    ):
        session("SHOW NAMESPACES")


def test_a_store(
    server: LiveServer,
    script: str,
    s3: S3Store,
    make_live_profile: MakeLiveProfile,
    tmp_path: Path,
) -> None:
    """Sail ignores the store's address and credentials that the catalog sends; it has its own."""
    toolkit.require(engine.prepare)
    profile, root = make_live_profile(server, s3)
    catalog = RestCatalog("tests", uri=server.url, token=server.key)
    catalog.create_namespace("sailed")
    bind(server, ["sailed"], profile)
    toolkit.wait_for_profiles()
    store = {
        "AWS_ENDPOINT": s3.endpoint,
        "AWS_ACCESS_KEY_ID": s3.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.secret_key,
        "AWS_REGION": s3.region,
        "AWS_ALLOW_HTTP": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
    }
    with (
        engine.server(script, tmp_path, **store) as port,
        engine.session(port, tmp_path) as session,
    ):
        catalog.create_table("sailed.orders", schema=pa.schema([("id", pa.int64())]))
        session("INSERT INTO lake.sailed.orders VALUES (1), (2)")
        assert session("SELECT id FROM lake.sailed.orders ORDER BY id") == [[1], [2]]
    table = catalog.load_table("sailed.orders")
    assert table.location().startswith(f"{root}/")
    assert table.scan().to_arrow().num_rows == 2
