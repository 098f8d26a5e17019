"""Trino's statements, and tables of Trino read by other clients."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
import trino.exceptions
from pyiceberg.catalog.rest import RestCatalog

from tests.engines import statements, toolkit
from tests.engines import trino as engine
from tests.live import LiveServer

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]
_WRITERS = 4
_COMMITS = 5


@pytest.fixture(scope="module")
def port(server: LiveServer) -> Iterator[int]:
    toolkit.require(engine.prepare)
    properties = toolkit.configured((engine.DIRECTORY / "lake.properties").read_text(), server)
    catalogs = {
        "lake": properties,
        "prod": f"{properties}iceberg.rest-catalog.warehouse=prod\n",
        "by_credential": properties.replace(
            f"oauth2.token={server.key}",
            f"oauth2.credential=tests:{server.key}\n"
            f"iceberg.rest-catalog.oauth2.server-uri={server.url}/v1/oauth/tokens",
        ),
        "stranger": properties.replace(server.key, "mnd_wrong"),
    }
    with engine.server(catalogs) as port:
        yield port


def test_statements(server: LiveServer, port: int) -> None:
    script = (engine.DIRECTORY / "statements.sql").read_text(encoding="utf-8")
    count = statements.check(
        statements.parse(toolkit.configured(script, server)),
        engine.Session(port),
        errors=trino.exceptions.TrinoQueryError,
    )
    assert count > 100

    # The files are at the catalog's location, so PyIceberg reads the rows.
    catalog = RestCatalog("tests", uri=server.url, token=server.key)
    rows = catalog.load_table("trino.orders").scan().to_arrow().sort_by("id")
    assert rows.select(["id", "article", "amount"]).to_pylist() == [
        {"id": 1, "article": "ice", "amount": None},
        {"id": 2, "article": "tusk", "amount": 7},
        {"id": 3, "article": "fin", "amount": None},
        {"id": 5, "article": "fur", "amount": None},
    ]


def test_a_schema_without_location(server: LiveServer, port: int) -> None:
    """Refused tables leave no files behind, and other tables have separate directories."""
    execute = engine.Session(port)
    catalog = RestCatalog("tests", uri=server.url, token=server.key)
    catalog.create_namespace("plain")
    with pytest.raises(trino.exceptions.TrinoQueryError, match="Division by zero"):
        execute("CREATE TABLE lake.plain.t AS SELECT 1 / (id - 1) AS id FROM (VALUES 1) AS t (id)")
    assert catalog.list_tables("plain") == []
    execute("CREATE TABLE lake.plain.t AS SELECT 1 AS id")
    execute("CREATE TABLE lake.plain.u (id integer)")
    assert catalog.load_table("plain.t").scan().to_arrow().to_pylist() == [{"id": 1}]
    namespace = catalog.load_namespace_properties("plain")["location"]
    locations = {catalog.load_table(name).location() for name in ("plain.t", "plain.u")}
    assert len(locations) == 2
    assert {location.rpartition("/")[0] for location in locations} == {namespace}


def test_rows_of_other_clients(server: LiveServer, port: int) -> None:
    """Position deletes, and a column that has a default for new rows."""
    catalog = RestCatalog("tests", uri=server.url, token=server.key)
    catalog.create_namespace("mixed")
    rows = pa.table({"id": [1, 2, 3], "item": ["ice", "tusk", "fin"]})
    table = catalog.create_table("mixed.orders", schema=rows.schema)
    table.append(rows)
    execute = engine.Session(port)
    execute("DELETE FROM lake.mixed.orders WHERE id = 2")
    execute("ALTER TABLE lake.mixed.orders ADD COLUMN price integer")
    execute("INSERT INTO lake.mixed.orders VALUES (4, 'fur', 5)")
    assert table.refresh().scan().to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "item": "ice", "price": None},
        {"id": 3, "item": "fin", "price": None},
        {"id": 4, "item": "fur", "price": 5},
    ]
    table.delete("id = 4")
    assert execute("SELECT id FROM lake.mixed.orders ORDER BY id") == [[1], [3]]


def test_a_warehouse_is_a_namespace(server: LiveServer, port: int) -> None:
    RestCatalog("tests", uri=server.url, token=server.key).create_namespace("prod")
    execute = engine.Session(port)
    execute("CREATE SCHEMA prod.sales")
    execute("CREATE TABLE prod.sales.orders AS SELECT 1 AS id")
    execute("CREATE VIEW prod.sales.ones AS SELECT id FROM prod.sales.orders")
    assert execute("SHOW SCHEMAS FROM prod") == [["information_schema"], ["sales"], ["system"]]
    assert execute('SELECT id FROM lake."prod.sales".orders') == [[1]]
    assert execute("SELECT id FROM prod.sales.ones") == [[1]]


def test_a_wrong_key_is_refused(server: LiveServer, port: int) -> None:
    with pytest.raises(trino.exceptions.TrinoQueryError, match="Not authorized"):
        engine.Session(port)("SHOW SCHEMAS FROM stranger")


def test_a_client_with_id_and_secret(port: int) -> None:
    execute = engine.Session(port)
    execute("CREATE SCHEMA by_credential.secret")
    execute("CREATE TABLE by_credential.secret.t AS SELECT 1 AS id")
    assert execute("SELECT id FROM lake.secret.t") == [[1]]


def test_concurrent_writers_lose_no_commit(server: LiveServer, port: int) -> None:
    """Each commit is retried on the newest metadata, as often as the table allows."""
    execute = engine.Session(port)
    execute("CREATE SCHEMA lake.busy")
    execute(
        "CREATE TABLE lake.busy.t (writer integer, number integer) WITH (max_commit_retry = 50)"
    )

    def write(writer: int) -> None:
        session = engine.Session(port)
        for number in range(_COMMITS):
            session(f"INSERT INTO lake.busy.t VALUES ({writer}, {number})")

    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(write, range(_WRITERS)))
    expected = [[writer, number] for writer in range(_WRITERS) for number in range(_COMMITS)]
    assert execute("SELECT * FROM lake.busy.t ORDER BY 1, 2") == expected
    (count,) = execute('SELECT count(*) FROM lake.busy."t$snapshots"')
    assert count == [1 + len(expected)]
