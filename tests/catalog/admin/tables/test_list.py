"""The list of tables: columns, order, facets, export and totals, for few and for many tables."""

import csv
import io
import re

import pytest
from django.db.models.functions import Now
from django.utils.http import urlencode

from catalog.access import SYSTEM, On
from catalog.admin.tables import table_list
from catalog.admin.tables.tables import TableAdmin
from catalog.models import (
    LabelAssignment,
    LabelDefinition,
    Table,
    TableFormat,
    TableHealth,
    TableSummary,
)
from catalog.privileges import parse
from catalog.services.access import grants
from catalog.services.engine.commit import commit
from catalog.services.maintenance import measurements
from catalog.services.tables import listing, summaries, table_operations
from tests.catalog.formats.iceberg.scans.test_planning import SIMPLE
from tests.catalog.formats.iceberg.written import Written
from tests.catalog.services.iceberg.test_scans import register
from tests.factories import (
    make_iceberg_table,
    make_root,
    make_table,
    make_version,
    wait_for_readers,
)

LIST = "/admin/catalog/table/"
ROWS = {"a": 30, "b": 10, "c": None, "d": 20, "e": None}
"""Tables of namespace x, with the rows of their newest measurement."""


@pytest.fixture
def tables(warehouse, db) -> dict[str, Table]:
    tables = {}
    for number, (name, rows) in enumerate(ROWS.items()):
        table = tables[name] = make_table("x", name)
        if rows is not None:
            make_version(("x", name), 1)
            statistics = {"rows": rows, "bytes": rows * 100, "version": 1}
            TableHealth.objects.create(table=table, score=rows + 40, statistics=statistics)
        Table.objects.filter(pk=table.pk).update(owner=f"user:{number % 2}")
    Table.objects.filter(name="d").update(format=TableFormat.ICEBERG)
    pii = LabelDefinition.objects.create(key="pii", applies_to=["table"])
    LabelAssignment.objects.create(definition=pii, table=tables["a"], value="yes")
    return tables


@pytest.fixture(params=["few", "many"])
def size(request, monkeypatch) -> str:
    """Whether the list is exact or follows the indexes."""
    if request.param == "many":
        monkeypatch.setattr(listing, "EXACT", 2)
    return request.param


def names(response) -> str:
    assert response.status_code == 200
    return "".join(row.name for row in response.context["cl"].result_list)


def test_the_list_sorts_in_both_directions(browser, tables, size):
    for number, name in enumerate("abd"):
        tables[name].versions.update(created_at=f"2026-01-0{number + 1}T00:00:00Z")
    summaries.update()
    for key, ascending, descending in (
        ("name", "abcde", "edcba"),
        ("rows", "bdace", "adbec"),
        ("size", "bdace", "adbec"),
        ("health", "bdace", "adbec"),
        ("committed", "abdce", "dbaec"),
        ("owner", "acebd", "dbeca"),
    ):
        assert names(browser.get(f"{LIST}?o={key}")) == ascending, key
        assert names(browser.get(f"{LIST}?o=-{key}")) == descending, key


def test_links_of_a_filtered_list_name_the_filters(browser, tables):
    page = browser.get(f"{LIST}?o=-rows&format__exact=lance").content.decode()
    link = f"{LIST}{tables['a'].pk}/change/?_changelist_filters=o%3D-rows%26format__exact%3Dlance"
    assert f'href="{link}"' in page
    assert f'href="{LIST}{tables["a"].pk}/change/"' in browser.get(LIST).content.decode()


def test_the_headers_of_a_list_are_computed_once(browser, tables, monkeypatch):
    """Unfold computes them for each row."""
    calls = []

    def query(self, *arguments, **options):
        calls.append(arguments)
        return get_query_string(self, *arguments, **options)

    get_query_string = table_list.TableList.get_query_string
    monkeypatch.setattr(table_list.TableList, "get_query_string", query)
    assert len(browser.get(f"{LIST}?o=-rows").context["cl"].result_list) == len(ROWS)
    assert 0 < len(calls) < 40


def test_pages_of_a_sorted_list_have_each_table_once(browser, tables, size, monkeypatch):
    monkeypatch.setattr(TableAdmin, "list_per_page", 2)
    summaries.update()
    for sign, expected in (("", "bdace"), ("-", "adbec")):
        url = f"{LIST}?o={sign}rows"
        assert "".join(names(browser.get(f"{url}&p={page}")) for page in (1, 2, 3)) == expected


