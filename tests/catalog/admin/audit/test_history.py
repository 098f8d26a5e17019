"""The history page."""

import uuid
from html import unescape
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from catalog.access import SYSTEM
from catalog.admin.audit import history
from catalog.services.engine.commit import commit
from catalog.services.tables import namespace_operations, table_operations
from tests.cases import shared_cases
from tests.factories import make_root, make_table, make_version, unchanged

URL = "/admin/catalog/namespace/history/"


@pytest.fixture(autouse=True)
def _catalog(db):
    make_root()


def now() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0].isoformat().replace("+00:00", "Z")


def page(browser: Client, status: int = 200, **parameters: str) -> str:
    with unchanged():
        response = browser.get(f"{URL}?{urlencode(parameters)}")
    assert response.status_code == status, response.content
    return response.content.decode()


def test_an_empty_catalog_is_shown_for_a_time_before_its_creation(browser: Client):
    make_table("a", "t")
    content = page(browser)
    assert "No namespaces at this time." in content
    assert "No tables or views at this time." in content
    assert 'name="at" value="20' in content


def test_a_former_state_is_shown_with_links(browser: Client):
    table = make_table("a", "t")
    row = make_version(("a", "t"), 7)
    make_version(("a", "t"), 3, branch="dev")
    then = now()
    commit([namespace_operations.DropNamespace(namespace=("a",), cascade=True)], actor=SYSTEM)
    content = page(browser, at=then)
    assert f'href="/admin/catalog/table/{table.pk}/change/">a.t</a>' in content
    assert f'href="/admin/catalog/namespace/{table.namespace_id}/change/">a</a>' in content
    assert f'href="/admin/catalog/transaction/{row.transaction_id}/change/"' in content
    assert "elsewhere/7.manifest" in content
    assert "Show changes since then" in content
    browser.get(f"/admin/catalog/table/{table.pk}/change/")
    assert "No tables or views at this time." in page(browser, at=now())


def test_changes_between_two_times_are_shown(browser: Client):
    make_table("a", "t")
    make_version(("a", "t"), 1)
    first = now()
    make_version(("a", "t"), 2)
    commit([table_operations.RenameTable(table=("a", "t"), new=("a", "<u>"))], actor=SYSTEM)
    content = page(browser, at=first, to=now())
    assert "a.&lt;u&gt;" in content
    assert "<u>" not in content
    assert "formerly a.t" in content
    assert "1 → 2" in content
    for badge in ("renamed", "advanced"):
        assert f">{badge}</span>" in content
    assert "tables renamed" in content
    moment = now()
    assert "No changes." in page(browser, at=moment, to=moment)


def test_the_page_may_be_limited_to_a_namespace(browser: Client):
    make_table("a", "t")
    make_table("b", "c", "u")
    then = now()
    content = page(browser, at=then, namespace="b.c")
    assert ">b.c.u</a>" in content
    assert ">a.t</a>" not in content
    assert ">b.c.u</a>" in page(browser, at=then, namespace="b$c")


def test_pages_contain_all_rows(browser: Client, monkeypatch):
    monkeypatch.setattr(history, "PANEL_SIZE", 2)
    for name in ("t", "u", "v", "w"):
        make_table("a", name)
    then = now()
    for parameters in ({"at": then}, {"at": "2026-01-01", "to": then}):
        content, url = "", f"{URL}?{urlencode(parameters)}"
        for _ in range(10):
            page_content = unescape(browser.get(url).content.decode())
            content += page_content
            if 'rel="next"' not in page_content:
                break
            # The last link before its page token.
            url = URL + page_content.partition('" rel="next"')[0].rpartition('href="')[2]
        assert 'rel="next"' not in page_content
        for name in ("t", "u", "v", "w"):
            assert content.count(f">a.{name}</a>") == 1
        assert "First page" in page_content


@shared_cases(
    ("parameters", "status", "text"),
    [
        ({"at": "yesterday"}, 400, "neither a time"),
        ({"at": "2999-01-01"}, 400, "has not come yet"),
        ({"at": str(uuid.UUID(int=1))}, 404, "does not exist"),
        ({"namespace": "no.such"}, 404, "does not exist"),
        ({"at": "2026-01-02", "to": "2026-01-01"}, 400, "is after the second"),
        ({"page": "x"}, 400, "Page token"),
    ],
)
def test_invalid_queries_are_refused(browser: Client, parameters, status, text):
    content = unescape(page(browser, status, **parameters))
    assert text in content.partition('role="alert"')[2].partition("</p>")[0]


def test_users_with_privileges_see_the_page(sign_in):
    client = sign_in("browse")
    assert client.get(URL).status_code == 200
    assert URL in client.get("/admin/").content.decode()


def test_other_users_do_not_see_the_page(sign_in):
    client = sign_in()
    make_table("a", "t")
    assert "a.t" not in client.get(URL).content.decode()
    assert Client().get(URL).status_code == 302


def test_the_page_takes_a_fixed_number_of_queries(browser: Client):
    counted = []
    for start in (0, 5):
        for i in range(start, start + 5):
            make_table(f"a{i}", "t")
            make_version((f"a{i}", "t"), 1)
        costs = []
        for parameters in ({"at": now()}, {"at": "2026-01-01", "to": now()}):
            with CaptureQueriesContext(connection) as queries:
                browser.get(f"{URL}?{urlencode(parameters)}")
            costs.append(len(queries))
        counted.append(costs)
    assert counted[0] == counted[1]
