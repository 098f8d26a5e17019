"""The pages of Iceberg tables and views: content, number of queries, and invalid input."""

import re
import time
from html import unescape

import pytest
from django.utils.html import strip_tags

from catalog.access import SYSTEM
from catalog.models import IcebergMetadata, Job, JobKind, MetricsReport, Table
from catalog.services.iceberg.changes import TableChange
from catalog.services.iceberg.commits import commit_table
from tests.catalog.admin.iceberg.iceberg_rows import (
    LARGEST,
    full_document,
    hold,
    make_full_table,
    make_report,
    make_view,
    snapshot,
    view_document,
)
from tests.catalog.admin.test_pages import cost
from tests.factories import make_iceberg_table, make_table

EVIL = "<script>alert(1)</script>"
NEWEST = LARGEST - 100_000 + 3
TABS = {
    "schema": 7,
    "snapshots": 4,
    "preview": 6,
    "files": 5,
    "refs": 4,
    "layout": 4,
    "properties": 4,
    "statistics": 4,
    "metadata": 4,
    "metrics": 5,
    "versions": 5,
    "transactions": 6,
    "audit": 5,
    "jobs": 5,
}
VIEW_TABS = {
    "sql": 4,
    "schema": 7,
    "history": 4,
    "properties": 4,
    "versions": 5,
    "transactions": 6,
    "audit": 5,
}


def url(row: Table, tab: str = "", **more: object) -> str:
    query = "".join(f"&{key}={value}" for key, value in more.items())
    return f"/admin/catalog/table/{row.pk}/change/?tab={tab}{query}"


def words(cell: object) -> str:
    """The text of a cell, without its markup. Of a relative time, the time in its tooltip."""
    text = re.sub(r'<time [^>]*title="([^"]+) UTC" data-local>[^<]+', r"<time>\1", str(cell))
    return " ".join(unescape(strip_tags(re.sub(r"</?\w+", r" \g<0>", text))).split())


def rows(browser, address: str, panel: int = 0) -> list[list[str]]:
    answer = browser.get(address)
    assert answer.status_code == 200
    return [[words(cell) for cell in row] for row in answer.context["panels"][panel].rows]


def below(browser, address: str) -> list[str]:
    return [words(content) for content in browser.get(address).context["panels"][0].below]


def facts(browser, address: str) -> dict[str, str]:
    return {name: words(value) for name, value in browser.get(address).context["page"].facts}


def walk(browser, address: str, panel: int = 0) -> list[list[str]]:
    """The rows of all pages of a panel."""
    base, lines = address.partition("?")[0], []
    for _ in range(1000):
        page = browser.get(address).context["panels"][panel]
        lines += [[words(cell) for cell in row] for row in page.rows]
        if not page.following:
            return lines
        address = base + page.following
    raise AssertionError("the pages do not end")


# --- tables


def test_the_page_of_a_table_shows_its_facts(browser):
    row = make_full_table("prod", "events")
    details = facts(browser, url(row))
    assert details | {"Created": "", "UUID in the catalog": ""} == {
        "Namespace": "prod",
        "Format": "Iceberg table, version 2",
        "State": "live",
        "UUID": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "UUID in the catalog": "",
        "Location": "file:///srv/wh/events",
        "Metadata file": "file:///srv/wh/current.json",
        "Current snapshot": f"{NEWEST} 2023-11-14 22:13:23",
        "Snapshots": "3",
        "Records": "3,000",
        "Data files": "6",
        "Size": "6.0 KB",
        "Owner": "system",
        "Protected": "no",
        "Labels": "–",
        "Sensitivity": "–",
        "Links": "–",
        "Description": "–",
        "Created": "",
        "Last updated": "2023-11-14 22:13:20",
    }
    assert details["UUID in the catalog"] == str(row.uuid)


def test_the_schema_shows_nested_fields(browser):
    row = make_full_table("prod", "events")
    assert rows(browser, url(row)) == [
        ["1", "key identifier", "long", "required", "–", "what tells rows apart"],
        ["3", "place", "struct", "optional", "–", "–"],
        ["4", "lat", "double", "required", "–", "–"],
        [
            "5",
            "event_time",
            "timestamptz",
            "optional",
            "1970-01-01T00:00:00+00:00 for existing rows",
            "–",
        ],
    ]
    assert browser.get(url(row)).context["panels"][0].title == "Schema 1 (current)"


