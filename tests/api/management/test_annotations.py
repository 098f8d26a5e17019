"""Annotations of namespaces and tables, over HTTP."""

import pyarrow as pa
import pytest

from catalog.models import AuditEvent, Transaction
from catalog.services.search import documents as search_documents
from catalog.services.search import table_columns
from tests.api.management.client import Management
from tests.cases import shared_cases
from tests.factories import (
    make_iceberg_table,
    make_lance_table,
    make_root,
    make_table,
    unchanged,
)


@pytest.fixture(autouse=True)
def _catalog(db, management: Management):
    make_root()
    make_lance_table(("ws", "t"))
    make_iceberg_table("ws", "i")
    for key in ("pii", "team"):
        management.post("labels", {"key": key}, status=201)


EMPTY = {
    "owner": "system",
    "description": "",
    "links": [],
    "labels": [],
    "direct_sensitivity": None,
    "sensitivity": None,
    "sensitivity_source": "",
    "highest_sensitivity": None,
}


@pytest.mark.operation("GetTableAnnotations")
@pytest.mark.operation("GetNamespaceAnnotations")
def test_new_objects_have_no_annotations(reader: Management):
    table = {"identifier": ["ws", "t"], "kind": "table", "format": "lance", "columns": []}
    with unchanged():
        assert reader.get("tables/ws$t/annotations") == EMPTY | table
    search_documents.update()
    columns = reader.get("tables/ws$i/annotations")["columns"]
    assert [(column["path"], column["type"]) for column in columns] == [
        ("id", "long"),
        ("name", "string"),
    ]
    namespace = {"identifier": ["ws"], "kind": "namespace", "format": None, "columns": []}
    assert reader.get("namespaces/ws/annotations") == EMPTY | namespace
    assert reader.get("namespaces/$/annotations")["identifier"] == []


@pytest.mark.operation("UpdateTableAnnotations")
def test_one_request_sets_all_annotations_in_one_transaction(management: Management):
    before = Transaction.objects.count()
    body = {
        "description": "# Orders",
        "links": [{"title": "Wiki", "url": "https://example.org"}],
        "labels": {"pii": ["yes"], "team": ["web"]},
        "sensitivity": "internal",
        "owner": "tester",
        "columns": {"name": {"description": "Who", "sensitivity": "restricted"}},
    }
    annotations = management.send("PATCH", "tables/ws$t/annotations", body)
    assert annotations == management.get("tables/ws$t/annotations")
    assert (annotations["description"], annotations["links"]) == (
        body["description"],
        body["links"],
    )
    assert (annotations["owner"], annotations["direct_sensitivity"]) == ("tester", "internal")
    assert (annotations["sensitivity"], annotations["sensitivity_source"]) == ("internal", "ws.t")
    assert annotations["highest_sensitivity"] == "restricted"
    assert {label["key"]: label["values"] for label in annotations["labels"]} == body["labels"]
    assert [
        column["description"] for column in annotations["columns"] if column["path"] == "name"
    ] == ["Who"]
    assert Transaction.objects.count() == before + 1
    assert (
        AuditEvent.objects.filter(
            transaction_id=Transaction.objects.latest("created_at").pk
        ).count()
        == 8
    )


@pytest.mark.operation("UpdateTableAnnotations")
def test_omitted_fields_keep_their_values(management: Management):
    path = "tables/ws$i/annotations"
    management.send(
        "PATCH", path, {"description": "x", "sensitivity": "public", "labels": {"pii": ["yes"]}}
    )
    annotations = management.send("PATCH", path, {"labels": {"team": ["web"]}})
    assert (annotations["description"], annotations["sensitivity"]) == ("x", "public")
    annotations = management.send("PATCH", path, {"sensitivity": None, "labels": {"pii": []}})
    assert (annotations["description"], annotations["sensitivity"]) == ("x", None)
    assert [label["key"] for label in annotations["labels"]] == ["team"]
    with unchanged():
        assert management.send("PATCH", path, {}) == annotations


