"""The lineage in the admin: the graph and its list, and the impact before a drop and an approval."""

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalog.access import SYSTEM, On
from catalog.admin.governance import impact
from catalog.admin.tables import column_lineage
from catalog.errors import ApprovalRequired
from catalog.models import (
    ApprovalRequest,
    FileReference,
    Namespace,
    SearchDocument,
    Table,
    ViewQuery,
)
from catalog.privileges import parse
from catalog.services.access import grants
from catalog.services.engine.commit import commit
from catalog.services.iceberg import view_sources
from catalog.services.recovery import undrop
from catalog.services.tables.namespace_operations import DropNamespace
from catalog.services.tables.table_operations import DropTable
from tests.factories import make_namespace, make_table, snapshot
from tests.lineage import make_view, materialize

EVIL = "<script>alert(1)</script>"
LOST = "Dependent views:"


@pytest.fixture
def rows(db, warehouse) -> dict[str, Table]:
    """raw → clean (materialized) → daily (view in ``other``)."""
    rows = {name: make_table("ws", name) for name in ("raw", "clean")}
    materialize(rows["clean"], rows["raw"])
    rows["daily"] = make_view(("other", "daily"), f"SELECT * FROM ws.clean JOIN `{EVIL}`")
    view_sources.read_due()
    return rows


def url(row: Table, page: str = "change") -> str:
    return f"/admin/catalog/table/{row.pk}/{page}/"


def text(client, address: str, **data) -> str:
    answer = client.get(address, data)
    assert answer.status_code == 200
    return answer.content.decode()


def test_the_graph_and_the_list_have_the_same_objects(rows, browser):
    page = text(browser, url(rows["raw"]), tab="lineage")
    (graph,) = re.findall(r"<svg width.*?</svg></div>", page, re.DOTALL)
    assert re.findall(r'<a class="m-node-(\w+)" href="([^"]+)".*?<title>(.+?)</title>', graph) == [
        ("self", f"{url(rows['raw'])}?tab=lineage", "ws.raw, table, this object"),
        (
            "materialized_view",
            f"{url(rows['clean'])}?tab=lineage",
            "ws.clean, materialized view, 1 step downstream",
        ),
        ("view", f"{url(rows['daily'])}?tab=lineage", "other.daily, view, 2 steps downstream"),
    ]
    assert graph.count("<path") == 2
    table = page[page.index(graph) + len(graph) :]
    for relation in ("is a materialized view of", "is a view of"):
        assert relation in table
    near = text(browser, url(rows["raw"]), tab="lineage", hops="1")
    assert "other.daily" not in near
    assert 'hops=1" aria-current="true">1 step<' in near
    assert text(browser, url(rows["raw"]), tab="lineage", hops="999").count('"m-node-view"') == 1


def test_the_page_of_a_view_shows_names_that_are_no_object(rows, browser):
    page = text(browser, url(rows["daily"]), tab="lineage")
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    broken = make_view(("other", "broken"), "SELECT FROM FROM")
    page = text(browser, url(broken), tab="lineage")
    assert "The SQL of the view is not parsed, or not all of it." in page
    view_sources.read_due()
    page = text(browser, url(broken), tab="lineage")
    assert "The SQL of dialect &#x27;spark&#x27; cannot be parsed: line 1" in page
    assert "No sources or dependents that you may browse." in page


def test_hidden_objects_are_not_in_the_graph(rows, sign_in):
    client = sign_in()
    grants.set_grant(
        actor=SYSTEM, on=On.namespace(("ws",)), principal="user:bob", privileges=parse(["browse"])
    )
    page = text(client, url(rows["raw"]), tab="lineage")
    assert ("ws.clean" in page, "daily" in page) == (True, False)


def test_a_page_costs_a_limited_number_of_statements(rows, browser):
    counts = []
    for number in range(3):
        for part in range(10 * number):
            make_view(("other", f"v{number}_{part}"), "SELECT a FROM ws.clean")
        view_sources.read_due()
        with CaptureQueriesContext(connection) as queries:
            page = text(browser, url(rows["clean"]), tab="lineage")
        counts.append(len(queries))
    assert "11 more objects in the list below." in page
    assert len(set(counts)) == 1
    assert counts[0] <= 25


def panel(page: str, title: str) -> str:
    """The text of a panel, without tags."""
    (_, content) = page.split(f">{title}<", 1)
    return " ".join(re.sub(r"<[^>]*>", " ", content.split("</table>")[0]).split())


def test_the_columns_of_a_view_and_the_views_that_read_columns(rows, browser):
    sql = f"SELECT a, a + `{EVIL}` AS `{EVIL}2`, 1 AS c, d FROM raw"
    view = make_view(("ws", "v"), sql)
    page = text(browser, url(view), tab="lineage")
    assert "The SQL of the view is not parsed yet." in page
    assert "The columns of the view are not known: its SQL is not parsed, or cannot be." in page
    view_sources.read_due()
    for name in ("raw", "v"):
        SearchDocument.objects.update_or_create(
            table=Table.objects.get(name=name),
            defaults={"columns": [["a", "int", ""], [EVIL, "int", ""]], "schema_version": "1"},
        )
    page = text(browser, url(view), tab="lineage")
    assert EVIL not in page
    escaped = "&lt;script&gt;alert(1)&lt;/script&gt;"
    columns = panel(page, "Columns")
    assert "a a of ws.raw copied" in columns
    assert f"{escaped}2 {escaped} of ws.raw a of ws.raw computed" in columns
    assert "c no column computed" in columns
    assert "d A source is not a column that you may read. –" in columns
    assert f'href="{url(rows["raw"])}?tab=lineage"' in page
    page = text(browser, url(rows["raw"]), tab="lineage")
    assert ">Columns<" not in page
    assert "a ws.v a copied" in panel(page, "Columns used by")
    assert f"a ws.v {escaped}2 computed" in panel(page, "Columns used by")
    page = text(browser, url(view), tab="lineage")
    assert "No column of a view that you may read is made from a column of this object." in page