def test_changes_of_the_schema_are_shown(browser):
    row = make_full_table("prod", "events")
    assert rows(browser, url(row), panel=1) == [
        [
            "Schema 1 current",
            (
                "type key int → long renamed key id → key required key optional → required "
                "identifier key no identifier → identifier doc key what tells rows apart "
                "added place struct added event_time timestamptz dropped name string"
            ),
        ],
        ["Schema 0", "Oldest schema in the metadata: 2 fields."],
    ]


def test_an_older_schema_may_be_selected(browser):
    row = make_full_table("prod", "events")
    assert [line[1] for line in rows(browser, url(row, "schema", schema=0))] == ["id", "name"]


def test_snapshots_are_shown_in_order(browser):
    row = make_full_table("prod", "events")
    lines = rows(browser, url(row, "snapshots"))
    page = browser.get(url(row, "snapshots")).content.decode()
    assert re.search(r'title="2023-11-14 22:13:23 UTC" data-local>[0-9]+\s+years? ago<', page)
    assert lines == [
        [f"{NEWEST} current main tag3", "2023-11-14 22:13:23", "append", "+1,000", "+2", "+2.0 KB",
         str(NEWEST - 1)],
        [f"{NEWEST - 1} tag2", "2023-11-14 22:13:22", "append", "+1,000", "+2", "+2.0 KB",
         str(NEWEST - 2)],
        [f"{NEWEST - 2} tag1", "2023-11-14 22:13:21", "append", "+1,000", "+2", "+2.0 KB",
         f"{NEWEST - 3} expired"],
    ]  # fmt: skip
    assert below(browser, url(row, "snapshots"))[0] == (
        "Data Schema Tag Summary, 9 entries added-data-files 2 added-files-size 2048 added-records 1000 operation append "
        "spark.app.id local-3 total-data-files 6 total-delete-files 0 total-files-size 6144 "
        "total-records 3000"
    )


def test_added_and_removed_counts_of_a_snapshot_are_shown_together(browser):
    summary = {
        "operation": "overwrite",
        "added-records": "5",
        "deleted-records": "1200",
        "deleted-data-files": "3",
        "removed-files-size": "1048576",
    }
    row = make_full_table(
        "prod", "events", document={**full_document(0), "snapshots": [snapshot(1, summary=summary)]}
    )
    [line] = rows(browser, url(row, "snapshots"))
    assert line[2:6] == ["overwrite", "+5 −1,200", "−3", "−1.0 MB"]


def test_ids_are_exact_and_can_be_copied(browser):
    row = make_full_table("prod", "events")
    page = browser.get(url(row, "snapshots")).content.decode()
    assert f'<code class="m-code m-exact" title="{NEWEST}">{NEWEST}</code>' in page


def test_references_link_to_their_snapshots(browser):
    row = make_full_table("prod", "events")
    lines = rows(browser, url(row, "refs"), panel=1)
    assert lines == [
        ["main", "branch", str(NEWEST), "set by table properties"],
        ["tag1", "tag", str(NEWEST - 2), "the reference for 1 day"],
        ["tag2", "tag", str(NEWEST - 1), "the reference for 1 day"],
        ["tag3", "tag", str(NEWEST), "the reference for 1 day"],
    ]
    page = browser.get(url(row, "refs")).content.decode()
    assert f"?tab=snapshots&amp;snapshot={NEWEST - 1}" in page
    led = rows(browser, url(row, "snapshots", snapshot=NEWEST - 1))
    assert [line[0] for line in led] == [
        f"{NEWEST - 1} tag2",
        f"{NEWEST - 2} tag1",
    ]


def test_partition_specs_and_sort_orders_are_shown_as_expressions(browser):
    row = make_full_table("prod", "events")
    specs = rows(browser, url(row, "layout"))
    assert specs[-2:] == [
        [
            "1 current",
            "day(event_time) d, id 1000 bucket[16](key) b, id 1001 void(name) n, id 1002",
        ],
        ["0", "not partitioned"],
    ]
    assert rows(browser, url(row, "layout"), panel=1) == [
        ["1 current", "key desc nulls last"],
        ["0", "not sorted"],
    ]


def test_properties_are_shown_without_secrets(browser):
    row = make_full_table("prod", "events")
    assert rows(browser, url(row, "properties")) == [
        ["p0", "0"],
        ["p1", "1"],
        ["p2", "2"],
        ["s3.secret-access-key", "••••••"],
        ["write.format.default", "parquet"],
    ]
    for tab in TABS:
        assert "hidden-from-all" not in browser.get(url(row, tab)).content.decode()


