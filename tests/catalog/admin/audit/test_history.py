"""The page that shows the past."""

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
from tests.factories import make_root, make_table, make_version, unchanged

URL = "/admin/catalog/namespace/history/"


@pytest.fixture(autouse=True)
def _catalog(db):
    make_root()


def now() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0].isoformat().replace("+00:00", "Z")


def page(browser: Client, status: int = 200, **asked: str) -> str:
    with unchanged():
        response = browser.get(f"{URL}?{urlencode(asked)}")
    assert response.status_code == status, response.content
    return response.content.decode()


def test_yesterday_there_was_nothing(browser: Client):
    make_table("a", "t")
    content = page(browser)
    assert "No namespaces at this time." in content
    assert "No tables or views at this time." in content
    assert 'name="at" value="20' in content


def test_what_there_was_with_links(browser: Client):
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


def test_what_changed(browser: Client):
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


def test_a_namespace_only(browser: Client):
    make_table("a", "t")
    make_table("b", "c", "u")
    then = now()
    content = page(browser, at=then, namespace="b.c")
    assert ">b.c.u</a>" in content
    assert ">a.t</a>" not in content
    assert ">b.c.u</a>" in page(browser, at=then, namespace="b$c")


def test_pages_lead_through_everything(browser: Client, monkeypatch):
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
            # The last link before its mark.
            url = URL + page_content.partition('" rel="next"')[0].rpartition('href="')[2]
        assert 'rel="next"' not in page_content
        for name in ("t", "u", "v", "w"):
            assert content.count(f">a.{name}</a>") == 1
        assert "First page" in page_content


@pytest.mark.parametrize(
    ("asked", "status", "text"),
    [
        ({"at": "yesterday"}, 400, "neither a time"),
        ({"at": "2999-01-01"}, 400, "has not come yet"),
        ({"at": str(uuid.UUID(int=1))}, 404, "does not exist"),
        ({"namespace": "no.such"}, 404, "does not exist"),
        ({"at": "2026-01-02", "to": "2026-01-01"}, 400, "is after the second"),
        ({"page": "x"}, 400, "Page token"),
    ],
)
def test_what_cannot_be_asked(browser: Client, asked, status, text):
    content = unescape(page(browser, status, **asked))
    assert text in content.partition('role="alert"')[2].partition("</p>")[0]


def test_who_may_see_it(sign_in):
    client = sign_in("browse")
    assert client.get(URL).status_code == 200
    assert URL in client.get("/admin/").content.decode()


def test_who_may_not(sign_in):
    client = sign_in()
    make_table("a", "t")
    assert "a.t" not in client.get(URL).content.decode()
    assert Client().get(URL).status_code == 302


def test_it_costs_the_same_however_much_there_is(browser: Client):
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
