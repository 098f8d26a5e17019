"""Stock DuckDB with its Iceberg extension against the real server, with real files."""

import re
from collections.abc import Iterator
from typing import Any

import duckdb
import lance
import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog

from tests.clients import conftest, duck, guide, pyice
from tests.live import LiveServer

Rows = list[tuple[Any, ...]]


@pytest.fixture
def catalog(live: LiveServer) -> RestCatalog:
    return pyice.connect(live.url, token=live.key)


@pytest.fixture(params=conftest.LOCAL_THEN_S3)
def place(request: pytest.FixtureRequest) -> conftest.Place:
    return conftest.place_of(request)


@pytest.fixture
def space(
    live: LiveServer, catalog: RestCatalog, request: pytest.FixtureRequest, place: conftest.Place
) -> str:
    """A namespace of the test, with a name that needs no quotes."""
    name = "duckdb_" + re.sub(r"\W", "_", request.node.name)
    catalog.create_namespace(name)
    place(live, [name])
    return name


@pytest.fixture
def db(live: LiveServer, space: str) -> Iterator[DuckDBPyConnection]:
    """A connection in which names without a schema are in the namespace of the test."""
    with duck.attached(live) as connection:
        connection.execute(f"USE lake.{space}")
        yield connection


def rows(db: DuckDBPyConnection, statement: str) -> Rows:
    return db.execute(statement).fetchall()


# --- credentials -------------------------------------------------------------------------------


def test_a_key_works_as_token_and_as_client_secret(
    live: LiveServer, db: DuckDBPyConnection, space: str
) -> None:
    db.execute("CREATE TABLE t (n BIGINT)")
    db.execute("INSERT INTO t VALUES (1)")
    endpoint = f"OAUTH2_SERVER_URI '{live.url}/v1/oauth/tokens'"

    for secret in (
        f"TOKEN '{live.key}'",
        f"CLIENT_ID 'tests', CLIENT_SECRET '{live.key}', {endpoint}",
        f"CLIENT_ID '', CLIENT_SECRET '{live.key}', {endpoint}",
    ):
        with duck.attached(live, secret=secret) as other:
            assert rows(other, f"SELECT n FROM lake.{space}.t") == [(1,)], secret
    with (
        pytest.raises(duckdb.Error, match="invalid_client"),
        duck.attached(live, secret=f"CLIENT_ID 'tests', CLIENT_SECRET 'wrong', {endpoint}"),
    ):
        pass
    with (
        pytest.raises(duckdb.Error, match=r"401|Unauthorized"),
        duck.attached(live, secret="TOKEN 'mnd_wrong'"),
    ):
        pass


def test_a_namespace_as_warehouse(live: LiveServer, catalog: RestCatalog, space: str) -> None:
    catalog.create_namespace((space, "prod"))
    catalog.create_namespace((space, "prod", "sales"))
    with duck.attached(live, warehouse=f"{space}.prod") as db:
        db.execute("CREATE TABLE lake.sales.orders (n BIGINT)")
        db.execute("INSERT INTO lake.sales.orders VALUES (1)")
        assert rows(db, "SELECT database, schema, name FROM (SHOW ALL TABLES)") == [
            ("lake", "sales", "orders")
        ]

    table = catalog.load_table((space, "prod", "sales", "orders"))
    assert table.scan().to_arrow()["n"].to_pylist() == [1]


# --- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_insert_update_delete_merge(
    db: DuckDBPyConnection, catalog: RestCatalog, space: str, version: int
) -> None:
    db.execute(f"CREATE TABLE t (id BIGINT, s VARCHAR) WITH ('format-version'='{version}')")
    db.execute("INSERT INTO t SELECT i, 'row ' || i FROM range(6) r(i)")
    db.execute("INSERT INTO t VALUES (10, 'ten')")
    db.execute("UPDATE t SET s = 'updated' WHERE id = 3")
    db.execute("DELETE FROM t WHERE id IN (0, 10)")
    db.execute(
        "MERGE INTO t USING (VALUES (4, 'merged'), (20, 'new')) u(id, s) ON t.id = u.id"
        " WHEN MATCHED THEN UPDATE SET s = u.s WHEN NOT MATCHED THEN INSERT VALUES (u.id, u.s)"
    )

    expected = [
        (1, "row 1"),
        (2, "row 2"),
        (3, "updated"),
        (4, "merged"),
        (5, "row 5"),
        (20, "new"),
    ]
    assert rows(db, "SELECT * FROM t ORDER BY id") == expected
    table = catalog.load_table((space, "t"))
    assert table.format_version == version
    contents = table.scan().to_arrow().sort_by("id")
    assert list(zip(contents["id"].to_pylist(), contents["s"].to_pylist(), strict=True)) == expected


