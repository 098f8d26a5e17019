"""Annotations of namespaces, tables and columns: privileges, inheritance and audit."""

import threading

import pyarrow as pa
import pytest
from django.db import close_old_connections, connection
from django.test.utils import CaptureQueriesContext

from catalog import access
from catalog.access import SYSTEM, Principal
from catalog.errors import (
    ColumnNotFound,
    InvalidInput,
    LabelAlreadyExists,
    LabelInUse,
    LabelNotFound,
    NamespaceNotFound,
    PermissionDenied,
    TableNotFound,
)
from catalog.models import (
    AuditEvent,
    Facts,
    Grant,
    LabelAssignment,
    LabelColour,
    LabelDefinition,
    LabelTarget,
    Namespace,
    PrincipalKind,
    SearchDocument,
    Sensitivity,
    Table,
)
from catalog.models import Principal as PrincipalRow
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.governance import annotation_operations, annotations, descriptions
from catalog.services.governance.annotation_operations import Link
from catalog.services.governance.annotations import Changes, ColumnChanges
from catalog.services.tables import table_operations
from tests.cases import shared_cases
from tests.factories import (
    make_iceberg_table,
    make_lance_table,
    make_namespace,
    make_root,
    make_table,
    unchanged,
)

ORDERS = ("prod", "orders")


@pytest.fixture(autouse=True)
def _catalog(db, tmp_path, settings):
    settings.MONODON_WAREHOUSE = str(tmp_path)
    make_root()
    make_namespace("prod")
    make_lance_table(ORDERS, pa.table({"id": [1], "who": pa.array([{"email": "a"}])}))
    make_iceberg_table("prod", "events")


def make_principal(name: str, **grants: Privilege) -> Principal:
    """A user with these privileges on namespaces."""
    row = PrincipalRow.objects.create(name=name, kind=PrincipalKind.USER)
    for namespace, privilege in grants.items():
        target = Namespace.objects.named((namespace,)).get()
        Grant.objects.create(principal=row, namespace=target, mask=privilege)
    return access.of_row(row)


def on_table(table=ORDERS, actor=SYSTEM, **changes) -> None:
    annotations.annotate_table(actor=actor, table=table, changes=Changes(**changes))


def on_namespace(*namespace: str, actor=SYSTEM, **changes) -> None:
    annotations.annotate_namespace(actor=actor, namespace=namespace, changes=Changes(**changes))


def of_table(table=ORDERS):
    return annotations.table_annotations(actor=SYSTEM, table=table)


def last_event() -> AuditEvent:
    return AuditEvent.objects.order_by("-id")[0]


def event_fields(event: AuditEvent) -> tuple:
    return event.action, event.target, event.before, event.after


# --- descriptions, links, owners -----------------------------------------------------------------


def test_a_description_is_set_changed_and_removed():
    on_table(description="All **orders**")
    assert of_table().description == "All **orders**"
    event = last_event()
    assert event_fields(event) == (
        "description.set",
        "prod.orders",
        {"description": ""},
        {"description": "All **orders**"},
    )
    assert event.table_uuid == Table.objects.named(ORDERS).get().uuid
    assert event.transaction_id is not None
    with unchanged():
        on_table(description="All **orders**")
    on_table(description="")
    assert not Facts.objects.exists()
    assert event_fields(last_event())[2:] == (
        {"description": "All **orders**"},
        {"description": ""},
    )


def test_columns_are_described_by_their_path():
    on_table(columns={"who.email": ColumnChanges(description="Where to write to")})
    on_table(("prod", "events"), columns={"name": ColumnChanges(description="What happened")})
    assert last_event().after == {"column": "name", "description": "What happened"}
    assert Facts.objects.get(column="who.email").table.name == "orders"


@pytest.mark.parametrize("table", [ORDERS, ("prod", "events")])
@pytest.mark.parametrize(
    "change",
    [
        ColumnChanges(description="x"),
        ColumnChanges(sensitivity=Sensitivity.PUBLIC, sets_sensitivity=True),
        ColumnChanges(labels={"pii": ["yes"]}),
    ],
)
def test_a_column_that_does_not_exist_is_refused(table, change):
    annotations.create_label(actor=SYSTEM, key="pii")
    with unchanged(), pytest.raises(ColumnNotFound, match="Column 'email' does not exist"):
        on_table(table, columns={"email": change})


