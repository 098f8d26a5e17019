"""Every page opens, with and without data, and takes a fixed number of queries."""

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.models import (
    ApiKey,
    AuditEvent,
    Job,
    JobKind,
    JobStatus,
    Namespace,
    Table,
    TableFormat,
    TableVersion,
    Transaction,
    TransactionStatus,
)
from catalog.services.access.api_keys import create_api_key
from catalog.services.engine.commit import commit
from catalog.services.tables import namespace_operations, table_operations
from tests.cases import shared_cases
from tests.factories import make_namespace, make_table, make_version

# Two of the queries load the session and its user.
LISTS = {
    "/admin/": 24,
    "/admin/catalog/namespace/": 5,
    "/admin/catalog/namespace/?rows=1&depth=2": 4,
    "/admin/catalog/namespace/?q=n": 3,
    "/admin/catalog/namespace/?dropped=1": 3,
    "/admin/catalog/table/": 6,
    "/admin/catalog/table/?q=t": 7,
    "/admin/catalog/table/?q=prod.t0": 7,
    "/admin/catalog/table/?q=/srv": 5,
    "/admin/catalog/table/?state=all&format__exact=lance&in=prod": 6,
    "/admin/catalog/transaction/": 3,
    "/admin/catalog/transaction/?status__exact=Succeeded&q=system": 3,
    "/admin/catalog/auditevent/": 3,
    "/admin/catalog/auditevent/?action=table.declare&actor=system": 4,
    "/admin/catalog/auditevent/?q=nobody": 5,
    "/admin/catalog/job/": 3,
    "/admin/catalog/job/?status__exact=queued": 3,
    "/admin/catalog/tablehealth/": 3,
    "/admin/catalog/apikey/": 3,
    "/admin/catalog/storageprofile/": 3,
    "/admin/catalog/engineprofile/": 4,
}
OTHERS = [
    "/admin/catalog/",
    "/admin/catalog/apikey/add/",
    "/admin/catalog/namespace/add/",
    "/admin/auth/user/",
    "/admin/auth/user/add/",
    "/admin/django_celery_beat/periodictask/",
    "/admin/search/?s=flights&extended=1",
]


def fill(start: int, stop: int) -> None:
    """Add one row of each kind per number, most of them about namespace prod and table prod.t0."""
    for i in range(start, stop):
        make_namespace("prod", f"n{i}")
        make_namespace(f"top{i}")
        make_table("prod", f"t{i}", properties={"n": str(i)})
        make_version(("prod", "t0"), i + 1)
        make_version(("prod", "t0"), 1, branch=f"b{i}")
        make_table("gone", f"g{i}")
        commit([table_operations.DropTable(table=("gone", f"g{i}"))], actor=SYSTEM)
        make_namespace("gone", f"n{i}")
        commit([namespace_operations.DropNamespace(namespace=("gone", f"n{i}"))], actor=SYSTEM)
        create_api_key(actor=SYSTEM, name=f"key {i}")
    # All jobs and events belong to this transaction and this table.
    table = Table.objects.get(name="t0")
    whole = Transaction.objects.filter(status=TransactionStatus.FAILED).first()
    if whole is None:
        whole = Transaction.objects.create(status=TransactionStatus.FAILED, actor="system")
    for i in range(start, stop):
        whole.operations.append({"operation": "DropTable", "target": f"prod.t{i}", "n": i})
        Job.objects.create(
            kind=JobKind.PURGE_TABLE,
            table=table,
            transaction=whole,
            status=JobStatus.FAILED,
            error="Disk quota exceeded",
            finished_at=timezone.now(),
        )
    whole.save()


def pages() -> dict[str, int]:
    """The URLs of all tabs of one row of each kind."""
    table = f"/admin/catalog/table/{Table.objects.get(name='t0').pk}/change/"
    prod = Namespace.objects.named(("prod",)).get()
    namespace = f"/admin/catalog/namespace/{prod.pk}/change/"
    event = AuditEvent.objects.filter(target="prod.t0").first()
    whole = Transaction.objects.get(status=TransactionStatus.FAILED)
    return {
        table: 11,
        f"{table}?tab=versions&branch=b1": 8,
        f"{table}?tab=refs": 14,
        f"{table}?tab=transactions": 7,
        f"{table}?tab=audit": 6,
        f"{table}?tab=jobs": 6,
        f"{table}?tab=maintenance": 10,
        namespace: 7,
        f"{namespace}?tab=namespaces": 4,
        f"{namespace}?tab=audit": 4,
        f"{namespace}?tab=maintenance": 6,
        f"/admin/catalog/namespace/?parent={prod.pk}": 5,
        f"/admin/catalog/transaction/{whole.pk}/change/": 5,
        f"/admin/catalog/auditevent/{event.pk}/change/": 6,
        f"/admin/catalog/job/{Job.objects.filter(transaction=whole).first().pk}/change/": 5,
        f"/admin/catalog/apikey/{ApiKey.objects.first().pk}/change/": 3,
    }