def test_statistics_and_the_metadata_log_are_shown(browser):
    row = make_full_table("prod", "events")
    assert rows(browser, url(row, "statistics"))[0] == [
        str(NEWEST),
        f"file:///srv/wh/{NEWEST}.puffin",
        "4.0 KB",
        "1 blob apache-datasketches-theta-v1 fields 1",
    ]
    assert rows(browser, url(row, "statistics"), panel=1)[0] == [
        str(NEWEST),
        f"file:///srv/wh/{NEWEST}.parquet",
        "512 bytes",
    ]
    assert rows(browser, url(row, "metadata")) == [
        ["file:///srv/wh/current.json current", "2023-11-14 22:13:20"],
        ["file:///srv/wh/m2.json", "2023-11-14 22:13:20"],
        ["file:///srv/wh/m1.json", "2023-11-14 22:13:20"],
        ["file:///srv/wh/m0.json", "2023-11-14 22:13:20"],
    ]


def test_metrics_reports_are_shown(browser):
    row = make_full_table("prod", "events")
    make_report(row)
    [line] = rows(browser, url(row, "metrics"))
    assert line[1:5] == [
        "scan",
        str(NEWEST - 2),
        "spark",
        "result-data-files 4 total-file-size-in-bytes 44.0 KB total-planning-duration 2.644 s",
    ]
    for number in range(60):
        make_report(row, number)
    assert len(rows(browser, url(row, "metrics"))) == 50


def test_the_ledger_names_the_metadata_files_of_commits(browser):
    loaded = make_iceberg_table("prod", "events")
    update = {"action": "set-properties", "updates": {"a": "b"}}
    change = TableChange(table=("prod", "events"), requirements=[], updates=[update])
    commit_table(actor=SYSTEM, change=change)
    row = Table.objects.get(pk=loaded.pk)
    lines = rows(browser, url(row, "versions"))
    assert [line[0] for line in lines] == ["1", "0"]
    assert re.fullmatch(r"metadata/00001-[0-9a-f-]{36}\.metadata\.json", lines[0][3])
    assert [line[0] for line in rows(browser, url(row, "audit"))] == [
        "table.commit",
        "table.create",
    ]
    assert len(rows(browser, url(row, "transactions"))) == 2
    log = rows(browser, url(row, "metadata"))
    assert [line[0].endswith("current") for line in log] == [True, False]


def test_the_page_shows_code_to_open_the_table(browser):
    row = make_full_table("nyc", 'fli"ghts')
    page = browser.get(url(row)).content.decode()
    assert "catalog.load_table((&quot;nyc&quot;, &quot;fli\\&quot;ghts&quot;))" in page
    assert "RestNamespace" not in page


def test_the_page_of_a_new_table_explains_the_next_steps(browser):
    row = Table.objects.get(pk=make_iceberg_table("prod", "events").pk)
    taught = {
        "snapshots": "table.append()",
        "refs": "CREATE TAG",
        "properties": "SET TBLPROPERTIES",
        "statistics": "compute_table_stats",
        "metrics": "such as Spark",
        "jobs": "No jobs.",
    }
    for tab, hint in taught.items():
        panel = browser.get(url(row, tab)).context["panels"][0]
        assert panel.rows == []
        assert hint in panel.empty
    assert facts(browser, url(row))["Current snapshot"] == "none"
    assert "has not changed" in browser.get(url(row, "schema")).context["panels"][1].note


# --- views


def test_the_page_of_a_view_shows_its_facts(browser):
    row = make_view("nyc", "daily")
    details = facts(browser, url(row))
    assert details | {"Created": "", "UUID in the catalog": ""} == {
        "Namespace": "nyc",
        "Format": "Iceberg view, version 1",
        "State": "live",
        "UUID": "fa6506c3-7681-40c8-86dc-e36561f83385",
        "UUID in the catalog": "",
        "Location": "file:///srv/wh/daily",
        "Metadata file": "file:///srv/wh/current.json",
        "Current version": "2",
        "Default catalog": "prod",
        "Default namespace": "nyc.raw",
        "Owner": "system",
        "Protected": "no",
        "Labels": "–",
        "Sensitivity": "–",
        "Links": "–",
        "Description": "–",
        "Created": "",
        "Last changed": "2023-11-14 22:13:22",
    }
    assert rows(browser, url(row)) == [
        ["spark", "SELECT 1 -- spark 2"],
        ["trino", "SELECT 1 -- trino 2"],
    ]
    assert rows(browser, url(row, "history")) == [
        ["2 current", "2023-11-14 22:13:22", "2023-11-14 22:13:24", "0", "nyc.raw"],
        ["1", "2023-11-14 22:13:21", "2023-11-14 22:13:22", "0", "nyc.raw"],
    ]
    assert below(browser, url(row, "history"))[1] == (
        "spark: SELECT 1 -- spark 1 SELECT 1 -- spark 1 "
        "trino: SELECT 1 -- trino 1 SELECT 1 -- trino 1 "
        "Summary, 2 entries engine-name Spark engine-version 3.5.1"
    )
    assert [line[1] for line in rows(browser, url(row, "schema"))] == ["id", "name"]
    assert rows(browser, url(row, "properties")) == [["comment", "Daily sums"]]