def test_any_column_of_a_table_without_schema_may_be_described():
    make_table("prod", "declared")
    on_table(("prod", "declared"), columns={"x": ColumnChanges(description="to come")})
    (column,) = of_table(("prod", "declared")).columns
    assert (column.path, column.type, column.description) == ("x", "", "to come")


def test_annotations_of_a_removed_column_can_be_deleted():
    annotations.create_label(actor=SYSTEM, key="pii")
    change = ColumnChanges(
        description="x",
        labels={"pii": ["yes"]},
        sensitivity=Sensitivity.PUBLIC,
        sets_sensitivity=True,
    )
    on_table(columns={"who.email": change})
    Facts.objects.update(column="gone")
    LabelAssignment.objects.update(column="gone")
    removed_column = of_table().columns[-1]
    assert (removed_column.path, removed_column.type, removed_column.description) == (
        "gone",
        "",
        "x",
    )
    on_table(
        columns={"gone": ColumnChanges(description="", labels={"pii": []}, sets_sensitivity=True)}
    )
    assert not Facts.objects.exists()
    assert not LabelAssignment.objects.exists()


def test_links_are_http_urls():
    links = [Link("Wiki", "https://wiki.example.org/orders?a=1#b"), Link("Old", "http://[::1]:80/")]
    on_table(links=links)
    assert of_table().links == tuple(links)
    on_namespace("prod", links=links[:1])
    assert last_event().after == {
        "links": [{"title": "Wiki", "url": "https://wiki.example.org/orders?a=1#b"}]
    }


@shared_cases(
    "url",
    [
        "javascript:alert(1)",
        "JAVASCRIPT:alert(1)",
        "java\nscript:alert(1)",
        "data:text/html,x",
        "ftp://example.org",
        "mailto:a@b.c",
        "//example.org",
        "/relative",
        "https:///path",
        "https://",
        "http://a b",
        'http://a/"onclick="x',
        "http://a/<b>",
        "http://[::1",
        "http://a:99999/",
        "",
        "https://example.org/" + "x" * 2000,
    ],
)
def test_other_links_are_refused(url):
    with unchanged(), pytest.raises(InvalidInput, match="http or https URL"):
        on_table(links=[Link("Title", url)])


def test_links_have_titles_and_no_column_has_links():
    for title in ("", " ", "x" * 201):
        with unchanged(), pytest.raises(InvalidInput, match="title"):
            on_table(links=[Link(title, "https://example.org")])
    with unchanged(), pytest.raises(InvalidInput, match="51 links"):
        on_table(links=[Link("x", "https://example.org")] * 51)
    with unchanged(), pytest.raises(InvalidInput, match="column cannot have links"):
        commit(
            [annotation_operations.SetLinks(target=ORDERS, is_table=True, column="id", links=[])],
            actor=SYSTEM,
        )


def test_an_owner_is_a_principal():
    make_principal("user:ada")
    on_table(owner="user:ada")
    on_namespace("prod", owner="user:ada")
    assert Table.objects.named(ORDERS).get().owner == of_table().owner == "user:ada"
    assert event_fields(last_event()) == (
        "owner.set",
        "prod",
        {"owner": "system"},
        {"owner": "user:ada"},
    )
    with unchanged(), pytest.raises(InvalidInput, match="Principal 'user:bob' does not exist"):
        on_table(owner="user:bob")
    on_table(owner="")
    assert of_table().owner == ""


def test_a_long_description_is_refused():
    with unchanged(), pytest.raises(InvalidInput, match="65537 characters"):
        on_table(description="x" * 65_537)


# --- sensitivity ---------------------------------------------------------------------------------


def classify(*namespace: str, sensitivity: Sensitivity | None) -> None:
    on_namespace(*namespace, sensitivity=sensitivity, sets_sensitivity=True)