def test_create_as_select(db: DuckDBPyConnection, catalog: RestCatalog, space: str) -> None:
    db.execute("CREATE TABLE t AS SELECT i AS n FROM range(3) r(i)")

    assert rows(db, "SELECT sum(n) FROM t") == [(3,)]
    assert catalog.load_table((space, "t")).scan().to_arrow()["n"].to_pylist() == [0, 1, 2]
    with pytest.raises(duckdb.Error, match="already exists"):
        db.execute("CREATE TABLE t AS SELECT 1 AS n")
    db.execute("DROP TABLE t")
    assert catalog.list_tables(space) == []


def test_a_transaction_over_two_tables(
    db: DuckDBPyConnection, live: LiveServer, catalog: RestCatalog, space: str
) -> None:
    for name in ("debit", "credit"):
        db.execute(f"CREATE TABLE {name} (amount BIGINT)")
        db.execute(f"INSERT INTO {name} VALUES (0)")
    before = {n: catalog.load_table((space, n)).metadata_location for n in ("debit", "credit")}

    db.execute("BEGIN")
    db.execute("INSERT INTO debit VALUES (-5)")
    db.execute("INSERT INTO credit VALUES (5)")
    assert before == {n: catalog.load_table((space, n)).metadata_location for n in before}
    db.execute("ROLLBACK")
    assert before == {n: catalog.load_table((space, n)).metadata_location for n in before}
    db.execute("BEGIN")
    db.execute("INSERT INTO debit VALUES (-7)")
    db.execute("DELETE FROM debit WHERE amount = 0")
    db.execute("INSERT INTO credit VALUES (7)")
    db.execute("COMMIT")

    assert rows(db, "SELECT amount FROM debit") == [(-7,)]
    assert rows(db, "SELECT amount FROM credit ORDER BY 1") == [(0,), (7,)]
    with live.database() as database:
        transactions = database.execute(
            "SELECT count(DISTINCT v.transaction_id), count(*) FROM catalog_tableversion v"
            " JOIN catalog_table t ON t.id = v.table_id JOIN catalog_namespace n"
            " ON n.id = t.namespace_id WHERE n.path = %s AND v.created_at ="
            " (SELECT max(created_at) FROM catalog_tableversion w WHERE w.table_id = t.id)",
            [[space]],
        ).fetchone()
    assert transactions == (1, 2)


def test_one_of_two_transactions_on_the_same_rows_is_refused(
    db: DuckDBPyConnection, live: LiveServer, catalog: RestCatalog, space: str
) -> None:
    for name in ("a", "b"):
        db.execute(f"CREATE TABLE {name} (n BIGINT)")
        db.execute(f"INSERT INTO {name} VALUES (1)")
    with duck.attached(live) as other:
        db.execute("BEGIN")
        db.execute("UPDATE b SET n = 2")
        db.execute("INSERT INTO a VALUES (2)")
        other.execute(f"UPDATE lake.{space}.b SET n = 3")
        with pytest.raises(duckdb.Error, match=r"(?i)conflict|changed|409"):
            db.execute("COMMIT")

    # Neither table has changes of the refused transaction.
    assert catalog.load_table((space, "b")).scan().to_arrow()["n"].to_pylist() == [3]
    assert catalog.load_table((space, "a")).scan().to_arrow()["n"].to_pylist() == [1]


# --- tables ------------------------------------------------------------------------------------


def test_alter_table(db: DuckDBPyConnection, catalog: RestCatalog, space: str) -> None:
    db.execute("CREATE TABLE t (id BIGINT, s VARCHAR)")
    db.execute("INSERT INTO t VALUES (1, 'a')")
    db.execute("ALTER TABLE t ADD COLUMN extra INTEGER")
    db.execute("ALTER TABLE t RENAME COLUMN s TO words")
    db.execute("INSERT INTO t VALUES (2, 'b', 20)")
    db.execute("ALTER TABLE t RENAME TO u")

    assert rows(db, "SELECT id, words, extra FROM u ORDER BY id") == [(1, "a", None), (2, "b", 20)]
    assert catalog.list_tables(space) == [(space, "u")]
    assert catalog.load_table((space, "u")).schema().column_names == ["id", "words", "extra"]