def test_dialects_with_different_columns(rows, browser):
    view = make_view(("ws", "v"), "SELECT a FROM raw")
    document = ViewQuery.objects.filter(view=view)
    view_sources.read_due()
    stored = document.get().columns
    other = {"dialect": "trino", "columns": [{**stored["dialects"][0]["columns"][0], "name": "b"}]}
    document.update(columns={**stored, "dialects": [*stored["dialects"], other]})
    columns = panel(text(browser, url(view), tab="lineage"), "Columns")
    assert "a a of ws.raw copied spark b a of ws.raw copied trino" in columns


def test_long_lists_of_columns_say_so(rows, browser, monkeypatch):
    monkeypatch.setattr(column_lineage, "_MAX_ROWS", 1)
    view = make_view(("ws", "v"), "SELECT raw.a, raw.b FROM raw")
    view_sources.read_due()
    assert "The list has the first 1 of 2 columns." in text(browser, url(view), tab="lineage")
    assert "The list has the first 1 of 2 uses." in text(browser, url(rows["raw"]), tab="lineage")


def test_columns_are_for_readers(rows, sign_in):
    view = make_view(("ws", "v"), "SELECT a FROM raw")
    view_sources.read_due()
    client = sign_in()
    grants.set_grant(
        actor=SYSTEM, on=On.namespace(("ws",)), principal="user:bob", privileges=parse(["browse"])
    )
    for row in (view, rows["raw"]):
        page = text(client, url(row), tab="lineage")
        assert (">Columns<" in page, ">Columns used by<" in page) == (False, False)


def test_a_drop_names_the_views_that_read_the_table(rows, browser):
    before = snapshot()
    sentence = f"{LOST} &#x27;ws.clean&#x27; (materialized view), &#x27;other.daily&#x27; (view)."
    for page in ("drop", "deregister"):
        assert sentence in text(browser, url(rows["raw"], page))
    assert LOST not in text(browser, url(rows["daily"], "drop"))
    chosen = {"action": "drop_many", "_selected_action": [rows["raw"].pk, rows["clean"].pk]}
    page = browser.post("/admin/catalog/table/", chosen).content.decode()
    assert f"{LOST} &#x27;other.daily&#x27; (view)." in page
    namespace = Namespace.objects.get(name="ws")
    page = text(browser, f"/admin/catalog/namespace/{namespace.pk}/drop/")
    assert f"{LOST} &#x27;other.daily&#x27; (view)." in page
    assert snapshot() == before


def test_a_drop_of_a_namespace_names_no_views_in_it(rows, browser, monkeypatch):
    """Not even those of tables beyond the first that are looked up."""
    monkeypatch.setattr(impact, "_MAX_TABLES", 1)
    namespace = Namespace.objects.get(name="ws")
    page = text(browser, f"/admin/catalog/namespace/{namespace.pk}/drop/")
    assert f"{LOST} &#x27;other.daily&#x27; (view)." in page
    assert "Only the views of the first 1 tables were looked up." in page


def test_an_approval_shows_what_depends_on_the_target(rows, browser):
    make_namespace("ws")
    undrop.set_namespace_protection(actor=SYSTEM, namespace=("ws",), is_protected=True)
    undrop.set_approval_rule(actor=SYSTEM, namespace=("ws",), actions=["drop_protected", "purge"])
    with pytest.raises(ApprovalRequired):
        commit([DropNamespace(namespace=("ws",), cascade=True)], actor=SYSTEM)
    request = ApprovalRequest.objects.get()
    for page in ("change", "approve"):
        shown = text(browser, f"/admin/catalog/approvalrequest/{request.pk}/{page}/")
        assert f"{LOST} &#x27;other.daily&#x27; (view)." in shown
    copy = make_table("other", "copy")
    FileReference.objects.create(table=copy, source=rows["raw"], principal="x")
    shown = text(browser, f"/admin/catalog/approvalrequest/{request.pk}/change/")
    assert "Other tables refer to files of &#x27;ws.raw&#x27;: &#x27;other.copy&#x27;." in shown


def test_the_approval_of_a_purge_shows_what_depends_on_the_table(rows, browser):
    undrop.set_approval_rule(actor=SYSTEM, namespace=("ws",), actions=["purge"])
    commit([DropTable(table=("ws", "raw"), purge=True)], actor=SYSTEM)
    item = rows["raw"].trash
    with pytest.raises(ApprovalRequired):
        undrop.purge_now(actor=SYSTEM, item=item.pk)
    request = ApprovalRequest.objects.get()
    shown = text(browser, f"/admin/catalog/approvalrequest/{request.pk}/approve/")
    assert (
        f"{LOST} &#x27;ws.clean&#x27; (materialized view), &#x27;other.daily&#x27; (view)." in shown
    )
