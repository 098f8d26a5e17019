"""Forms for annotations of namespaces and tables, and actions on many tables."""

import re
from urllib.parse import urlencode

import pytest
from django.test import Client

from catalog.access import SYSTEM, On
from catalog.admin.pages import Panel
from catalog.models import AuditEvent, Facts, LabelAssignment, MaterializedView, Table, TableState
from catalog.privileges import Privilege
from catalog.services.access import grants
from catalog.services.engine.commit import commit
from catalog.services.governance import annotations
from catalog.services.governance.annotation_operations import Link
from catalog.services.governance.annotations import Changes, ColumnChanges
from catalog.services.recovery import undrop
from catalog.services.search import documents
from catalog.services.tables.table_operations import DropTable
from tests.catalog.admin.iceberg.test_pages import words
from tests.factories import make_iceberg_table, make_root, make_table, make_version, unchanged

LIST = "/admin/catalog/table/"


@pytest.fixture(autouse=True)
def _catalog(db, warehouse):
    make_root()
    annotations.create_label(actor=SYSTEM, key="pii", values=["yes", "no"])


def text(response) -> str:
    return response.content.decode().replace("&#x27;", "'")


def press(browser, row, name: str, **data: str) -> str:
    kind = "table" if isinstance(row, Table) else "namespace"
    return text(browser.post(f"/admin/catalog/{kind}/{row.pk}/{name}/", data, follow=True))


def page(browser, row) -> str:
    kind = "table" if isinstance(row, Table) else "namespace"
    return text(browser.get(f"/admin/catalog/{kind}/{row.pk}/change/"))


ANNOTATIONS = {
    "owner": "user:ada",
    "description": "Of **people** <script>",
    "sensitivity": "restricted",
    "links": "https://example.com/wiki The wiki\nhttps://example.com/plain",
}


@pytest.mark.parametrize("of", ["table", "namespace"])
def test_annotations_are_saved_and_shown(browser, of):
    table = make_table("prod", "t")
    row = table if of == "table" else table.namespace
    assert "Saved." in press(browser, row, "describe", **ANNOTATIONS)
    content = page(browser, row)
    assert "<strong>people</strong> &lt;script&gt;" in content
    assert ">restricted</span>" in content
    assert 'href="https://example.com/wiki"' in content
    assert ">The wiki</a>" in content
    row.refresh_from_db()
    assert row.owner == "user:ada"
    form = text(browser.get(f"/admin/catalog/{of}/{row.pk}/describe/"))
    assert "https://example.com/wiki The wiki" in form

    # An unchanged form writes nothing.
    before = AuditEvent.objects.count()
    press(browser, row, "describe", **ANNOTATIONS)
    assert AuditEvent.objects.count() == before

    press(
        browser,
        row,
        "describe",
        **ANNOTATIONS | {"sensitivity": "", "description": "", "links": ""},
    )
    assert not Facts.objects.exists()


def test_an_invalid_link_is_refused(browser):
    row = make_table("prod", "t")
    with unchanged():
        content = press(
            browser, row, "describe", **ANNOTATIONS | {"links": "javascript:alert(1) x"}
        )
    assert "Saved." not in content


@pytest.mark.parametrize("of", ["table", "namespace"])
def test_a_label_is_assigned_and_removed(browser, of):
    table = make_table("prod", "t")
    row = table if of == "table" else table.namespace
    assert "was set on" in press(browser, row, "label", label="pii", values="yes")
    assert ">pii=yes</span>" in page(browser, row)
    assert "was removed from" in press(browser, row, "label", label="pii", values="")
    assert not LabelAssignment.objects.exists()


def test_an_invalid_value_of_a_label_is_refused(browser):
    row = make_table("prod", "t")
    with unchanged():
        assert "allows yes, no" in press(browser, row, "label", label="pii", values="maybe")
        press(browser, row, "label", label="unknown", values="yes")


