"""The lineage of columns, as principals with different privileges see it."""

import pyarrow as pa
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalog import access
from catalog.access import SYSTEM, Principal, of_user
from catalog.formats.iceberg.views.relations import AMBIGUOUS
from catalog.models import MaterializedView, SearchDocument, Table, ViewQuery
from catalog.privileges import parse
from catalog.services.access import grants
from catalog.services.engine.commit import commit
from catalog.services.iceberg import view_sources, views
from catalog.services.lance.materialized_views import materialized_views
from catalog.services.search import documents as search_documents
from catalog.services.tables import column_lineage
from catalog.services.tables.column_lineage import Reader, ViewColumn
from catalog.services.tables.table_operations import DropTable, RenameTable
from tests.api.client import encoded_schema
from tests.factories import make_iceberg_table, make_lance_table, make_namespace, make_table
from tests.lineage import definition, make_view, materialize

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


def table(name: str, *columns: str, namespace: str = "ws") -> Table:
    """A table whose columns the search has read."""
    row = make_table(namespace, name)
    learn(row, *columns)
    return row


def learn(row: Table, *columns: str) -> None:
    document = {"columns": [[name, "int", ""] for name in columns], "schema_version": "1"}
    SearchDocument.objects.update_or_create(table=row, defaults=document)


def view(name: str, sql: str, namespace: str = "ws") -> Table:
    row = make_view((namespace, name), sql)
    assert view_sources.read_due() == 1
    return row


@pytest.fixture
def reader(db, django_user_model) -> Principal:
    """bob, who may read ``ws``, and browse ``listed``."""
    user = django_user_model.objects.create_user("bob", is_staff=True)
    for name, privilege in (("ws", "read"), ("listed", "browse")):
        make_namespace(name)
        on = access.On.namespace((name,))
        grants.set_grant(actor=SYSTEM, on=on, principal="user:bob", privileges=parse([privilege]))
    return of_user(user)


def origins_of(column: ViewColumn) -> str:
    return " + ".join(
        " or ".join(f"{origin.table}.{origin.column}" for origin in origins)
        for origins in column.origins
    )


def of(row: Table, actor: Principal = SYSTEM) -> dict[str, str]:
    answer = column_lineage.columns_of(actor=actor, row=row)
    assert answer is not None
    return {column.name: origins_of(column) for column in answer.columns}


def remarks(row: Table, actor: Principal = SYSTEM) -> list[tuple[str, ...]]:
    answer = column_lineage.columns_of(actor=actor, row=row)
    assert answer is not None
    return [column.remarks for column in answer.columns]


def readers(row: Table, actor: Principal = SYSTEM) -> list[tuple[str, str, str]]:
    answer = column_lineage.readers_of(actor=actor, row=row)
    assert answer is not None
    return [(reader.column, str(reader.view), reader.view_column) for reader in answer.readers]


def test_schemas_decide_which_table_has_a_column():
    t, u = table("t", "id", "A"), table("u", "id", "b")
    row = view("v", "SELECT a, b, a + b AS c, id FROM t, u")
    assert of(row) == {
        "a": "ws.t.A",
        "b": "ws.u.b",
        "c": "ws.t.A + ws.u.b",
        "id": "ws.t.id or ws.u.id",
    }
    assert remarks(row) == [(), (), (), (column_lineage._SEVERAL,)]
    assert readers(t) == [("A", "ws.v", "a"), ("A", "ws.v", "c"), ("id", "ws.v", "id")]
    answer = column_lineage.readers_of(actor=SYSTEM, row=u)
    assert answer is not None
    assert answer.readers == (
        Reader("b", row, "b", is_copy=True, is_certain=True),
        Reader("b", row, "c", is_copy=False, is_certain=True),
        Reader("id", row, "id", is_copy=True, is_certain=False),
    )


def test_a_chain_of_views_and_all_columns():
    t = table("t", "a")
    first = view("first", "SELECT * FROM t")
    learn(first, "a")
    second = view("second", "SELECT a AS x FROM first")
    assert of(first) == {"*": "ws.t.*"}
    assert of(second) == {"x": "ws.first.a"}
    assert readers(t) == [("*", "ws.first", "*")]
    assert readers(first) == [("a", "ws.second", "x")]