def cost(browser: Client, urls) -> dict[str, int]:
    counts = {}
    for url in urls:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            answer = browser.get(url)
        assert answer.status_code == 200, url
        counts[url] = len(queries)
    return counts


@pytest.mark.parametrize("url", [*LISTS, *OTHERS])
def test_every_empty_list_opens(browser, url):
    assert browser.get(url).status_code == 200


@pytest.mark.parametrize(
    ("noun", "title", "teaches"),
    [
        ("table", "Tables", "the overview shows an example"),
        ("materializedview", "Materialized views", "from a query on a Lance table"),
        ("labeldefinition", "Labels", "Define a label such as"),
        ("trashitem", "Trash", "kept here until their retention ends"),
        ("approvalrequest", "Approvals", "which actions require approval"),
        ("webhook", "Webhooks", "sends signed events"),
        ("apikey", "API keys", "Programs authenticate"),
        ("job", "Jobs", "run as jobs"),
        ("transaction", "Transactions", "No transactions"),
        ("function", "Functions", "No entries."),
    ],
)
def test_an_empty_list_has_a_title_and_an_explanation(browser, noun, title, teaches):
    page = browser.get(f"/admin/catalog/{noun}/")
    assert page.context["title"] == title
    assert teaches in page.content.decode()
    searched = browser.get(f"/admin/catalog/{noun}/?q=flights").content.decode()
    assert "No matching entries." in searched
    assert teaches not in searched


def test_every_page_takes_a_fixed_number_of_queries(browser):
    fill(0, 3)
    expected = LISTS | pages()
    assert cost(browser, expected) == expected
    fill(3, 30)
    assert cost(browser, expected) == expected


def test_every_other_page_opens(browser):
    fill(0, 3)
    for url in OTHERS:
        assert browser.get(url).status_code == 200, url


@pytest.mark.parametrize("noun", ["table", "namespace", "job"])
def test_the_short_url_of_a_page_keeps_its_parameters(browser, noun):
    response = browser.get(f"/admin/catalog/{noun}/5/?tab=versions&before=3")
    assert response["location"] == f"/admin/catalog/{noun}/5/change/?tab=versions&before=3"


def test_pages_link_to_the_next_page(browser):
    table = make_table("prod", "t0")
    for number in range(1, 61):
        make_version(("prod", "t0"), number)
        make_namespace("prod", f"n{number}")
    listed, url = [], f"/admin/catalog/table/{table.pk}/change/?tab=versions"
    while url:
        panel = browser.get(url).context["panels"][0]
        listed += [str(row[0]) for row in panel.rows]
        url = panel.following and f"/admin/catalog/table/{table.pk}/change/{panel.following}"
    assert listed == [str(number) for number in range(60, 0, -1)]
    prod = Namespace.objects.named(("prod",)).get()
    listed, url = [], f"/admin/catalog/namespace/?parent={prod.pk}"
    while url:
        context = browser.get(url).context
        listed += [item["text"] for item in context["rows"]]
        following = context["following"]
        url = following and f"/admin/catalog/namespace/{following}"
    assert listed == sorted(f"n{number}" for number in range(1, 61))


def test_the_overview_of_an_empty_catalog_explains_the_next_steps(browser):
    page = browser.get("/admin/").content.decode()
    assert "lance.write_dataset(" in page
    assert "make demo" in page
    make_table("prod", "t")
    assert "lance.write_dataset(" not in browser.get("/admin/").content.decode()


def test_the_overview_counts_present_objects(browser):
    fill(0, 3)
    Table.objects.filter(name="t1").update(format=TableFormat.ICEBERG)
    cards = {name: count for name, _, _, count in browser.get("/admin/").context["cards"]}
    assert cards["Namespaces"].text == str(1 + 3 + 3 + 1)
    assert cards["Tables"].text == "3"
    assert cards["Tables"].by_format == (("Iceberg", "1"), ("Lance", "2"))
    assert cards["Versions"].text == "6"


def test_the_overview_estimates_large_counts(browser, monkeypatch):
    monkeypatch.setattr("catalog.admin.site.dashboard.EXACT", 2)
    fill(0, 3)
    cards = {name: count for name, _, _, count in browser.get("/admin/").context["cards"]}
    assert cards["Tables"].text == "> 2"
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE catalog_table")
    cards = {name: count for name, _, _, count in browser.get("/admin/").context["cards"]}
    assert cards["Tables"].text == "≈ 6"