def test_annotations_require_manage(sign_in):
    row = make_table("prod", "t")
    client = sign_in("write")
    with unchanged():
        for target in (row, row.namespace):
            kind = "table" if target is row else "namespace"
            for name in ("describe", "label"):
                answer = client.post(f"/admin/catalog/{kind}/{target.pk}/{name}/", ANNOTATIONS)
                assert answer.status_code == 403


# --- many tables -------------------------------------------------------------------------------


def act(browser, name: str, rows, **data: str):
    form = {"action": name, "_selected_action": [row.pk for row in rows], **data}
    return browser.post(LIST, form, follow=True)


def test_actions_on_many_tables_require_confirmation(browser):
    rows = [make_table("prod", "a"), make_iceberg_table("prod", "b")]
    for name in ("label_many", "protect_many", "drop_many"):
        with unchanged():
            content = text(act(browser, name, rows))
        assert "prod.a" in content
        assert "2 tables" in content


def test_many_tables_are_labelled_protected_and_dropped(browser):
    rows = [make_table("prod", "a"), make_iceberg_table("prod", "b"), make_table("prod", "c")]
    content = text(act(browser, "label_many", rows, confirmed="1", label="pii", values="yes"))
    assert "3 tables were labeled" in content
    assert LabelAssignment.objects.count() == 3
    content = text(act(browser, "protect_many", rows[:2], confirmed="1"))
    assert "2 tables were protected" in content
    content = text(act(browser, "drop_many", rows, confirmed="1"))
    assert "1 table was dropped" in content
    assert "prod.a" in content
    states = dict(Table.objects.values_list("name", "state"))
    assert states["c"] == TableState.DROPPED
    assert TableState.DROPPED not in {states["a"], states["b"]}


def test_access_is_checked_for_each_table(sign_in, browser):
    mine, other = make_table("mine", "a"), make_table("other", "b")
    client = sign_in("browse", "read")
    grants.set_grant(
        actor=SYSTEM,
        on=On.namespace(("mine",)),
        principal="user:bob",
        privileges=Privilege.MANAGE,
    )
    content = text(act(client, "drop_many", [mine, other], confirmed="1"))
    assert "1 table was dropped" in content
    assert "other.b" in content
    mine.refresh_from_db()
    other.refresh_from_db()
    assert (mine.state == TableState.DROPPED, other.state == TableState.DROPPED) == (True, False)


def test_actions_on_too_many_tables_are_refused(browser, monkeypatch):
    monkeypatch.setattr("catalog.admin.tables.bulk.MAX_TABLES", 2)
    rows = [make_table("prod", f"t{number}") for number in range(3)]
    with unchanged():
        assert "at most 2" in text(act(browser, "drop_many", rows, confirmed="1"))


# --- the first page ----------------------------------------------------------------------------


def test_the_first_page_shows_changes_and_open_requests(browser):
    row = make_table("prod", "t")
    undrop.set_table_protection(actor=SYSTEM, table=row.identifier, is_protected=True)
    context = browser.get("/admin/").context
    assert next(line[0] for line in context["changes"].rows) == "protection.set"
    assert "just now" in context["changes"].rows[0][3]
    assert context["needs"] == []
    assert (context["additions"].made, context["health"].tables) == ("1", 0)


def test_repeated_actions_are_combined_in_one_line(browser):
    make_table("prod", "t")
    for number in range(1, 4):
        make_version(("prod", "t"), number)
    first, second, *_ = browser.get("/admin/").context["changes"].rows
    assert re.sub("<[^>]*>", "", str(first[0])) == "version.create × 3"
    assert "prod.t" in first[1]
    assert second[0] == "table.declare"


def test_the_first_page_is_empty_without_privileges(sign_in):
    make_table("prod", "t")
    context = sign_in().get("/admin/").context
    assert context["changes"].rows == []
    assert context["needs"] == []
    assert context["growth"].amounts == ()
    assert "additions" not in context