def test_partitions(db: DuckDBPyConnection, catalog: RestCatalog, space: str) -> None:
    db.execute("CREATE TABLE t (id BIGINT, part VARCHAR) PARTITIONED BY (part)")
    db.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'a')")

    assert rows(db, "SELECT id FROM t WHERE part = 'a' ORDER BY id") == [(1,), (3,)]
    files = catalog.load_table((space, "t")).inspect.files().to_pylist()
    # DuckDB calls the partition field by its transform and column.
    assert sorted(value for f in files for value in f["partition"].values()) == ["a", "b"]


def test_time_travel(db: DuckDBPyConnection, catalog: RestCatalog, space: str) -> None:
    db.execute("CREATE TABLE t (n BIGINT)")
    db.execute("INSERT INTO t VALUES (1)")
    first = catalog.load_table((space, "t")).current_snapshot().snapshot_id
    db.execute("INSERT INTO t VALUES (2)")

    assert rows(db, f"SELECT n FROM t AT (VERSION => {first})") == [(1,)]
    assert rows(db, "SELECT n FROM t ORDER BY n") == [(1,), (2,)]


def test_names(db: DuckDBPyConnection, catalog: RestCatalog, space: str) -> None:
    db.execute('CREATE SCHEMA lake."a schema"')
    try:
        db.execute('CREATE TABLE lake."a schema"."a table" (n BIGINT)')
        db.execute('INSERT INTO lake."a schema"."a table" VALUES (1)')
        assert rows(db, 'SELECT n FROM lake."a schema"."a table"') == [(1,)]
        assert catalog.list_tables("a schema") == [("a schema", "a table")]
        db.execute('DROP TABLE lake."a schema"."a table"')
    finally:
        db.execute('DROP SCHEMA lake."a schema"')
    assert not catalog.namespace_exists("a schema")


def test_lance_tables_are_not_visible(live: LiveServer, db: DuckDBPyConnection, space: str) -> None:
    lance.write_dataset(
        pa.table({"n": [1]}), namespace_client=live.client(), table_id=[space, "arrows"]
    )

    assert rows(db, f"SELECT name FROM (SHOW ALL TABLES) WHERE schema = '{space}'") == []
    with pytest.raises(duckdb.CatalogException, match="does not exist"):
        db.execute("SELECT * FROM arrows")


def test_duckdb_reads_and_writes_a_table_of_pyiceberg(
    db: DuckDBPyConnection, catalog: RestCatalog, space: str
) -> None:
    values = pa.table({"n": pa.array([1, 2, 3], pa.int64()), "s": ["a", "b", "c"]})
    table = catalog.create_table((space, "t"), values.schema)
    table.append(values)
    table.delete("n = 2")

    assert rows(db, "SELECT * FROM t ORDER BY n") == [(1, "a"), (3, "c")]
    db.execute("INSERT INTO t VALUES (4, 'd')")
    db.execute("DELETE FROM t WHERE n = 1")
    table.refresh()
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [3, 4]
    table.append(values.slice(0, 1))
    assert rows(db, "SELECT n FROM t ORDER BY n") == [(1,), (3,), (4,)]


# --- the guide ---------------------------------------------------------------------------------


def test_the_guide(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = guide.blocks("PyIceberg", "python", live)
    variables: dict[str, Any] = {}
    exec(first, variables)
    assert variables["orders"].scan().to_arrow().to_pylist() == [{"id": 2, "item": "lance"}]
    exec(second, variables)
    assert capsys.readouterr().out.endswith("[('sales', 'orders')]\n")

    use, by_credential = guide.blocks("DuckDB", "sql", live)
    steps = guide.statements(use)
    assert steps[:2] == ["INSTALL iceberg", "LOAD iceberg"]
    with duck.connect() as db:
        for step in steps[2:]:
            db.execute(step)
        assert db.fetchall() == [(2, "gone")]
        assert rows(db, "FROM lake.sales.orders") == []
        db.execute(by_credential)
        db.execute(
            f"ATTACH 'sales' AS again (TYPE iceberg, ENDPOINT '{live.url}', SECRET by_credential)"
        )
    catalog = variables["catalog"]
    for table in catalog.list_tables("sales"):
        catalog.drop_table(table)
    catalog.drop_namespace("sales")