def test_the_overview_does_not_count_tables_that_are_estimated_to_be_large(browser, monkeypatch):
    monkeypatch.setattr("catalog.admin.site.dashboard.EXACT", 2)
    fill(0, 3)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE catalog_table")
    make_table("prod", "later")
    with CaptureQueriesContext(connection) as queries:
        cards = {name: count for name, _, _, count in browser.get("/admin/").context["cards"]}
    assert cards["Tables"].text == "≈ 6"
    [counts] = [query["sql"] for query in queries if "WITH estimate" in query["sql"]]
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) " + counts)
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert re.search(r"Seq Scan on catalog_table( \w+)? \(never executed\)", plan), plan


def test_dropped_rows_are_hidden_by_default(browser):
    fill(0, 1)
    assert "gone.g0" not in browser.get("/admin/catalog/table/").content.decode()
    assert "gone.g0" in browser.get("/admin/catalog/table/?state=dropped").content.decode()
    dropped = Namespace.objects.named(("gone",)).get()
    tree = f"/admin/catalog/namespace/?parent={dropped.pk}"
    assert "gone.n0" not in browser.get(tree).content.decode()
    assert "gone.n0" in browser.get("/admin/catalog/namespace/?dropped=1").content.decode()


def test_search_finds_a_table_by_its_whole_name(browser):
    make_table("nyc", "flights")
    make_table("nyc", "flights_old")
    content = browser.get("/admin/catalog/table/?q=nyc.flights").content.decode()
    assert "nyc.flights" in content
    assert "nyc.flights_old" not in content
    command = browser.get("/admin/search/?s=nyc.flights&extended=1").content.decode()
    assert f"/admin/catalog/table/{Table.objects.get(name='flights').pk}/change/" in command


def test_a_table_name_finds_all_its_events(browser, monkeypatch):
    monkeypatch.setattr("catalog.admin.audit.trail.SEARCHED", 1)
    make_table("nyc", "flights")
    make_version(("nyc", "flights"), 1)
    make_namespace("later")
    content = browser.get("/admin/catalog/auditevent/?q=nyc.flights").content.decode()
    assert "table.declare" in content
    assert "version.create" in content


def test_a_deep_tree_of_namespaces_is_shown(browser):
    path = tuple(f"level{depth}" for depth in range(60))
    row = make_namespace(*path)
    make_table(*path, "t")
    parent = row.parent
    page = browser.get(f"/admin/catalog/namespace/?parent={parent.pk}&rows=1&depth=59")
    assert page.status_code == 200
    assert browser.get(f"/admin/catalog/namespace/{row.pk}/change/").status_code == 200
    trail = browser.get(f"/admin/catalog/namespace/?parent={row.pk}").context["trail"]
    assert [name for name, _ in trail] == ["(root)", *path]


def test_the_page_of_a_table_shows_code_to_open_it(browser):
    row = make_table("nyc", 'fli"ghts')
    url = f"/admin/catalog/table/{row.pk}/change/"
    assert "RestNamespace" not in browser.get(url).content.decode()
    make_version(("nyc", 'fli"ghts'), 1)
    page = browser.get(url).content.decode()
    assert "RestNamespace" in page
    assert "table_id=[&quot;nyc&quot;, &quot;fli\\&quot;ghts&quot;]" in page


def test_names_are_escaped(browser):
    evil = "<script>alert(1)</script>"
    row = make_table(evil, evil, properties={evil: evil})
    TableVersion.objects.create(table=row, version=1, manifest_path=evil)
    for url in (
        "/admin/",
        "/admin/catalog/namespace/",
        "/admin/catalog/table/",
        "/admin/catalog/transaction/",
        "/admin/catalog/auditevent/",
        f"/admin/catalog/table/{row.pk}/change/",
        f"/admin/catalog/table/{row.pk}/change/?tab=audit",
        f"/admin/catalog/namespace/{row.namespace_id}/change/",
        f"/admin/catalog/table/{row.pk}/drop/",
        f"/admin/catalog/table/{row.pk}/rename/",
    ):
        assert evil not in browser.get(url).content.decode(), url


@shared_cases(
    "url",
    [
        "/admin/catalog/table/?p=x",
        "/admin/catalog/table/?p=201",
        "/admin/catalog/table/?q=%00",
        "/admin/catalog/table/?q=%FF",
        "/admin/catalog/table/?state=nonsense",
        "/admin/catalog/table/?format__exact=nonsense",
        "/admin/catalog/table/?namespace__id__exact=x",
        "/admin/catalog/table/?in=%00",
        "/admin/catalog/table/?o=99",
        "/admin/catalog/table/99999999999999999999/change/",
        "/admin/catalog/table/x/change/",
        "/admin/catalog/table/x/drop/",
        "/admin/catalog/transaction/x/change/",
        "/admin/catalog/transaction/?q=%00",
        "/admin/catalog/transaction/00000000-0000-7000-8000-000000000000/change/",
        "/admin/catalog/auditevent/?actor=%00",
        "/admin/catalog/auditevent/?action=nonsense",
        "/admin/catalog/job/0/cancel/",
        "/admin/catalog/namespace/?parent=x",
        "/admin/catalog/namespace/?parent=99999999999999999999999",
        "/admin/catalog/namespace/?after=%00&q=%00",
        "/admin/catalog/namespace/?before=x&dropped=1",
        "/admin/catalog/namespace/add/?parent=0",
    ],
    prepare=lambda: make_table("prod", "t"),
)
def test_invalid_parameters_do_not_break_a_page(browser, url):
    # A missing object gets a page of the admin with an error message.
    assert browser.get(url, follow=True).status_code in {200, 404}