def test_the_nearest_sensitivity_applies():
    assert (of_table().sensitivity, of_table().sensitivity_source) == (None, "")
    classify(sensitivity=Sensitivity.PUBLIC)
    assert (of_table().sensitivity, of_table().sensitivity_source) == ("public", "(root)")
    classify("prod", sensitivity=Sensitivity.CONFIDENTIAL)
    described = of_table()
    assert (described.sensitivity, described.sensitivity_source) == ("confidential", "prod")
    assert described.said_sensitivity is None
    on_table(sensitivity=Sensitivity.INTERNAL, sets_sensitivity=True)
    described = of_table()
    assert (described.sensitivity, described.sensitivity_source) == ("internal", "prod.orders")
    assert described.highest_sensitivity == "internal"
    on_table(
        columns={"id": ColumnChanges(sensitivity=Sensitivity.RESTRICTED, sets_sensitivity=True)}
    )
    described = of_table()
    assert (described.sensitivity, described.highest_sensitivity) == ("internal", "restricted")
    on_table(sensitivity=None, sets_sensitivity=True)
    assert of_table().sensitivity == "confidential"
    assert event_fields(last_event())[2:] == ({"sensitivity": "internal"}, {"sensitivity": ""})
    namespace = annotations.namespace_annotations(actor=SYSTEM, namespace=("prod",))
    assert (namespace.sensitivity, namespace.said_sensitivity) == ("confidential", "confidential")


def test_sensitivities_are_in_order():
    assert [sensitivity.rank for sensitivity in Sensitivity] == [0, 1, 2, 3]
    assert Sensitivity.RESTRICTED.rank > Sensitivity.PUBLIC.rank


# --- labels --------------------------------------------------------------------------------------


def labels_of(annotated) -> dict[str, tuple]:
    return {
        label.key: (label.values, label.source, label.is_inherited) for label in annotated.labels
    }


def test_labels_are_inherited_from_namespaces_and_overridden():
    annotations.create_label(actor=SYSTEM, key="pii", values=["yes", "no"])
    annotations.create_label(actor=SYSTEM, key="team", is_multiple=True)
    on_namespace("prod", labels={"pii": ["no"], "team": ["web", "ops"]})
    assert labels_of(of_table()) == {
        "pii": (("no",), "prod", True),
        "team": (("web", "ops"), "prod", True),
    }
    on_table(labels={"pii": ["yes"]})
    assert labels_of(of_table())["pii"] == (("yes",), "prod.orders", False)
    assert event_fields(last_event()) == (
        "label.assign",
        "prod.orders",
        {"label": "pii", "values": []},
        {"label": "pii", "values": ["yes"]},
    )
    on_table(labels={"pii": []})
    assert labels_of(of_table())["pii"] == (("no",), "prod", True)
    assert event_fields(last_event())[0::2] == ("label.remove", {"label": "pii", "values": ["yes"]})
    with unchanged():
        on_table(labels={"pii": []})
        on_namespace("prod", labels={"pii": ["no"]})


def test_labels_of_columns_are_not_inherited():
    annotations.create_label(actor=SYSTEM, key="pii", colour=LabelColour.RED)
    on_table(columns={"who.email": ColumnChanges(labels={"pii": [""]})})
    described = of_table()
    assert described.labels == ()
    (column,) = [column_ for column_ in described.columns if column_.labels]
    (label,) = column.labels
    assert (column.path, label.key, label.values, label.colour) == (
        "who.email",
        "pii",
        ("",),
        "red",
    )
    assert label.source == "prod.orders.who.email"


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        (["maybe"], "allows yes, no, not 'maybe'"),
        (["yes", "no"], "takes one value, not 2"),
        (["Yes"], "allows yes, no"),
    ],
)
def test_invalid_label_values_are_refused(values, cause):
    annotations.create_label(actor=SYSTEM, key="pii", values=["yes", "no"])
    with unchanged(), pytest.raises(InvalidInput, match=cause):
        on_table(labels={"pii": values})


