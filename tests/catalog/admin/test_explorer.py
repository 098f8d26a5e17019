"""The tree in the sidebar shows what the user may browse, level by level."""

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalog.access import SYSTEM, On
from catalog.admin.tables import explorer
from catalog.models import Namespace, Table
from catalog.privileges import parse
from catalog.services.access import grants
from tests.factories import make_namespace, make_table

URL = "/admin/explorer/"


def names(answer) -> list[str]:
    return re.findall(r">([^<>]+)</a>", answer.content.decode())


def pk(*path: str) -> int:
    return Namespace.objects.named(path).get().pk


def test_a_level_has_its_namespaces_and_then_its_tables(browser):
    make_namespace("prod", "inner")
    make_table("prod", "flights")
    make_table("prod", "airports")
    Table.objects.filter(name="flights").update(is_protected=True)
    assert names(browser.get(URL)) == ["prod"]
    answer = browser.get(f"{URL}?parent={pk('prod')}")
    assert names(answer) == ["inner", "airports", "flights"]
    assert answer.content.decode().count('title="protected"') == 1
    assert browser.get(f"{URL}?parent=999999").status_code == 404


def test_levels_are_paged(browser, monkeypatch):
    monkeypatch.setattr(explorer, "PAGE_SIZE", 2)
    for name in ("a", "b", "c"):
        make_namespace("prod", name)
        make_table("prod", f"t{name}")
    pages, url = [], f"{URL}?parent={pk('prod')}"
    while url:
        answer = browser.get(url)
        pages.append([name for name in names(answer) if name != "More…"])
        following = re.search('data-more="([^"]+)"', answer.content.decode())
        url = following and following[1].replace("&amp;", "&")
    assert pages == [["a", "b"], ["c", "ta", "tb"], ["tc"]]


def test_only_what_the_user_may_browse_is_shown(sign_in):
    make_table("prod", "secret", "t")
    make_table("prod", "open", "t")
    make_table("other", "t")
    client = sign_in()
    assert names(client.get(URL)) == []
    grants.set_grant(
        actor=SYSTEM,
        on=On.namespace(("prod", "open")),
        principal="user:bob",
        privileges=parse(["read"]),
    )
    assert names(client.get(URL)) == ["prod"]
    assert names(client.get(f"{URL}?parent={pk('prod')}")) == ["open"]
    assert names(client.get(f"{URL}?parent={pk('prod', 'open')}")) == ["t"]
    assert client.get(f"{URL}?parent={pk('other')}").status_code == 404


@pytest.mark.parametrize("tables", [1, 5])
def test_a_level_takes_a_fixed_number_of_statements(browser, tables):
    for number in range(tables):
        make_table("prod", f"t{number}")
        make_namespace("prod", f"n{number}")
    with CaptureQueriesContext(
        connection,
    ) as queries:
        browser.get(f"{URL}?parent={pk('prod')}")
    assert len(queries) == 6  # session, user, and the look-up of the namespace in this test
