"""The pages of labels and of the search."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from catalog.access import SYSTEM
from catalog.admin.governance import annotations as governance_annotations
from catalog.models import AuditEvent, LabelDefinition, Sensitivity, Table
from catalog.services.governance import annotations
from catalog.services.governance.annotation_operations import Link
from catalog.services.governance.annotations import Changes, ColumnChanges
from catalog.services.search import documents as search_documents
from tests.factories import make_iceberg_table, make_root, make_table, unchanged

LABELS = "/admin/catalog/labeldefinition/"
SEARCH = f"{LABELS}search/"
FORM = {
    "key": "pii",
    "description": "Of **people**",
    "colour": "red",
    "values": "yes\n no \n\n",
    "applies_to": ["table", "column"],
}


@pytest.fixture(autouse=True)
def _catalog(db, warehouse):
    make_root()
    make_table("prod", "orders")
    make_iceberg_table("prod", "<b>events")


def text(response) -> str:
    return response.content.decode()


def test_a_label_is_defined_changed_and_deleted(browser):
    assert "Create a label" in text(browser.get(f"{LABELS}add/"))
    answer = browser.post(f"{LABELS}add/", FORM, follow=True)
    assert "was created" in text(answer)
    assert "<strong>people</strong>" in text(answer)
    row = LabelDefinition.objects.get()
    assert (row.values, row.applies_to, row.is_multiple) == (
        ["yes", "no"],
        ["table", "column"],
        False,
    )
    assert AuditEvent.objects.get(action="label.create").actor == "user:ada"
    assert "pii" in text(browser.get(LABELS))
    assert 'value="red" selected' in text(browser.get(action("edit", row)))
    annotations.annotate_table(
        actor=SYSTEM, table=("prod", "orders"), changes=Changes(labels={"pii": ["yes"]})
    )
    assert "prod.orders" in text(browser.get(f"{LABELS}{row.pk}/change/"))


def action(name: str, row: LabelDefinition) -> str:
    return reverse(f"admin:catalog_labeldefinition_{name}", args=[row.pk])


def test_a_label_in_use_is_not_deleted(browser):
    row = annotations.create_label(actor=SYSTEM, key="pii", values=["yes", "no"])
    annotations.annotate_table(
        actor=SYSTEM, table=("prod", "orders"), changes=Changes(labels={"pii": ["yes"]})
    )
    with unchanged():
        answer = browser.post(action("edit", row), {**FORM, "values": "no"})
        assert "value &#x27;yes&#x27; is assigned" in text(answer)
        answer = browser.post(action("remove", row), follow=True)
        assert "it has 1 assignments" in text(answer)
    annotations.annotate_table(
        actor=SYSTEM, table=("prod", "orders"), changes=Changes(labels={"pii": []})
    )
    browser.post(action("edit", row), {**FORM, "values": "no"})
    assert LabelDefinition.objects.get().values == ["no"]
    browser.post(action("remove", row))
    assert not LabelDefinition.objects.exists()


def test_invalid_labels_are_refused_in_the_form(browser):
    with unchanged():
        assert "a-z" in text(browser.post(f"{LABELS}add/", {**FORM, "key": "A B"}))
        assert "required" in text(browser.post(f"{LABELS}add/", {**FORM, "applies_to": []}))


def test_only_administrators_define_labels(sign_in):
    looker = sign_in("read")
    annotations.create_label(actor=SYSTEM, key="pii")
    with unchanged():
        assert looker.post(f"{LABELS}add/", FORM).status_code == 403
        assert looker.post(action("remove", LabelDefinition.objects.get())).status_code in {
            302,
            403,
        }


def test_the_search_page_explains_the_query_language(browser):
    page = text(browser.get(SEARCH))
    for example in ("label:pii=yes", "column:email", "in:prod.sales", "sensitivity:restricted"):
        assert example in page
    assert "How to search" in page


def test_results_are_marked_and_escaped(browser):
    search_documents.update()
    page = text(browser.get(SEARCH, {"q": "events"}))
    assert "&lt;b&gt;<mark>events</mark>" in page
    assert "<b>events" not in page
    table = Table.objects.get(name="<b>events")
    assert f"/admin/catalog/table/{table.pk}/change/" in page
    page = text(browser.get(SEARCH, {"q": "ordres"}))
    assert "contain similar words" in page
    assert "<mark>orders</mark>" in page


def test_empty_and_invalid_searches_are_reported(browser):
    page = text(browser.get(SEARCH, {"q": "<script>nothing"}))
    assert "No visible object matches “&lt;script&gt;nothing”" in page
    answer = browser.get(SEARCH, {"q": "kind:thing"})
    assert answer.status_code == 400
    assert "table, view or namespace" in text(answer)
    assert browser.get(SEARCH, {"q": "a", "page": "x"}).status_code == 400


def test_the_search_requires_a_log_in(client):
    assert client.get(SEARCH).status_code == 302


def test_the_command_bar_finds_tables(browser):
    search_documents.update()
    page = text(browser.get("/admin/search/", {"s": "orde", "extended": "1"}))
    assert "prod.orders" in page
    table = Table.objects.get(name="orders")
    assert f"/admin/catalog/table/{table.pk}/change/" in page
    assert browser.get("/admin/search/", {"s": "label:", "extended": "1"}).status_code == 200


def test_the_page_of_a_table_shows_its_annotations():
    annotations.create_label(actor=SYSTEM, key="pii")
    annotations.annotate_table(
        actor=SYSTEM,
        table=("prod", "<b>events"),
        changes=Changes(
            description="# Events\n<script>",
            links=[Link("<i>Wiki", "https://example.org/?a=1&b=2")],
            labels={"pii": ["<u>"]},
            columns={
                "name": ColumnChanges(
                    description="*Who*", sensitivity=Sensitivity.RESTRICTED, sets_sensitivity=True
                )
            },
        ),
    )
    search_documents.update()
    row = Table.objects.select_related("namespace").get(name="<b>events")
    with CaptureQueriesContext(connection) as queries:
        shown_annotations = governance_annotations.for_page(row)
    assert len(queries) == 3
    assert shown_annotations.description == "<h1>Events</h1>\n<p>&lt;script&gt;</p>\n"
    (link,) = shown_annotations.links
    assert link == (
        '<a class="m-link" href="https://example.org/?a=1&amp;b=2" rel="noopener noreferrer"'
        ' target="_blank">&lt;i&gt;Wiki</a>'
    )
    assert "pii=&lt;u&gt;" in shown_annotations.labels
    assert "restricted" in shown_annotations.sensitivity
    path, type_, description, _, sensitivity = shown_annotations.columns[1]
    assert "name" in path
    assert "string" in type_
    assert "<em>Who</em>" in description
    assert "restricted" in sensitivity
    assert [name for name, _ in shown_annotations.lines] == [
        "Owner",
        "Labels",
        "Sensitivity",
        "Links",
    ]