def materialized_views(client: Client, row: Table) -> Panel:
    """The list of materialized views beside the lineage of a table."""
    context = client.get(f"{LIST}{row.pk}/change/?tab=lineage").context
    (panel,) = (panel for panel in context["panels"] if panel.title == "Materialized views")
    return panel


def test_lineage_shows_only_views_and_sources_that_may_be_browsed(browser, sign_in):
    source, view, hidden = (make_table("prod", "s"), make_table("prod", "v"), make_table("x", "w"))
    for row in (view, hidden):
        MaterializedView.objects.create(table=row, source=source, definition={})

    def lineage(client, row):
        rows = materialized_views(client, row).rows
        return [(line[0], re.sub("<[^>]*>", "", line[1])) for line in rows]

    assert lineage(browser, source) == [("is read by", "prod.v"), ("is read by", "x.w")]
    assert lineage(browser, view) == [("is a view of", "prod.s")]
    client = sign_in()
    grants.set_grant(
        actor=SYSTEM,
        on=On.namespace(("prod",)),
        principal="user:bob",
        privileges=Privilege.BROWSE,
    )
    assert lineage(client, source) == [("is read by", "prod.v")]


def test_a_view_and_its_source_link_to_each_other_and_to_the_query(browser):
    for name, count in (("s", 3), ("v", 1)):
        make_table("prod", name)
        for number in range(1, count + 1):
            make_version(("prod", name), number)
    source, view = (Table.objects.named(("prod", name)).get() for name in ("s", "v"))
    Table.objects.filter(pk=view.pk).update(is_materialized=True)
    query = MaterializedView.objects.create(
        table=view, source=source, definition={}, source_version=1
    )
    page = f"/admin/catalog/materializedview/{query.pk}/change/"
    for row in (source, view):
        (line,) = materialized_views(browser, row).rows
        assert line[2] == "1"
        assert "2 versions" in line[3]
        assert f'href="{page}"' in line[4]
    contents = {
        row: browser.get(f"{LIST}{row.pk}/change/").content.decode() for row in (source, view)
    }
    assert f'href="{page}"' in contents[view]
    assert page not in contents[source]
    commit([DropTable(table=source.identifier)], actor=SYSTEM)
    (line,) = materialized_views(browser, view).rows
    assert "dropped" in line[1]


def columns_of(browser, address: str) -> dict[str, list[str]]:
    """Description, labels and sensitivity of the columns of the schema, as text."""
    panels = browser.get(address).context["panels"]
    (panel,) = [panel for panel in panels if panel.keys]
    first = list(panel.columns).index("Description")
    lines = [[words(cell) for cell in line[first : first + 3]] for line in panel.rows]
    return dict(zip(panel.keys, lines, strict=True))


def form_url(row, **query: str) -> str:
    kind = "table" if isinstance(row, Table) else "namespace"
    action = "describe_column" if "column" in query else "describe"
    return f"/admin/catalog/{kind}/{row.pk}/{action}/?{urlencode(query)}"


def test_columns_are_edited_on_the_schema_tab(browser, sign_in):
    make_iceberg_table("prod", "t")
    row = Table.objects.get(name="t")
    documents.update()
    address = f"/admin/catalog/table/{row.pk}/change/?tab=schema"
    content = text(browser.get(address))
    values = {"description": "The **key**", "labels": "pii=no", "sensitivity": "internal"}
    for field, value in values.items():
        form = form_url(row, column="id", only=field)
        assert f'href="{form.replace("&", "&amp;")}"' in content
        shown = browser.get(form)
        assert f"Edit {field} of column 'id' of 'prod.t'" in text(shown)
        assert list(shown.context["form"].fields) == [field]
        assert browser.post(form, {field: value}).headers["location"] == address
        assert browser.get(form).context["form"].initial[field] == value
    assert columns_of(browser, address) == {
        "id": ["The key", "pii=no", "internal"],
        "name": ["–", "–", "–"],
    }
    events = (
        AuditEvent.objects.filter(target="prod.t").order_by("pk").values_list("action", "actor")
    )
    assert list(events)[-3:] == [
        (action, "user:ada") for action in ("description.set", "label.assign", "classification.set")
    ]
    before = AuditEvent.objects.count()
    browser.post(form_url(row, column="id"), values)
    assert AuditEvent.objects.count() == before  # nothing has changed
    browser.post(form_url(row, column="id"), values | {"labels": ""})
    assert columns_of(browser, address)["id"] == ["The key", "–", "internal"]

    reader = sign_in("read")
    content = text(reader.get(address))
    assert "The <strong>key</strong>" in content
    assert 'class="m-pen"' not in content
    with unchanged():
        assert reader.get(form).status_code == 403
        for field, value in values.items():
            answer = reader.post(form_url(row, column="id", only=field), {field: value + "x"})
            assert answer.status_code == 403