def test_hidden_sources_are_never_shown(reader):
    """``secret`` is hidden, and ``listed`` may be browsed, which does not show schemas."""
    table("t", "a")
    hidden = [table("s", "a", "x", namespace=name) for name in ("secret", "listed")]
    for name in ("secret", "listed", "missing"):
        row = view(f"of_{name}", f"SELECT s.x, a, x AS y FROM t, {name}.s")
        answer = column_lineage.columns_of(actor=reader, row=row)
        assert answer is not None
        assert of(row, reader) == {"x": "", "a": "ws.t.a", "y": ""}
        # The answer is the same whether the table exists or not.
        assert remarks(row, reader) == [
            (column_lineage._NOT_READABLE,),
            (),
            (column_lineage._NOT_READABLE,),
        ]
        assert name not in repr(answer.columns)
    for row in hidden:
        assert readers(row)
        assert column_lineage.readers_of(actor=reader, row=row) is None


def test_hidden_views_are_no_readers(reader):
    t = table("t", "a")
    for name in ("ws", "secret", "listed"):
        view("v", "SELECT a FROM ws.t", namespace=name)
    assert [name for _, name, _ in readers(t)] == ["listed.v", "secret.v", "ws.v"]
    assert [name for _, name, _ in readers(t, reader)] == ["ws.v"]


def test_a_view_that_may_only_be_browsed(reader):
    row = view("v", "SELECT a FROM ws.t", namespace="listed")
    assert column_lineage.columns_of(actor=reader, row=row) is None
    assert column_lineage.columns_of(actor=SYSTEM, row=table("t")) is None


def test_schemas_that_are_not_known():
    make_table("ws", "t")
    u = make_table("ws", "u")
    row = view("v", "SELECT t.a, b FROM t, u")
    assert of(row) == {"a": "ws.t.a", "b": "ws.t.b or ws.u.b"}
    learn(u, "c")
    assert of(row) == {"a": "ws.t.a", "b": "ws.t.b"}
    assert remarks(row) == [(), (column_lineage._NO_SCHEMA,)]


def test_columns_and_tables_that_do_not_exist():
    t = table("t", "a")
    row = view("v", "SELECT t.b FROM t")
    assert (of(row), readers(t)) == ({"b": ""}, [])
    assert remarks(row) == [(column_lineage._NOT_READABLE,)]
    learn(t, "b", "a")
    assert readers(t) == [("b", "ws.v", "b")]
    commit([RenameTable(table=("ws", "t"), new=("ws", "old"))], actor=SYSTEM)
    t.refresh_from_db()
    assert (of(row), readers(t)) == ({"b": ""}, [])
    commit([RenameTable(table=("ws", "old"), new=("ws", "t"))], actor=SYSTEM)
    commit([DropTable(table=("ws", "t"))], actor=SYSTEM)
    t.refresh_from_db()
    table("t", "b")
    assert readers(t) == []


def test_problems_of_the_sql():
    row = view("v", "SELECT x.a FROM b.x, c.x")
    assert remarks(row) == [(AMBIGUOUS,)]
    make_view(("ws", "w"), "SELECT 1")
    answer = column_lineage.columns_of(actor=SYSTEM, row=Table.objects.get(name="w"))
    assert answer is not None
    assert answer.problem == column_lineage._NOT_DERIVED


def test_views_that_were_parsed_before_columns_were_derived():
    row = view("v", "SELECT a FROM t")
    ViewQuery.objects.filter(view=row).update(columns=None)
    assert (view_sources.read_due(), view_sources.read_due()) == (1, 0)
    assert ViewQuery.objects.get(view=row).columns is not None