def test_labels_are_refused_on_other_targets():
    annotations.create_label(actor=SYSTEM, key="pii", applies_to=[LabelTarget.COLUMN])
    with unchanged(), pytest.raises(InvalidInput, match="to a column, not to a table"):
        on_table(labels={"pii": ["yes"]})
    with unchanged(), pytest.raises(InvalidInput, match="not to a namespace"):
        on_namespace("prod", labels={"pii": ["yes"]})


def test_free_text_is_short_and_printable():
    annotations.create_label(actor=SYSTEM, key="note")
    for value in ("x" * 201, "a\nb"):
        with unchanged(), pytest.raises(InvalidInput, match="200 characters"):
            on_table(labels={"note": [value]})
    on_table(labels={"note": [" größe "]})
    assert labels_of(of_table())["note"][0] == ("größe",)


def test_an_unknown_label_is_refused():
    for values in (["yes"], []):
        with unchanged(), pytest.raises(LabelNotFound):
            on_table(labels={"pii": values})


# --- definitions ---------------------------------------------------------------------------------


def test_definitions_are_created_changed_and_deleted():
    row = annotations.create_label(
        actor=SYSTEM,
        key="pii",
        description="Of people",
        colour=LabelColour.RED,
        values=["yes", "no"],
        applies_to=[LabelTarget.TABLE, LabelTarget.COLUMN],
    )
    assert annotations.find_label(key="pii") == row
    assert event_fields(last_event()) == (
        "label.create",
        "pii",
        None,
        {
            "description": "Of people",
            "colour": "red",
            "values": ["yes", "no"],
            "is_multiple": False,
            "applies_to": ["table", "column"],
        },
    )
    annotations.update_label(actor=SYSTEM, key="pii", is_multiple=True, values=[])
    assert (last_event().before["values"], last_event().after["values"]) == (["yes", "no"], [])
    with unchanged():
        annotations.update_label(actor=SYSTEM, key="pii", description="Of people")
    annotations.delete_label(actor=SYSTEM, key="pii")
    assert last_event().action == "label.delete"
    assert not LabelDefinition.objects.exists()


def test_a_duplicate_label_is_refused():
    annotations.create_label(actor=SYSTEM, key="pii")
    with unchanged(), pytest.raises(LabelAlreadyExists):
        annotations.create_label(actor=SYSTEM, key="pii")


@shared_cases(
    "wrong",
    [
        {"key": "PII"},
        {"key": ""},
        {"key": "a b"},
        {"key": "x" * 64},
        {"key": "-a"},
        {"values": ["a", "a"]},
        {"values": [""]},
        {"values": [" a"]},
        {"values": ["x" * 201]},
        {"applies_to": []},
        {"applies_to": [LabelTarget.TABLE] * 2},
    ],
)
def test_invalid_definitions_are_refused(wrong):
    with unchanged(), pytest.raises(InvalidInput):
        annotations.create_label(actor=SYSTEM, **{"key": "pii", **wrong})


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"values": ["b"]}, "value 'a' is assigned"),
        ({"is_multiple": False}, "several of its values"),
        ({"applies_to": [LabelTarget.NAMESPACE]}, "it is assigned to a table"),
        ({"applies_to": [LabelTarget.TABLE]}, "it is assigned to a column"),
    ],
)
def test_a_label_in_use_cannot_be_restricted(change, cause):
    annotations.create_label(actor=SYSTEM, key="l", is_multiple=True)
    on_table(labels={"l": ["a", "b"]}, columns={"id": ColumnChanges(labels={"l": ["a"]})})
    with unchanged(), pytest.raises(LabelInUse, match=cause):
        annotations.update_label(actor=SYSTEM, key="l", **change)
    with unchanged(), pytest.raises(LabelInUse, match="3 assignments"):
        annotations.delete_label(actor=SYSTEM, key="l")
    annotations.update_label(actor=SYSTEM, key="l", values=["a", "b", "c"])