IN_PLACE = {"HTTP_HX_REQUEST": "true"}


@pytest.mark.parametrize("of", ["table", "namespace"])
def test_annotations_are_edited_in_place(browser, sign_in, of):
    table = make_table("prod", "t")
    row = table if of == "table" else table.namespace
    address = f"/admin/catalog/{of}/{row.pk}/change/"
    content = text(browser.get(address))
    values = ANNOTATIONS | {"labels": "pii=yes"}
    for field, value in values.items():
        form = form_url(row, only=field)
        assert f'href="{form}" hx-get="{form}"' in content
        opened = text(browser.get(form, **IN_PLACE))
        assert opened.startswith('<form class="m-in-place" method="post"')
        assert "<html" not in opened
        saved = browser.post(form, {field: value}, **IN_PLACE)
        assert (saved.status_code, saved.headers["HX-Refresh"]) == (204, "true")
        assert browser.get(form).context["form"].initial[field].strip().startswith(value[:20])
    content = text(browser.get(address))
    assert "pii=yes</span>" in content
    assert ">restricted</span>" in content
    row.refresh_from_db()
    assert row.owner == "user:ada"
    # The annotations that a form does not have stay.
    browser.post(form_url(row, only="labels"), {"labels": ""}, **IN_PLACE)
    assert not LabelAssignment.objects.exists()
    assert Facts.objects.get().description == ANNOTATIONS["description"]

    reader = sign_in("read")
    assert 'class="m-pen"' not in text(reader.get(address))
    with unchanged():
        for field, value in values.items():
            form = form_url(row, only=field)
            assert reader.get(form, **IN_PLACE).status_code == 403
            assert reader.post(form, {field: value}, **IN_PLACE).status_code == 403


def test_the_title_of_a_link_stays_one_line(browser):
    """Otherwise an edit would make another link of its second line."""
    row = make_table("prod", "t")
    link = Link("The wiki\u2028https://other.example/\n a\tpage", "https://example.com/")
    annotations.annotate_table(actor=SYSTEM, table=row.identifier, changes=Changes(links=[link]))
    form = form_url(row, only="links")
    shown = browser.get(form).context["form"].initial["links"]
    with unchanged():
        assert browser.post(form, {"links": shown}).status_code == 302
    browser.post(form, {"links": f"{shown}\nhttps://example.com/b B"})
    assert [link["url"] for link in Facts.objects.get().links] == [
        "https://example.com/",
        "https://example.com/b",
    ]