def test_schemas_of_tables_and_views_as_the_search_reads_them():
    make_iceberg_table("ws", "i")
    data = pa.table({"id": [1], "Score": [0.5], "a b": [1]})
    source = make_lance_table(("ws", "l"), data)
    fields = [
        {"id": 1, "name": "key", "type": "long", "required": False},
        {"id": 2, "name": "name", "type": "string", "required": False},
        {"id": 3, "name": "score", "type": "double", "required": False},
        {"id": 4, "name": "a b", "type": "long", "required": False},
    ]
    views.create_view(
        actor=SYSTEM,
        view=("ws", "v"),
        schema={"type": "struct", "schema-id": 0, "fields": fields},
        view_version=definition("SELECT i.id AS k, name, l.* EXCEPT (id) FROM i JOIN l USING (id)"),
    )
    materialized_views.create_view(
        actor=SYSTEM,
        table=("ws", "m"),
        kind="query",
        source_query="SELECT * FROM ws.l",
        output_schema=encoded_schema(data.schema),
        auto_refresh=False,
        with_no_data=True,
    )
    view_sources.read_due()
    while search_documents.update():
        pass
    v, m = Table.objects.named(("ws", "v"), ("ws", "m")).order_by("-name")
    assert of(v) == {
        "key": "ws.i.id",
        "name": "ws.i.name",
        "score": "ws.l.Score",
        "a b": "ws.l.a b",
    }
    assert of(m) == {"id": "ws.l.id", "Score": "ws.l.Score", "a b": "ws.l.a b"}
    assert [answer for answer in readers(source) if answer[1] == "ws.v"] == [
        ("Score", "ws.v", "score"),
        ("a b", "ws.v", "a b"),
    ]


def materialized(name: str, source: Table, *columns: tuple[str, str]) -> Table:
    row = table(name)
    materialize(row, source)
    definition = {"source": ["ws", source.name], "columns": [list(pair) for pair in columns]}
    MaterializedView.objects.filter(table=row).update(definition=definition)
    row.refresh_from_db()
    return row


def test_materialized_views(reader):
    source = table("t", "a", "b", "year")
    row = materialized(
        *("m", source),
        *(("x", "`a`"), ("y", "CASE WHEN a > 1 THEN upper(b) ELSE 'year' END"), ("z", "year(c)")),
    )
    assert of(row) == {"x": "ws.t.a", "y": "ws.t.a + ws.t.b", "z": ""}
    assert readers(source, reader) == [("a", "ws.m", "x"), ("a", "ws.m", "y"), ("b", "ws.m", "y")]
    secret = table("t", "a", namespace="secret")
    hidden = materialized("n", secret, ("x", "`a`"), ("y", "a + 1"))
    assert of(hidden, reader) == {"x": "", "y": ""}
    assert remarks(hidden, reader) == [(column_lineage._NOT_READABLE,)] * 2
    assert of(hidden) == {"x": "secret.t.a", "y": "secret.t.a"}


def test_a_materialized_view_whose_query_cannot_be_read():
    row = table("m")
    materialize(row, table("t", "a"))
    row.refresh_from_db()
    answer = column_lineage.columns_of(actor=SYSTEM, row=row)
    assert answer is not None
    assert (answer.columns, answer.problem) == ((), column_lineage._UNREADABLE)


def test_the_number_of_statements_is_limited(reader):
    t = table("t", "a")
    counts = set()
    for number in range(1, 4):
        for part in range(3):
            table(f"u{number}{part}", "a")
        sql = ", ".join(f"u{number}{part}.a AS a{part}" for part in range(3))
        tables = ", ".join(f"u{number}{part}" for part in range(3))
        row = view(f"v{number}", f"SELECT t.a, {sql} FROM t, {tables}")
        of(row, reader)  # caches the grants of the reader
        with CaptureQueriesContext(connection) as queries:
            assert len(of(row, reader)) == 4
        of_columns = len(queries)
        with CaptureQueriesContext(connection) as queries:
            assert len(readers(t, reader)) == number
        counts.add((of_columns, len(queries)))
    assert counts == {(5, 8)}


def test_views_and_readers_are_limited(monkeypatch):
    t = table("t", "a")
    for number in range(3):
        view(f"v{number}", "SELECT a, a AS b FROM t")
    monkeypatch.setattr(column_lineage, "MAX_VIEWS", 2)
    answer = column_lineage.readers_of(actor=SYSTEM, row=t)
    assert answer is not None
    assert (len(answer.readers), answer.is_complete) == (4, False)
    monkeypatch.setattr(column_lineage, "MAX_VIEWS", 3)
    monkeypatch.setattr(column_lineage, "MAX_READERS", 5)
    answer = column_lineage.readers_of(actor=SYSTEM, row=t)
    assert answer is not None
    assert (len(answer.readers), answer.is_complete) == (5, False)