def test_a_view_has_no_buttons_for_data(browser):
    pages = {
        row: "".join(
            browser.get(url(row, tab)).content.decode() for tab in ("overview", "maintenance")
        )
        for row in (make_full_table("nyc", "t"), make_view("nyc", "v"))
    }
    table, view = pages.values()
    of_data = {"deregister", "policy", "measure", "compact", "clean_up", "remove_orphans"}
    of_data |= {"rewrite_manifests", "rewrite_position_deletes", "compute_statistics"}
    of_both = {"rename", "drop", "describe", "label", "grant", "protect"}
    for page, actions in ((table, of_both | of_data), (view, of_both)):
        buttons = set(re.findall(r'(?:href|action)="/admin/catalog/table/\d+/(\w+)/"', page))
        assert buttons - {"change"} == actions


# --- lists


def test_lists_show_formats_and_kinds(browser):
    make_table("prod", "lance")
    table, view = make_full_table("prod", "events"), make_view("prod", "daily")
    cards = {name: count for name, _, _, count in browser.get("/admin/").context["cards"]}
    assert (cards["Tables"].text, cards["Views"].text) == ("2", "1")
    assert cards["Tables"].by_format == (("Iceberg", "1"), ("Lance", "1"))
    listed = browser.get("/admin/catalog/table/?kind__exact=view&format__exact=iceberg")
    assert [row.pk for row in listed.context["cl"].result_list] == [view.pk]
    listed = browser.get("/admin/catalog/table/?kind__exact=table&format__exact=iceberg")
    assert [row.pk for row in listed.context["cl"].result_list] == [table.pk]
    namespace = f"/admin/catalog/namespace/{table.namespace_id}/change/"
    assert [line[:2] for line in rows(browser, namespace)] == [
        ["daily", "Iceberg view"],
        ["events", "Iceberg"],
        ["lance", "Lance declared"],
    ]


def test_views_are_not_estimated_from_tables(browser, monkeypatch):
    monkeypatch.setattr("catalog.admin.site.dashboard.EXACT", 1)
    make_table("prod", "a")
    make_table("prod", "b")
    make_view("prod", "daily")
    cards = {name: count for name, _, _, count in browser.get("/admin/").context["cards"]}
    assert cards["Tables"].text[0] in ">≈"  # depending on PostgreSQL's statistics of the table
    assert cards["Views"].text == "1"


# --- cost


def fill(table: Table, view: Table, count: int) -> None:
    hold(table, full_document(count))
    hold(view, view_document(count))
    MetricsReport.objects.filter(table=table).delete()
    Job.objects.filter(table=table).delete()
    for number in range(count):
        make_report(table, number)
        Job.objects.create(kind=JobKind.PURGE_TABLE, table=table, status="failed")
        update = {"action": "set-properties", "updates": {"n": f"{count} {number}"}}
        change = TableChange(table=("prod", "other"), requirements=[], updates=[update])
        commit_table(actor=SYSTEM, change=change)


def test_every_page_takes_a_fixed_number_of_queries(browser):
    table, view = make_full_table("prod", "events"), make_view("prod", "daily")
    other = make_iceberg_table("prod", "other").pk
    expected = {url(table, tab): count for tab, count in TABS.items()}
    expected |= {url(view, tab): count for tab, count in VIEW_TABS.items()}
    expected |= {
        f"/admin/catalog/table/{other}/change/?tab={tab}": TABS[tab]
        for tab in ("versions", "transactions", "audit")
    }
    fill(table, view, 3)
    assert cost(browser, expected) == expected
    fill(table, view, 30)
    assert cost(browser, expected) == expected