def test_parameters_of_forms_are_hostile(browser):
    """They neither reach the page as HTML nor clear what the request does not name."""
    make_iceberg_table("prod", "t")
    row = Table.objects.get(name="t")
    documents.update()
    column = ColumnChanges(description="The key", labels={"pii": ["yes"]})
    changes = Changes(owner="user:ada", description="Of people", columns={"id": column})
    annotations.annotate_table(actor=SYSTEM, table=row.identifier, changes=changes)
    hostile = '"><script>alert(1)</script>'
    with unchanged():
        for query in (
            {"only": hostile},
            {"column": hostile},
            {"column": hostile, "only": hostile},
            {"column": "id\u202e" + "x" * 5000, "only": "description"},
            {"column": "id", "only": "owner"},
        ):
            for method in ("get", "post"):
                answer = getattr(browser, method)(form_url(row, **query), **IN_PLACE)
                assert answer.status_code in (200, 204, 302), (method, query)
                assert "<script>alert" not in answer.content.decode()
        foreign = {"owner": "x", "links": "x"}
        browser.post(form_url(row, column="id", only="description"), foreign | {"labels": ""})
        browser.post(form_url(row, column="id", only="owner"), foreign)


def test_edits_in_place_require_a_token(browser):
    row = make_table("prod", "t")
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = browser.cookies
    with unchanged():
        form = form_url(row, only="owner")
        assert strict.post(form, {"owner": "user:ada"}, **IN_PLACE).status_code == 403
        assert strict.get(f"{form}&owner=user:ada", **IN_PLACE).status_code == 200


def test_a_form_without_fields_is_opened_in_place(browser):
    row = make_table("prod", "t")
    form = f"/admin/catalog/table/{row.pk}/drop/"
    assert text(browser.get(form, **IN_PLACE)).startswith('<form class="m-in-place"')
    assert browser.post(form, **IN_PLACE).headers["HX-Refresh"] == "true"
    row.refresh_from_db()
    assert row.state == TableState.DROPPED


def test_a_refused_annotation_is_reported_in_place(browser):
    row = make_table("prod", "t")
    refused = {
        "labels": ("pii=perhaps", "perhaps"),
        "links": ("javascript:alert(1)", "javascript:alert(1)"),
        "sensitivity": ("secret", "Select a valid choice"),
    }
    with unchanged():
        for field, (value, message) in refused.items():
            answer = text(browser.post(form_url(row, only=field), {field: value}, **IN_PLACE))
            assert answer.startswith('<form class="m-in-place"')
            assert message in answer
        unknown = text(browser.post(form_url(row, only="labels"), {"labels": "pi=no"}, **IN_PLACE))
        assert "Label 'pi' does not exist" in unknown
    # The message was shown, and does not appear again on the next page.
    assert "does not exist" not in page(browser, row)


def test_annotations_of_columns_outside_the_schema_stay_visible(browser):
    row = make_iceberg_table("prod", "t")
    documents.update()
    annotations.annotate_table(
        actor=SYSTEM,
        table=row.identifier,
        changes=Changes(columns={"id": ColumnChanges(description="The key")}),
    )
    Facts.objects.filter(table_id=row.pk, column="id").update(column="former")
    panels = browser.get(f"/admin/catalog/table/{row.pk}/change/?tab=schema").context["panels"]
    (panel,) = [panel for panel in panels if panel.title == "Annotations of other columns"]
    assert [words(cell) for cell in panel.rows[0]][:3] == ["former", "not in the schema", "The key"]


def test_an_unknown_column_is_a_message(browser):
    row = make_iceberg_table("prod", "t")
    address = f"/admin/catalog/table/{row.pk}/describe_column/"
    with unchanged():
        for column in ("nothing", "<b>"):
            url = f"{address}?{urlencode({'column': column})}"
            assert "does not exist" in text(browser.post(url, {"description": "x"}))
        for query in ("", "?column=", "?column=%00"):
            answer = browser.post(address + query, {"description": "x"}, follow=True)
            assert "Select a column" in text(answer)


def test_a_column_of_a_dropped_table_cannot_be_edited(browser):
    row = make_iceberg_table("prod", "t")
    Table.objects.filter(pk=row.pk).update(state=TableState.DROPPED)
    address = f"/admin/catalog/table/{row.pk}"
    assert "describe_column" not in text(browser.get(f"{address}/change/?tab=schema"))
    with unchanged():
        browser.post(f"{address}/describe_column/?column=id", {"description": "x"})