def test_sorted_lists_of_many_have_dropped_tables_and_new_ones_last(browser, tables, monkeypatch):
    monkeypatch.setattr(listing, "EXACT", 2)
    summaries.update()
    Table.objects.filter(name__in=["b", "d"]).update(state="dropped", dropped_at=Now())
    TableSummary.objects.filter(table__name__in=["b", "c", "d"]).delete()  # c is new
    for query, expected in {
        "state=all&o=rows": "abcde",
        "state=all&o=-rows": "aedcb",
        "state=all&o=name": "aebcd",
        "state=all&o=-name": "eadcb",
        "o=committed": "ace",
    }.items():
        assert names(browser.get(f"{LIST}?{query}")) == expected, query
    monkeypatch.setattr(listing, "EXACT", 1)
    assert names(browser.get(f"{LIST}?state=dropped&o=name")) == "bd"


def test_the_newest_tables_are_first(browser, tables, size):
    assert names(browser.get(LIST)) == "edcba"


def test_few_tables_are_sorted_without_summaries(browser, tables):
    assert not TableSummary.objects.exists()
    assert names(browser.get(f"{LIST}?o=-rows")) == "adbec"


def facets(response) -> dict[str, dict[str, str]]:
    return {
        title: {link.text: link.count for link in links}
        for title, links in response.context["cl"].facets
    }


def test_facets_count_the_values_of_the_list(browser, tables):
    response = browser.get(LIST)
    assert response.context["cl"].total == "5 tables"
    assert facets(response) == {
        "Format": {"Lance": "4", "Iceberg": "1"},
        "Kind": {"table": "5"},
        "State": {"live": "3", "declared": "2"},
        "Health": {"50 to 79": "3", "Not measured": "2"},
        "Owner": {"user:0": "3", "user:1": "2"},
        "Label": {"pii": "1"},
    }
    assert "≈" not in response.content.decode()


def test_numbers_of_many_tables_are_marked_as_estimates(browser, tables, monkeypatch):
    monkeypatch.setattr(listing, "EXACT", 2)
    response = browser.get(LIST)
    assert response.context["cl"].total == "≈ 5 tables"
    assert facets(response)["Format"] == {"Lance": "≈ 4", "Iceberg": "≈ 1"}
    assert "are estimates from a sample" in response.content.decode()


def test_the_links_of_facets_filter_the_list(browser, tables, size):
    facets_of_all = dict(browser.get(f"{LIST}?in=x").context["cl"].facets)
    for title, text, expected in (
        ("Format", "Iceberg", "d"),
        ("State", "declared", "ec"),
        ("Health", "50 to 79", "dba"),
        ("Health", "Not measured", "ec"),
        ("Owner", "user:1", "db"),
        ("Label", "pii", "a"),
    ):
        (link,) = [link for link in facets_of_all[title] if link.text == text]
        response = browser.get(LIST + link.url)
        assert names(response) == expected, text
        assert response.context["cl"].result_count == len(expected)
        chosen = next(iter(dict(response.context["cl"].facets)[title]))
        assert (chosen.text, chosen.is_chosen) == (text, True)
        assert names(browser.get(LIST + chosen.url)) == "edcba"


def test_a_label_is_filtered_by_its_value(browser, tables):
    assert names(browser.get(f"{LIST}?label=pii%3Dyes")) == "a"
    assert names(browser.get(f"{LIST}?label=pii%3Dno")) == ""


# --- what a principal may not see --------------------------------------------------------------


@pytest.fixture
def bob(sign_in, tables):
    """A browser of bob, who may browse table b and read table d."""
    client = sign_in()
    for name, privilege in (("b", "browse"), ("d", "read")):
        grants.set_grant(
            actor=SYSTEM,
            on=On.table(("x", name)),
            principal="user:bob",
            privileges=parse([privilege]),
        )
    return client


def test_a_principal_sees_and_counts_only_its_tables(bob, size):
    summaries.update()
    for query in ("", "o=rows", "o=-name", "kind__exact=table", "state=all"):
        response = bob.get(f"{LIST}?{query}")
        assert sorted(names(response)) == ["b", "d"]
        assert response.context["cl"].total == "2 tables"
        assert facets(response) == {
            "Format": {"Iceberg": "1", "Lance": "1"},
            "Kind": {"table": "2"},
            "State": {"live": "2"},
            "Health": {"50 to 79": "2"},
            "Owner": {"user:1": "2"},
        }