def test_pages_link_to_the_next_page(browser):
    row = make_full_table("prod", "events", document=full_document(60))
    ids = [str(LARGEST - 100_000 + number) for number in range(60, 0, -1)]
    assert [line[0].split()[0] for line in walk(browser, url(row, "snapshots"))] == ids
    led = walk(browser, url(row, "snapshots", snapshot=ids[10]))
    assert [line[0].split()[0] for line in led] == ids[10:]
    assert len(walk(browser, url(row, "refs"), 1)) == 61
    assert len(walk(browser, url(row, "properties"))) == 62
    assert len(walk(browser, url(row, "metadata"))) == 61
    assert len(walk(browser, url(row, "layout"))) == 61
    assert [line[0] for line in walk(browser, url(row, "statistics"))] == ids
    assert [line[0] for line in walk(browser, url(row, "statistics"), panel=1)] == ids
    view = make_view("prod", "daily", document=view_document(25))
    versions = [line[0].split()[0] for line in walk(browser, url(view, "history"))]
    assert versions == [str(number) for number in range(25, 0, -1)]


def test_a_wide_schema_with_a_long_history_is_paged(browser):
    def schema(number):
        columns = [{"id": n, "name": f"c{n}", "type": "int", "required": False} for n in range(250)]
        return {"schema-id": number, "type": "struct", "fields": columns[: 200 + number]}

    document = {"schemas": [schema(n) for n in range(40)], "current-schema-id": 39}
    row = make_full_table("prod", "events", document=document)
    assert [line[1] for line in walk(browser, url(row))] == [f"c{n}" for n in range(239)]
    assert len(walk(browser, url(row), panel=1)) == 40
    assert rows(browser, url(row), panel=1)[0][1] == "added c238 int"


def test_new_snapshots_do_not_move_the_rows_of_a_page(browser):
    row = make_full_table("prod", "events", document=full_document(60))
    second = browser.get(url(row, "snapshots")).context["panels"][0].following
    before = rows(browser, url(row).partition("?")[0] + second)
    hold(row, full_document(70))
    after = rows(browser, url(row).partition("?")[0] + second)
    assert [line[:2] for line in after] == [line[:2] for line in before]


def test_five_thousand_snapshots_are_paged(browser):
    document = full_document(5000)
    for entry in document["snapshots"]:
        entry["summary"]["padding"] = "x" * 1200
    row = make_full_table("prod", "events", document=document)
    assert len(bytes(IcebergMetadata.objects.get(table=row).answer)) < 4_000_000
    for tab, count in TABS.items():
        started = time.thread_time()
        page = browser.get(url(row, tab))
        assert time.thread_time() - started < 3, tab
        assert cost(browser, [url(row, tab)]) == {url(row, tab): count}
        assert len(page.content) < 400_000, tab
    assert facts(browser, url(row))["Snapshots"] == "5,000"
    oldest = rows(browser, url(row, "snapshots", snapshot=LARGEST - 100_000 + 1))
    assert [line[0].split()[0] for line in oldest] == [str(LARGEST - 100_000 + 1)]


def test_long_texts_are_truncated(browser):
    document = full_document()
    long = "y" * 1_000_000
    document["properties"] = {"long": long, "k" * 100_000: "v"}
    document["snapshots"][0]["summary"]["operation"] = long
    document["snapshots"][1]["summary"]["spark.app.id"] = long
    document["refs"][long] = {"type": long, "snapshot-id": 1}
    document["schemas"][1]["fields"][0] |= {"doc": long, "type": long, "initial-default": long}
    document["partition-specs"][1]["fields"][0] |= {"name": long, "transform": long}
    document["location"] = document["table-uuid"] = long
    row = make_full_table("prod", "events", document=document)
    view = make_view("prod", "daily", document=view_document(25, sql=long))
    for address in (
        *(url(row, tab) for tab in TABS),
        *(url(view, tab) for tab in VIEW_TABS if tab != "history"),
    ):
        assert len(browser.get(address).content) < 400_000, address
    assert "more characters" in browser.get(url(view)).content.decode()


# --- strange input