def test_only_administrators_define_labels():
    manager = make_principal("user:ada", prod=Privilege.ALL)
    with unchanged(), pytest.raises(PermissionDenied):
        annotations.create_label(actor=manager, key="pii")
    annotations.create_label(actor=SYSTEM, key="pii")
    with unchanged(), pytest.raises(PermissionDenied):
        annotations.update_label(actor=manager, key="pii", description="x")
    with unchanged(), pytest.raises(PermissionDenied):
        annotations.delete_label(actor=manager, key="pii")
    on_table(actor=manager, labels={"pii": ["yes"]})


# --- access --------------------------------------------------------------------------------------

EVERYTHING = {
    "description": {"description": "x"},
    "owner": {"owner": ""},
    "sensitivity": {"sensitivity": Sensitivity.PUBLIC, "sets_sensitivity": True},
    "links": {"links": []},
    "label": {"labels": {"pii": ["yes"]}},
    "nothing": {},
}


@pytest.mark.parametrize("change", EVERYTHING.values(), ids=EVERYTHING)
def test_writers_may_not_annotate(change):
    annotations.create_label(actor=SYSTEM, key="pii")
    writer = make_principal("user:ada", prod=Privilege.WRITE | Privilege.READ | Privilege.BROWSE)
    with unchanged(), pytest.raises(PermissionDenied):
        on_table(actor=writer, **change)
    with unchanged(), pytest.raises(PermissionDenied):
        on_namespace("prod", actor=writer, **change)


@pytest.mark.parametrize("change", EVERYTHING.values(), ids=EVERYTHING)
def test_hidden_and_missing_objects_have_the_same_answer(change):
    stranger = make_principal("user:eve")
    with unchanged(), pytest.raises((TableNotFound, NamespaceNotFound)):
        on_table(actor=stranger, **change)
    with unchanged(), pytest.raises(NamespaceNotFound):
        on_namespace("prod", actor=stranger, **change)
    with pytest.raises((TableNotFound, NamespaceNotFound)):
        annotations.table_annotations(actor=stranger, table=ORDERS)
    with pytest.raises(NamespaceNotFound):
        annotations.namespace_annotations(actor=stranger, namespace=("prod",))


def test_errors_do_not_reveal_column_names():
    stranger = make_principal("user:eve")
    for column in ("id", "nothing"):
        with unchanged(), pytest.raises((TableNotFound, NamespaceNotFound)):
            on_table(actor=stranger, columns={column: ColumnChanges(description="x")})


def test_missing_objects_are_refused():
    with unchanged(), pytest.raises(TableNotFound):
        on_table(("prod", "nothing"), description="x")
    with unchanged(), pytest.raises(TableNotFound):
        on_table(("prod", "nothing"), columns={"id": ColumnChanges(description="x")})
    with unchanged(), pytest.raises(NamespaceNotFound):
        on_namespace("nothing", description="x")
    with pytest.raises(TableNotFound):
        of_table(("prod", "nothing"))
    with pytest.raises(NamespaceNotFound):
        annotations.namespace_annotations(actor=SYSTEM, namespace=("nothing",))
    with unchanged(), pytest.raises(InvalidInput, match="no columns"):
        on_namespace("prod", columns={"id": ColumnChanges(description="x")})


# --- atomicity and cost --------------------------------------------------------------------------


def test_changes_are_atomic():
    with unchanged(), pytest.raises(LabelNotFound):
        on_table(description="x", labels={"pii": ["yes"]})
    with unchanged(), pytest.raises(ColumnNotFound):
        on_table(description="x", columns={"nothing": ColumnChanges(description="y")})


def test_annotations_follow_a_renamed_table():
    on_table(description="All orders")
    commit([table_operations.RenameTable(table=ORDERS, new=("prod", "sales"))], actor=SYSTEM)
    assert of_table(("prod", "sales")).description == "All orders"


def test_annotations_update_the_search_document_in_one_transaction():
    on_table(description="Purchases")
    row = SearchDocument.objects.get(table__name="orders")
    assert "purchases" in row.vector
    assert row.due_at is not None  # its columns are not read yet
    on_namespace("prod", description="Production")
    assert "production" in SearchDocument.objects.get(namespace__name="prod").vector