def test_a_filter_by_hidden_values_matches_nothing(bob):
    for query in ("owner=user:0", "label=pii", "q=a", "health=unknown", "in=x&state=declared"):
        response = bob.get(f"{LIST}?{query}")
        assert names(response) == ""
        assert response.context["cl"].total == "0 tables"
        assert facets(response) == {}


def test_estimates_do_not_count_hidden_tables(sign_in, tables, monkeypatch):
    monkeypatch.setattr(listing, "EXACT", 1)
    client = sign_in()
    for name in "bd":
        grants.set_grant(
            actor=SYSTEM, on=On.table(("x", name)), principal="user:bob", privileges=parse(["read"])
        )
    response = client.get(LIST)
    assert names(response) == "db"
    assert response.context["cl"].total == "≈ 2 tables"
    assert facets(response)["Owner"] == {"user:1": "≈ 2"}


def test_the_last_commit_of_a_table_that_may_only_be_browsed_is_hidden(bob):
    rows = {row.name: row for row in bob.get(LIST).context["cl"].result_list}
    assert rows["d"].committed_at is not None
    assert rows["d"].committed_by == "system"
    assert (rows["b"].committed_at, rows["b"].committed_by) == (None, None)
    # An order by the last commit would reveal it.
    assert names(bob.get(f"{LIST}?o=committed")) == "db"
    exported = export(bob, "")
    assert [line["committed_by"] for line in exported] == ["system", ""]


def test_a_principal_without_privileges_gets_an_empty_list(sign_in, tables, size):
    response = sign_in().get(LIST)
    assert names(response) == ""
    assert response.context["cl"].total == "0 tables"


# --- columns and export ------------------------------------------------------------------------


def headers(response) -> list[str]:
    return re.findall(r"column-(\w+)", response.content.decode())


def test_columns_are_chosen_and_remembered(browser, tables):
    assert headers(browser.get(LIST)) == [
        *(
            "table",
            "kind_of",
            "rows_of",
            "size_of",
            "committed",
            "owned_by",
            "health_of",
            "labels_of",
        )
    ]
    chosen = browser.get(f"{LIST}?cols=created&cols=rows")
    assert headers(chosen) == ["table", "rows_of", "created"]
    again = browser.get(f"{LIST}?in=x")
    assert again.status_code == 302
    assert headers(browser.get(LIST + again["location"])) == ["table", "rows_of", "created"]
    assert again["location"] == "?in=x&cols=created&cols=rows"


def test_an_order_holds_whichever_columns_are_chosen(browser, tables):
    assert names(browser.get(f"{LIST}?cols=owner&o=-rows")) == "adbec"
    page = browser.get(f"{LIST}?cols=owner&cols=rows&in=x").content.decode()
    assert re.findall(r'href="(\?[^"]*o=[^"]*)"', page) == [
        f"?cols=owner&amp;cols=rows&amp;in=x&amp;o={key}" for key in ("name", "rows", "owner")
    ]


def test_unknown_columns_are_ignored(browser, tables):
    for query in ("cols=nothing", "cols=%00", "cols=password"):
        assert headers(browser.get(f"{LIST}?{query}"))[0] == "table"


def export(client, query: str) -> list[dict[str, str]]:
    response = client.get(f"{LIST}?export=csv&{query}")
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(response.content.decode())))


def test_the_export_has_the_rows_and_columns_of_the_list(browser, tables, size):
    summaries.update()
    query = urlencode(
        {"cols": ["rows", "owner", "labels"], "o": "-rows", "owner": "user:0"}, doseq=True
    )
    assert export(browser, query) == [
        {"table": "x.a", "rows": "30", "owner": "user:0", "labels": "pii"},
        {"table": "x.e", "rows": "", "owner": "user:0", "labels": ""},
        {"table": "x.c", "rows": "", "owner": "user:0", "labels": ""},
    ]


def test_an_export_of_a_page_that_does_not_exist_is_refused(browser, tables):
    assert browser.get(f"{LIST}?export=csv&p=9999").status_code == 302