@pytest.mark.parametrize("tab", TABS)
def test_names_and_texts_are_escaped(browser, tab):
    document = full_document()
    for spec in document["partition-specs"][1:]:
        spec["fields"][0] |= {"name": EVIL, "transform": EVIL}
    document["schemas"] = [
        {
            **schema,
            "fields": [
                {**schema_field, "name": EVIL, "doc": EVIL} for schema_field in schema["fields"]
            ],
        }
        for schema in document["schemas"]
    ]
    document["schemas"][0]["fields"][0] |= {"type": EVIL, "initial-default": EVIL}
    document["properties"] = {EVIL: EVIL, "deep": {EVIL: [EVIL]}}
    document["refs"][EVIL] = {"type": EVIL, "snapshot-id": NEWEST}
    document["snapshots"][0]["summary"] = {"operation": EVIL, EVIL: EVIL}
    document["statistics"][0] |= {"statistics-path": EVIL, "blob-metadata": [{"type": EVIL}]}
    document["metadata-log"][0]["metadata-file"] = EVIL
    document |= {"table-uuid": EVIL, "location": EVIL}
    row = make_full_table(EVIL, EVIL, document=document)
    make_report(row, **{EVIL: EVIL, "metrics": {EVIL: {"value": 1, "unit": EVIL}}})
    page = browser.get(url(row, tab)).content.decode()
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


@pytest.mark.parametrize("tab", VIEW_TABS)
def test_sql_is_escaped(browser, tab):
    document = view_document(sql=EVIL)
    document["properties"] = {EVIL: EVIL}
    document["schemas"][0]["fields"][0] |= {"name": EVIL}
    for version in document["versions"]:
        version |= {"summary": {EVIL: EVIL}, "default-catalog": EVIL, "default-namespace": [EVIL]}
        version["representations"][0]["dialect"] = EVIL
    row = make_view(EVIL, EVIL, document=document)
    page = browser.get(url(row, tab)).content.decode()
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for action in ("drop", "rename"):
        assert EVIL not in browser.get(f"/admin/catalog/table/{row.pk}/{action}/").content.decode()


ODD = [
    None, 7, "x", [], {},
    dict.fromkeys(full_document()),
    dict.fromkeys([*full_document(), *view_document()], "x"),
    {key: [None, 1, "x", {}, []] for key in [*full_document(), *view_document()]},
    {key: {"x": {"x": None}} for key in [*full_document(), *view_document()]},
    {"snapshots": [{}, {"snapshot-id": 1.5}, {"snapshot-id": 1, "timestamp-ms": 10**18}]},
    {"current-snapshot-id": 7, "snapshots": [{"snapshot-id": 7, "summary": {"operation": []}}]},
]  # fmt: skip


@pytest.mark.parametrize("document", ODD, ids=lambda text: repr(text)[:20])
def test_pages_open_with_invalid_metadata(browser, document):
    table, view = make_full_table("prod", "events"), make_view("prod", "daily")
    for row, tabs in ((table, TABS), (view, VIEW_TABS)):
        hold(row, document)
        for tab in tabs:
            assert browser.get(url(row, tab)).status_code == 200


@pytest.mark.parametrize("answer", [b"", b"x", b"\x1f\x8b\x08", b'{"metadata":{}}'])
def test_unreadable_metadata_is_reported(browser, answer):
    row = make_full_table("prod", "events")
    IcebergMetadata.objects.filter(table=row).update(answer=answer)
    for tab in TABS:
        assert "cannot be read" in facts(browser, url(row, tab))["Fault"]


def test_missing_metadata_is_reported(browser):
    row = make_full_table("prod", "events")
    IcebergMetadata.objects.filter(table=row).delete()
    for tab in TABS:
        assert (
            facts(browser, url(row, tab))["Fault"]
            == "The catalog has no metadata of the table or view."
        )


@pytest.mark.parametrize(
    "query",
    [
        "tab=snapshots&after=%00",
        "tab=snapshots&snapshot=%00&after=x",
        "tab=snapshots&snapshot=-1",
        "tab=schema&schema=99&field=x",
        "tab=schema&field=999999999999999999&changes=x",
        "tab=layout&spec=x&order=%FF",
        "tab=statistics&table=%00&part=x",
        "tab=properties&after=%FF",
        "tab=versions&before=x&branch=%00",
        "tab=nonsense",
    ],
)
def test_invalid_parameters_do_not_break_a_page(browser, query):
    for row in (make_full_table("prod", "events"), make_view("prod", "daily")):
        page = f"/admin/catalog/table/{row.pk}/change/?{query}"
        assert browser.get(page).status_code == 200


def test_users_that_may_only_read_see_no_buttons(sign_in):
    row = make_full_table("prod", "events")
    page = sign_in("read").get(url(row)).content.decode()
    assert "9c12d441-03fe-4693-9a96-a0705ddf69c1" in page
    assert "/drop/" not in page
    assert "/rename/" not in page
