"""The list of tables of a large catalog, which reads the index of terms: filters, searches, pages, freshness."""

import threading

import pytest
from django.db import connection
from django.template.response import TemplateResponse
from django.test.utils import CaptureQueriesContext

from catalog.access import SYSTEM, On
from catalog.admin.score_charts import FAIR, GOOD
from catalog.admin.tables.tables import TableAdmin
from catalog.identifiers import spelled, typed
from catalog.models import (
    LabelAssignment,
    LabelDefinition,
    Table,
    TableHealth,
    TableTerms,
    TableTermsCursor,
)
from catalog.privileges import parse
from catalog.services.access import grants
from catalog.services.engine.commit import commit
from catalog.services.tables import candidates, listing, summaries, table_operations, terms
from tests.cases import shared_cases
from tests.catalog.admin.tables.test_list import LIST, facets, names
from tests.factories import make_root, make_table, make_version, wait_for_readers

pytestmark = pytest.mark.django_db(transaction=True)

NAMES = ("orders", "Order_items", "users", "ÜBER_users", "a%b_c", "zz")


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Every catalog is a large one, no filter is a frequent one, and a sample has all tables.

    Earlier tests leave many pages without rows.
    """
    monkeypatch.setattr(listing, "_SAMPLED_BLOCKS", 1_000_000)
    monkeypatch.setattr(candidates, "SMALL_CATALOG", -2)
    monkeypatch.setattr(listing, "_FREQUENT", 2)


@pytest.fixture(params=["exact", "estimated"])
def size(request, monkeypatch) -> str:
    if request.param == "estimated":
        monkeypatch.setattr(listing, "EXACT", 0)
    return request.param


def pass_on() -> None:
    """Let the periodic task follow all changes."""
    wait_for_readers()
    summaries.update()
    terms.update()


@pytest.fixture
def tables(warehouse) -> dict[str, Table]:
    make_root()
    tables = {name: make_table("x", name) for name in NAMES}
    tables["y"] = make_table("x", "y", "users_of_y")
    for name, score in (("orders", 45), ("users", 55), ("zz", 95)):
        make_version(("x", name), 1)
        statistics = {"rows": score, "bytes": 1, "version": 1}
        TableHealth.objects.create(table=tables[name], score=score, statistics=statistics)
    pii = LabelDefinition.objects.create(key="pii", applies_to=["table"])
    LabelAssignment.objects.create(definition=pii, table=tables["orders"], value="yes")
    Table.objects.filter(name__in=["users", "zz"]).update(owner="user:ada")
    pass_on()
    fresh = candidates.fresh()
    assert fresh is not None
    assert list(fresh.tables) == []
    return tables


QUERIES = {
    "q=order": "Order_items orders",
    "q=ORDERS": "orders",
    "q=u": "users users_of_y ÜBER_users",
    "q=z": "zz",
    "q=zz": "zz",
    "q=zzz": "",
    "q=ü": "ÜBER_users",
    "q=%25": "a%b_c",
    "q=b_c": "a%b_c",
    "q=bxc": "",
    "q=_": "Order_items a%b_c users_of_y ÜBER_users",
    "q=redro": "",
    "q=x.users": "users",
    "format__exact=lance&q=users": "users users_of_y ÜBER_users",
    "format__exact=iceberg": "",
    "state=live": "orders users zz",
    "state=declared&q=user": "users_of_y ÜBER_users",
    "health=poor": "orders",
    "health=fair": "users",
    "health=good": "zz",
    "health=unknown": "Order_items a%b_c users_of_y ÜBER_users",
    "label=pii": "orders",
    "label=pii%3Dyes": "orders",
    "label=pii%3Dno": "",
    "owner=user:ada": "users zz",
    "owner=user:ada&health=good": "zz",
    "owner=user:ada&state=declared": "",
    "in=x.y": "users_of_y",
    "in=nothing": "",
    "in=x&kind__exact=table&health=fair": "users",
}


@shared_cases("query", QUERIES)
def test_filters_and_searches_match_as_without_terms(browser, tables, size, monkeypatch, query):
    expected = sorted(QUERIES[query].split())
    answer = browser.get(f"{LIST}?{query}")
    assert sorted(row.name for row in answer.context["cl"].result_list) == expected
    by_terms = facets(answer)
    with monkeypatch.context() as small:
        small.setattr(candidates, "SMALL_CATALOG", 1_000_000)
        answer = browser.get(f"{LIST}?{query}")
    assert sorted(row.name for row in answer.context["cl"].result_list) == expected
    if size == "exact":
        assert facets(answer) == by_terms


@pytest.mark.parametrize("share", [0.0, 2])
def test_lists_of_frequent_values_and_with_an_empty_sample_are_exact(
    browser, tables, monkeypatch, share
):
    monkeypatch.setattr(listing, "_FREQUENT", share)
    if share:
        monkeypatch.setattr(listing, "_sample", lambda: listing._Sample([], 1.0))
    answer = browser.get(f"{LIST}?state=live")
    assert answer.context["cl"].total == "3 tables"
    assert facets(answer)["Owner"] == {"user:ada": "2", "system": "1"}


def test_a_filter_reads_the_index_and_not_the_tables(browser, tables):
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert names(browser.get(f"{LIST}?q=zzz&health=good")) == ""
    statements = [query["sql"] for query in captured]
    (read,) = [text for text in statements if "monodon_grams" in text]
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        cursor.execute(f"EXPLAIN {read}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute("RESET enable_seqscan")
    assert "Bitmap Index Scan on table_terms" in plan
    assert "Seq Scan on catalog_tableterms" not in plan
    # No statement reads the tables themselves, except a sample of them.
    scans = [text for text in statements if 'FROM "catalog_table"' in text]
    assert all("= ANY(" in text for text in scans), scans


@pytest.mark.parametrize("query", ["", "kind__exact=table", "health=unknown"])
def test_orders_are_those_of_a_list_without_terms(browser, tables, size, monkeypatch, query):
    # The templates take most of the time of a page.
    monkeypatch.setattr(TemplateResponse, "rendered_content", "")
    numbers = (1, 2) if query == "health=unknown" else (1, 2, 3)
    columns = ("name", "rows", "size", "health", "committed", "owner", "created")
    for number, order in enumerate(columns):
        for sign in ("", "-") if not query else ("", "-")[number % 2 : number % 2 + 1]:
            url = f"{query}&o={sign}{order}"
            with monkeypatch.context() as small:
                small.setattr(TableAdmin, "list_per_page", 3)
                pages = [listed(browser, f"{url}&p={page}") for page in numbers]
            with monkeypatch.context() as small:
                small.setattr(candidates, "SMALL_CATALOG", 1_000_000)
                small.setattr(listing, "EXACT", 1_000)
                expected = listed(browser, url)
            assert len(expected) > 3
            assert pages == [expected[3 * n - 3 : 3 * n] for n in numbers], f"{sign}{order}"


def listed(browser, query: str) -> list[str]:
    """The names of the tables of a list that is not rendered."""
    response = browser.get(f"{LIST}?{query}")
    assert response.status_code == 200
    return [row.name for row in response.context_data["cl"].result_list]


def test_statements_of_the_admin_are_not_prepared(browser, tables):
    for _ in range(8):
        browser.get(f"{LIST}?owner=user:ada")
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements")
        prepared = [text for (text,) in cursor.fetchall()]
    assert not [
        text for text in prepared if "enable_seqscan" in text or "catalog_tableterms" in text
    ]
    assert connection.connection.prepare_threshold == 2


def test_changes_since_the_last_pass_are_listed(browser, tables, size):
    new = make_table("x", "zz_new")
    commit(
        [table_operations.RenameTable(table=("x", "orders"), new=("x", "zz_orders"))], actor=SYSTEM
    )
    commit([table_operations.DropTable(table=("x", "zz"))], actor=SYSTEM)
    make_version(("x", "ÜBER_users"), 1)
    fresh = candidates.fresh()
    assert fresh is not None
    assert new.pk in fresh.tables
    assert sorted(names_of(browser, "q=zz")) == ["zz_new", "zz_orders"]
    assert names_of(browser, "q=orders") == ["zz_orders"]
    assert sorted(names_of(browser, "state=live")) == ["users", "zz_orders", "ÜBER_users"]
    assert names_of(browser, "health=good") == []
    pass_on()
    assert list(candidates.fresh().tables) == []
    assert sorted(names_of(browser, "q=zz")) == ["zz_new", "zz_orders"]
    assert not TableTerms.objects.filter(name="zz").exists()


def names_of(browser, query: str) -> list[str]:
    return [row.name for row in browser.get(f"{LIST}?{query}").context["cl"].result_list]


def test_a_measurement_changes_the_list_at_once(browser, tables):
    table = tables["zz"]
    TableHealth.objects.filter(table=table).update(score=10)
    terms.record_measurement(table.pk, 10, {"rows": 1})
    assert names_of(browser, "health=good") == []
    assert sorted(names_of(browser, "health=poor")) == ["orders", "zz"]
    terms.record_measurement(table.pk, 0, {"error": "unreadable"})
    marks = TableTerms.objects.get(table=table).marks
    assert [mark for mark in marks if mark.startswith("h:")] == [terms.NOT_MEASURED]


def test_a_pass_keeps_the_mark_of_a_later_measurement(tables):
    table = tables["zz"]
    terms.record_measurement(table.pk, 3, {"rows": 1})
    commit([table_operations.RenameTable(table=("x", "zz"), new=("x", "zy"))], actor=SYSTEM)
    pass_on()
    row = TableTerms.objects.get(table=table)
    assert row.name == "zy"
    assert [mark for mark in row.marks if mark.startswith("h:")] == ["h:0"]


def test_the_bounds_of_health_are_bounds_of_marks():
    assert FAIR % terms.SCORES == 0
    assert GOOD % terms.SCORES == 0


def test_without_terms_the_list_reads_the_tables(browser, tables):
    TableTermsCursor.objects.update(next_table=0)
    TableTerms.objects.all().delete()
    assert candidates.fresh() is None
    assert names_of(browser, "q=zz") == ["zz"]
    terms.update()
    assert candidates.fresh() is not None
    assert TableTerms.objects.count() == len(tables)
    assert names_of(browser, "q=zz") == ["zz"]


def test_too_many_changes_are_not_evaluated_singly(browser, tables, monkeypatch):
    monkeypatch.setattr(candidates, "_MOST_FRESH", 1)
    make_table("x", "zz_new")
    assert candidates.fresh() is None
    assert sorted(names_of(browser, "q=zz")) == ["zz", "zz_new"]


def test_other_conditions_are_not_turned_into_terms(browser, tables):
    assert names_of(browser, "q=zz&name__startswith=o") == []
    assert names_of(browser, "q=zz&owner=user:bob") == []
    assert names_of(browser, "state=all&q=zz") == ["zz"]


@pytest.mark.parametrize("order", ["", "-name", "rows", "-committed", "owner"])
def test_pages_have_each_table_once_while_others_are_created(
    browser, warehouse, size, monkeypatch, order
):
    monkeypatch.setattr(TableAdmin, "list_per_page", 4)
    make_root()
    for number in range(20):
        make_table("x", f"t_{number:02}")
    pass_on()
    # New tables are last in each of these orders: no page moves.
    is_first = order in {"", "-name"}
    created = threading.Thread(target=_create, args=(["a_1", "a_2", "a_3"],))
    pages = []
    for page in range(1, 6):
        if page == 2 and not is_first:
            created.start()
            created.join()
        pages += names_of(browser, f"q=t_&o={order}&p={page}")
        if page == 3:
            pass_on()
    assert sorted(pages) == [f"t_{number:02}" for number in range(20)]
    assert len(pages) == len(set(pages))


def _create(chosen: list[str]) -> None:
    try:
        for name in chosen:
            make_table("x", name)
    finally:
        connection.close()


# --- what a principal may not see --------------------------------------------------------------


@pytest.fixture
def bob(sign_in, tables, monkeypatch):
    """A browser of bob, who may browse namespace x.y and table users, and owns table zz."""
    client = sign_in()
    monkeypatch.setattr(listing, "narrowed", lambda actor, rows: rows)  # as with many tables
    targets = (On.namespace(("x", "y")), On.table(("x", "users")))
    for on in targets:
        grants.set_grant(actor=SYSTEM, on=on, principal="user:bob", privileges=parse(["browse"]))
    Table.objects.filter(name="zz").update(owner="user:bob")
    TableTerms.objects.filter(name="zz").update(
        marks=[
            terms.of_owner("user:bob") if mark.startswith("o:") else mark
            for mark in TableTerms.objects.get(name="zz").marks
        ]
    )
    return client


def test_a_principal_sees_and_counts_only_its_tables(bob, size):
    pass_on()
    for query, expected in {
        "": "users users_of_y zz",
        "q=u": "users users_of_y",
        "q=orders": "",
        "q=s": "users users_of_y",
        "state=live": "users zz",
        "label=pii": "",
        "health=poor": "",
        "kind__exact=table": "users users_of_y zz",
    }.items():
        answer = bob.get(f"{LIST}?{query}")
        listed = sorted(row.name for row in answer.context["cl"].result_list)
        assert listed == expected.split(), query
        count = len(listed)
        if size == "exact":
            assert answer.context["cl"].total == f"{count} table{'' if count == 1 else 's'}"
            assert facets(answer).get("Kind", {}) == ({"table": str(count)} if count else {})
        assert "pii" not in str(facets(answer))
        assert "orders" not in answer.content.decode().replace("q=orders", "").replace(
            'value="orders"', ""
        )


def test_a_grant_counts_from_its_commit_to_its_end(bob, size):
    on = On.namespace(("x", "y"))
    assert sorted(names_of(bob, "q=u")) == ["users", "users_of_y"]
    grants.set_grant(actor=SYSTEM, on=on, principal="user:bob", privileges=parse([]))
    assert names_of(bob, "q=u") == ["users"]
    grants.set_grant(
        actor=SYSTEM,
        on=On.table(("x", "orders")),
        principal="user:bob",
        privileges=parse(["browse"]),
    )
    assert names_of(bob, "q=ord") == ["orders"]


def test_stale_terms_show_no_table_that_a_principal_may_not_browse(bob, size):
    """Even if a change were not in the audit trail, the list checks what it shows."""
    TableTerms.objects.filter(name="orders").update(
        marks=[*TableTerms.objects.get(name="orders").marks, terms.of_owner("user:bob")]
    )
    answer = bob.get(f"{LIST}?state=live")
    assert sorted(row.name for row in answer.context["cl"].result_list) == ["users", "zz"]
    assert facets(answer)["Owner"].keys() == {"user:ada", "user:bob"}
    assert "Label" not in facets(answer)


@pytest.mark.parametrize(
    "path", [("prod",), ("eu", "sales"), ("a.b",), ("eu", "a.b"), ("a.b", "c.d", "e"), ("..",)]
)
def test_a_spelled_name_is_split_into_its_parts(path):
    assert typed(spelled(path)) == path


def test_the_filter_finds_tables_of_a_namespace_with_a_dot(browser):
    make_root()
    for number, path in enumerate([("a.b",), ("a", "b"), ("x", "a.b")]):
        make_table(*path, f"t{number}")
    for number, path in enumerate([("a.b",), ("a", "b"), ("x", "a.b")]):
        answer = browser.get("/admin/catalog/table/", {"in": spelled(path)})
        assert [row.name for row in answer.context["cl"].result_list] == [f"t{number}"]