def test_only_an_export_is_longer_than_a_page(browser, tables, monkeypatch):
    monkeypatch.setattr(TableAdmin, "list_per_page", 2)
    assert names(browser.get(f"{LIST}?export=1")) == "ed"
    assert len(export(browser, "")) == 5


def test_an_export_contains_no_formulas(browser, tables):
    Table.objects.filter(name="a").update(owner='=HYPERLINK("http://x","y")')
    (line,) = export(browser, "cols=owner&q=x.a")
    assert line["owner"].startswith("'=")


def test_hostile_filter_values_do_not_break_the_list(browser, tables):
    parameters = ("owner", "label", "health", "in", "o", "p", "export", "cols")
    for value in ("\x00", "'; DROP TABLE x; --", "a" * 5_000, "\ufffd=", "-"):
        response = browser.get(LIST, dict.fromkeys(parameters, value), follow=True)
        assert response.status_code == 200, value
        assert names(response) == ("edcba" if value == "\x00" else "")
    assert Table.objects.count() == len(ROWS)


# --- summaries ---------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_summaries_follow_commits(warehouse):
    make_root()
    make_table("x", "a")
    summaries.update()
    summary = TableSummary.objects.get(table__name="a")
    assert (summary.name, summary.committed_at) == ("x.a", None)
    make_version(("x", "a"), 1)
    commit([table_operations.RenameTable(table=("x", "a"), new=("x", "b"))], actor=SYSTEM)
    make_table("x", "c")
    wait_for_readers()
    summaries.update()
    assert TableSummary.objects.filter(name="x.c").exists()
    summary.refresh_from_db()
    (version,) = Table.objects.get(name="b").versions.all()
    assert (summary.name, summary.committed_at) == ("x.b", version.created_at)
    commit([table_operations.DropTable(table=("x", "b"))], actor=SYSTEM)
    wait_for_readers()
    summaries.update()
    assert not TableSummary.objects.filter(name="x.b").exists()


def test_a_measurement_updates_the_summary(tables):
    summaries.update()
    table = tables["a"]
    summaries.record_measurement(table.pk, 12, {"rows": 7, "bytes": 8})
    summary = TableSummary.objects.get(table=table)
    assert (summary.rows, summary.bytes, summary.score) == (7, 8, 12)
    summaries.record_measurement(table.pk, 0, {"error": "unreadable"})
    summary.refresh_from_db()
    assert (summary.rows, summary.bytes, summary.score) == (None, None, None)


@pytest.mark.parametrize("is_summarized", [True, False])
@pytest.mark.parametrize("source", ["summary", "manifest", "sizes"])
def test_figures_beyond_the_range_of_integers_stop_nothing(
    browser, warehouse, db, source, is_summarized
):
    row = dict.fromkeys(field["name"] for field in SIMPLE["fields"])
    made = Written(warehouse / "w", SIMPLE)
    largest = {"manifest": "record_count", "sizes": "file_size_in_bytes"}.get(source)
    more = {largest: 2**62} if largest else {}
    made.commit([made.file([row], **more) for _ in range(3)])
    if source == "summary":
        made.document["snapshots"][-1]["summary"]["total-files-size"] = str(10**30)
    register(made, "ws", "w")
    make_iceberg_table("ws", "honest")
    if is_summarized:
        summaries.update()
    assert measurements.measure_due() == 2
    assert measurements.measure_due() == 0
    assert TableHealth.objects.newest().filter(table__name="honest").exists()
    (statistics,) = TableHealth.objects.filter(table__name="w").values_list("statistics", flat=True)
    assert 2**63 - 1 in {statistics["rows"], statistics["bytes"]}
    summaries.update()
    for query in ("o=size", "o=-rows", "export=csv&o=size"):
        assert browser.get(f"{LIST}?{query}").status_code == 200
    assert browser.get("/admin/").status_code == 200
    if is_summarized:
        assert 2**63 - 1 in TableSummary.objects.values_list("rows", "bytes").get(table__name="w")


def test_older_figures_beyond_the_range_of_integers_stop_no_summaries(tables):
    TableHealth.objects.filter(table=tables["a"]).update(
        statistics={"rows": 10**30, "bytes": 10**30}
    )
    summaries.update()
    assert summaries.are_complete()
    assert TableSummary.objects.get(table=tables["a"]).rows == 2**63 - 1