def test_reading_takes_a_fixed_number_of_statements():
    annotations.create_label(actor=SYSTEM, key="pii")
    on_table(labels={"pii": ["yes"]}, columns={"id": ColumnChanges(description="x")})
    with CaptureQueriesContext(connection) as queries:
        of_table()
    assert len(queries) == 4
    with CaptureQueriesContext(connection) as queries:
        annotations.namespace_annotations(actor=SYSTEM, namespace=("prod",))
    assert len(queries) == 3


@pytest.mark.django_db(transaction=True)
def test_concurrent_assignments_of_a_single_valued_label(transactional_db):
    annotations.create_label(actor=SYSTEM, key="pii")
    barrier = threading.Barrier(2)
    failures = []

    def assign(value: str) -> None:
        try:
            barrier.wait(timeout=30)
            on_table(labels={"pii": [value]})
        except Exception as error:  # noqa: BLE001 -- told below
            failures.append(error)
        finally:
            close_old_connections()
            connection.close()

    threads = [threading.Thread(target=assign, args=[value]) for value in ("yes", "no")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert failures == []
    (assignment,) = LabelAssignment.objects.all()
    events = AuditEvent.objects.filter(action="label.assign").order_by("id")
    first, second = events
    assert second.before["values"] == first.after["values"]
    assert second.after["values"] == [assignment.value]


def test_a_definition_is_locked_before_a_label_is_assigned():
    annotations.create_label(actor=SYSTEM, key="pii")
    with CaptureQueriesContext(connection) as queries:
        on_table(labels={"pii": ["yes"]})
    texts = [query["sql"] for query in queries]
    lock = next(
        n for n, text in enumerate(texts) if "labeldefinition" in text and "NO KEY UPDATE" in text
    )
    write = next(
        n for n, text in enumerate(texts) if text.startswith("INSERT") and "labelass" in text
    )
    assert lock < write


# --- descriptions as HTML ------------------------------------------------------------------------


def test_descriptions_are_rendered_as_markdown():
    assert descriptions.render("All **orders**\n\n- `a`") == (
        "<p>All <strong>orders</strong></p>\n<ul>\n<li><code>a</code></li>\n</ul>\n"
    )
    assert "<table>" in descriptions.render("|a|\n|-|\n|1|")
    assert descriptions.render("[x](https://example.org)") == (
        '<p><a href="https://example.org" rel="noopener noreferrer nofollow" target="_blank">x</a>'
        "</p>\n"
    )
    assert 'href="mailto:a@b.c"' in descriptions.render("<a@b.c>")


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1))",
        "[x](JaVaScRiPt:alert(1))",
        "[x](\tjavascript:alert(1))",
        "[x](&#106;avascript:alert(1))",
        "[x](&#x6A;avascript&colon;alert(1))",
        "[x](java\nscript:alert(1))",
        "[x](data:text/html;base64,PHNjcmlwdD4=)",
        "[x](vbscript:x)",
        "[x](file:///etc/passwd)",
        "[x](//evil.example)",
        "[x](/admin/logout)",
        "<javascript:alert(1)>",
        "[x][y]\n\n[y]: javascript:alert(1)",
        "![x](javascript:alert(1))",
        "![x](https://tracker.example/pixel.png)",
        '[x](https://a.b "t\\" onmouseover=\\"alert(1)")',
        "`<script>`",
        "    <script>",
        "```<script>\n<script>\n```",
        "<a href='javascript:x'>y</a>",
        "<div\nonclick=x>",
        "<!-- --><svg/onload=alert(1)>",
    ],
)
def test_descriptions_cannot_run_scripts(text):
    from html.parser import HTMLParser

    class Parser(HTMLParser):
        def handle_starttag(self, tag, attrs):
            assert tag in {"p", "a", "code", "pre"}, tag
            for name, value in attrs:
                assert name in {"href", "rel", "target", "title", "class"}, name
                if name == "href":
                    assert value.startswith(("https://", "http://", "mailto:")), value

    html = descriptions.render(text)
    parser = Parser()
    parser.feed(html)
    parser.close()