@pytest.mark.parametrize(
    "query", ["branch=%00", "before=x", "before=-1", "tab=x", "tab=branches&after=%00"]
)
def test_invalid_parameters_do_not_break_the_page_of_a_table(browser, query):
    row = make_table("prod", "t")
    assert browser.get(f"/admin/catalog/table/{row.pk}/change/?{query}").status_code == 200


@shared_cases("url", [url for url in [*LISTS, *OTHERS] if "?" not in url])
def test_anonymous_users_are_redirected_to_the_login(client, db, url):
    answer = client.get(url)
    assert answer.status_code == 302
    assert answer.headers["location"].startswith("/admin/login/")


def test_lists_have_the_titles_of_the_sidebar(browser):
    titles = {}
    for group in browser.get("/admin/").context["sidebar_navigation"]:
        for item in group["items"]:
            if "/catalog/" in item["link"]:
                titles[item["title"]] = browser.get(item["link"]).context["title"]
    assert len(titles) > 12
    assert titles == {title: title for title in titles}


@pytest.mark.parametrize("privilege", ["read", "all"])
def test_pages_about_the_whole_catalog_require_an_administrator(sign_in, privilege):
    make_table("prod", "t")
    browser = sign_in(privilege)
    page = browser.get("/admin/").content.decode()
    for noun in ("table", "namespace", "job", "transaction", "tablehealth", "function"):
        assert f"/admin/catalog/{noun}/" in page
        assert browser.get(f"/admin/catalog/{noun}/").status_code == 200
    others = ("catalog/apikey", "catalog/auditevent", "auth/user")
    for noun in (*others, "django_celery_beat/periodictask"):
        assert f"/admin/{noun}/" not in page
        assert browser.get(f"/admin/{noun}/").status_code == 403
    assert "prod.t" in browser.get("/admin/search/?s=prod.t&extended=1").content.decode()


def test_users_without_grants_see_no_objects(sign_in):
    make_table("prod", "t")
    browser = sign_in()
    for path in ("", "catalog/table/", "catalog/namespace/", "search/?s=prod.t&extended=1"):
        answer = browser.get(f"/admin/{path}")
        assert answer.status_code == 200
        assert ">prod" not in answer.content.decode().replace(" ", "").replace("\n", "")


@pytest.mark.parametrize(
    "noun", ["table", "transaction", "auditevent", "job", "apikey", "namespace"]
)
def test_rows_are_read_only(browser, noun):
    fill(0, 1)
    row = {
        "table": Table,
        "transaction": Transaction,
        "auditevent": AuditEvent,
        "job": Job,
        "apikey": ApiKey,
        "namespace": Namespace,
    }[noun].objects.first()
    assert (
        browser.post(f"/admin/catalog/{noun}/{row.pk}/delete/", {"post": "yes"}).status_code == 403
    )
    actions = {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"}
    browser.post(f"/admin/catalog/{noun}/", actions)
    assert type(row).objects.filter(pk=row.pk).exists()


@pytest.mark.parametrize("privilege", ["browse", "read"])
def test_locations_in_events_of_a_namespace_require_read(warehouse, sign_in, privilege):
    location = f"file://{warehouse}/place"
    make_namespace("a", properties={"k": "told", "location": location})
    row = Namespace.objects.named(("a",)).get()
    browser = sign_in(privilege)
    page = browser.get(f"/admin/catalog/namespace/{row.pk}/change/?tab=audit").content.decode()
    assert "namespace.create" in page
    assert "told" in page
    assert (location in page) is (privilege == "read")


def test_a_namespace_that_is_dropped_while_its_page_is_built(browser):
    row = make_namespace("brief")
    is_loaded = False

    def drop_after_it_is_loaded(execute, sql, params, many, context):
        nonlocal is_loaded
        result = execute(sql, params, many, context)
        if not is_loaded and '"catalog_namespace"."id" =' in sql:
            is_loaded = True
            Namespace.objects.filter(pk=row.pk).update(dropped_at=timezone.now())
        return result

    with connection.execute_wrapper(drop_after_it_is_loaded):
        answer = browser.get(f"/admin/catalog/namespace/{row.pk}/change/")
    assert is_loaded
    assert answer.status_code == 404