@pytest.mark.operation("UpdateNamespaceAnnotations")
def test_tables_inherit_the_annotations_of_their_namespace(management: Management):
    annotations = management.send(
        "PATCH",
        "namespaces/ws/annotations",
        {"sensitivity": "confidential", "labels": {"pii": ["no"]}},
    )
    assert annotations == management.get("namespaces/ws/annotations")
    table = management.get("tables/ws$t/annotations")
    assert (table["sensitivity"], table["direct_sensitivity"]) == ("confidential", None)
    assert table["labels"] == [
        {"key": "pii", "values": ["no"], "source": "ws", "is_inherited": True}
    ]


@shared_cases(
    ("body", "status", "kind", "text"),
    [
        ({"columns": {"nothing": {"description": "x"}}}, 404, "column-not-found", "'nothing'"),
        ({"description": "x", "labels": {"no": ["x"]}}, 404, "label-not-found", "'no'"),
        ({"owner": "nobody"}, 400, "invalid-input", "Principal 'nobody' does not exist"),
        ({"links": [None]}, 400, "invalid-input", "null"),
        ({"links": [{"title": "x", "url": "javascript:x"}]}, 400, "invalid-input", "http or https"),
        ({"sensitivity": "secret"}, 400, "invalid-input", "sensitivity"),
        ({"describtion": "x"}, 400, "invalid-input", "describtion"),
        ({"columns": {"id": {"owner": "x"}}}, 400, "invalid-input", "owner"),
        ({"labels": {"pii": ["a", "b"]}}, 400, "invalid-input", "one value"),
    ],
)
def test_refused_updates_change_nothing(management: Management, body, status, kind, text):
    management.refused(status, kind, text, "PATCH tables/ws$t/annotations", body)


def test_readers_may_not_update_annotations(reader: Management):
    body = {"description": "x"}
    for path in ("tables/ws$t/annotations", "namespaces/ws/annotations"):
        reader.refused(403, "permission-denied", "may not manage", f"PATCH {path}", body)


def test_annotations_of_missing_objects_get_404(management: Management):
    for method, body in (("GET", None), ("PATCH", {"description": "x"})):
        management.refused(
            404, "table-not-found", "'ws.x'", f"{method} tables/ws$x/annotations", body
        )
        management.refused(
            404, "namespace-not-found", "'x'", f"{method} tables/x$x/annotations", body
        )
        management.refused(
            404, "namespace-not-found", "'x'", f"{method} namespaces/x/annotations", body
        )


def test_a_namespace_has_no_columns(management: Management):
    management.refused(
        400,
        "invalid-input",
        "columns",
        "PATCH namespaces/ws/annotations",
        {"columns": {"id": {"description": "x"}}},
    )


def test_names_with_special_characters(management: Management):
    make_table("ws", "a/annotations b")
    path = "tables/ws$a%2Fannotations%20b/annotations"
    annotations = management.send("PATCH", path, {"description": "x"})
    assert annotations["identifier"] == ["ws", "a/annotations b"]


def test_the_columns_of_a_table_are_read_once(management: Management, monkeypatch):
    """A table may have thousands of columns, and a request may annotate as many."""
    make_lance_table(("ws", "wide"), pa.table({f"c{number}": [1] for number in range(20)}))
    reads: list[str] = []
    read = table_columns.read
    monkeypatch.setattr(table_columns, "read", lambda row: reads.append(row.name) or read(row))
    columns = {f"c{number}": {"description": "x", "sensitivity": "public"} for number in range(20)}
    management.send("PATCH", "tables/ws$wide/annotations", {"columns": columns})
    in_request = len(reads)
    reads.clear()
    management.send(
        "PATCH", "tables/ws$wide/annotations", {"columns": {"c1": {"description": "y"}}}
    )
    assert in_request == len(reads)
    management.refused(
        404,
        "column-not-found",
        "does not exist",
        "PATCH tables/ws$wide/annotations",
        {"columns": {"c1": {"description": "z"}, "nope": {"description": "x"}}},
    )
