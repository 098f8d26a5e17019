"""The command bar: what it finds, for whom, and what it says if it finds nothing."""

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from catalog.access import SYSTEM, On
from catalog.admin.site import glossary
from catalog.models import Grant, Principal, Table
from catalog.privileges import parse
from catalog.services.access import grants
from catalog.services.governance import annotations
from catalog.services.search import documents
from tests.factories import make_iceberg_table, make_table


@pytest.fixture(autouse=True)
def _catalog(db, warehouse) -> None:
    make_iceberg_table("prod", "Orders")  # with the columns id and name
    make_table("secret", "orders_hidden")
    annotations.create_label(actor=SYSTEM, key="pii")
    Principal.objects.create(name="group:analysts", kind="group")
    documents.update()


def results(client: Client, text: str) -> list[tuple[str, str, str]]:
    """Title, description and link of each result."""
    page = content(client, text)
    return re.findall(r'href="([^"]+)" data-title="([^"]*)" data-description="([^"]*)"', page)


def content(client: Client, text: str) -> str:
    answer = client.get("/admin/search/", {"s": text, "extended": "1"})
    assert answer.status_code == 200
    return answer.content.decode()


def titles(client: Client, text: str) -> list[tuple[str, str]]:
    return [(title, description) for _, title, description in results(client, text)]


def test_objects_and_columns(browser):
    table = Table.objects.get(name="Orders")
    link = f"/admin/catalog/table/{table.pk}/change/"
    assert results(browser, "prod.Orders")[0] == (link, "prod.Orders", "Iceberg table")
    matches = results(browser, "column:name")
    assert (link, "prod.Orders") in [(url, title) for url, title, _ in matches]
    assert (f"{link}?tab=schema", "name", "column of prod.Orders") in matches


def test_pages_and_words_of_the_glossary(browser):
    assert ("Webhooks", "page Activity") in titles(browser, "webh")
    assert ("Overview", "page") in titles(browser, "over")
    entry = glossary.entry_for("undrop")
    assert (glossary.url(entry), "undrop", "glossary") in results(browser, "undr")


def test_actions(browser):
    assert ("Create webhook", "action") in titles(browser, "create web")
    assert ("Request access", "action") in titles(browser, "request access")
    for link, _, description in results(browser, "create"):
        if description == "action":
            assert browser.get(link).status_code == 200, link


def test_labels_and_people(browser):
    assert ("pii", "label") in titles(browser, "pi")
    assert ("group:analysts", "Group") in titles(browser, "analys")


def test_only_what_the_user_may_open_is_found(sign_in):
    client = sign_in()
    grants.set_grant(
        actor=SYSTEM, on=On.namespace(("prod",)), principal="user:bob", privileges=parse(["read"])
    )
    assert [title for title, _ in titles(client, "orders")] == ["prod.Orders"]
    assert titles(client, "secret.orders_hidden") == []
    assert titles(client, "analysts") == []
    assert titles(client, "user:bob") == []
    assert ("Webhooks", "page Activity") not in titles(client, "webhooks")
    assert "action" not in [description for _, description in titles(client, "create webhook")]
    assert ("Request access", "action") in titles(client, "request access")
    for text in ("create", "p"):
        for link, title, _ in results(client, text):
            assert client.get(link).status_code == 200, title
    Grant.objects.all().delete()
    assert titles(client, "prod.Orders") == []  # results are not cached


def test_no_result_is_reported(browser):
    page = content(browser, "<i>nothinghasit")
    assert "Nothing that you may open matches “&lt;i&gt;nothinghasit”." in page
    assert 'id="command-results-list"' in page  # the part that the page shows
    assert content(browser, " ").strip() == ""
    assert "Nothing that you may open" in content(browser, "a\0b$")


def test_the_box_shows_the_keys(browser):
    page = browser.get("/admin/").content.decode()
    assert re.search(r"<kbd[^>]*>Ctrl-K</kbd>", page)


def test_a_search_costs_a_limited_number_of_statements(browser):
    for number in range(12):
        make_table("prod", f"orders{number}")
        Principal.objects.create(name=f"orders{number}", kind="service")
        annotations.create_label(actor=SYSTEM, key=f"orders{number}")
    documents.update()
    with CaptureQueriesContext(connection) as queries:
        matches = titles(browser, "orders")
    assert [description for _, description in matches].count("label") == 5
    assert matches[-1][0].startswith("orders")
    assert len(queries) <= 14


def test_misspelled_filters_are_corrected(browser):
    title, description = titles(browser, "colum:id")[0]
    assert (title, description) == ("column:id", "did you mean this search?")
    page = browser.get(
        "/admin/catalog/labeldefinition/search/", {"q": "Orders colum:id owners:ada"}
    )
    assert "column:id owner:ada</code>" in page.content.decode()
    for text in ("column:id", "http://server", 'a "colum: id"'):
        assert "did you mean this search?" not in [note for _, note in titles(browser, text)]
