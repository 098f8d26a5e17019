"""Functions over HTTP, and the services that change them."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalog.access import SYSTEM, Principal
from catalog.errors import (
    CommitConflict,
    Conflict,
    FunctionNotFound,
    InvalidIdentifier,
    InvalidMetadata,
    NamespaceNotFound,
    PermissionDenied,
)
from catalog.models import AuditEvent, Function
from catalog.privileges import READ_ONLY
from catalog.services.iceberg import functions
from catalog.services.iceberg.functions import Content
from tests.api.iceberg.client import Iceberg
from tests.factories import make_namespace, unchanged

pytestmark = pytest.mark.django_db
READER = Principal("reader", READ_ONLY)
F = ("ws", "add_one")


def definition(*versions: str, type: str = "int") -> dict:
    return {
        "parameters": [{"name": "x", "type": type}],
        "return-type": type,
        "versions": [
            {
                "representations": [{"type": "sql", "dialect": "spark", "sql": sql}],
                "timestamp-ms": 7,
            }
            for sql in versions
        ],
    }


def make(*identifier: str, content: Content | None = None) -> Function:
    make_namespace(*identifier[:-1])
    return functions.create_function(
        actor=SYSTEM,
        function=identifier,
        content=content or Content(definitions=[definition("x + 1")], doc="adds"),
    )


# --- the protocol ------------------------------------------------------------------------------


@pytest.mark.operation("listFunctions")
def test_listing(reader: Iceberg, django_assert_num_queries):
    for name in ("c", "a", "b"):
        make("ws", "inner", name)
    make("ws", "other")
    reader.get("config")
    with django_assert_num_queries(1):
        response = reader.get("namespaces/ws%1Finner/functions")
    assert response == {
        "identifiers": [["ws", "inner", name] for name in "abc"],
        "next-page-token": None,
    }
    first = reader.get("namespaces/ws%1Finner/functions?pageSize=2")
    assert first["identifiers"] == [["ws", "inner", "a"], ["ws", "inner", "b"]]
    token = first["next-page-token"]
    answer = reader.get(f"namespaces/ws%1Finner/functions?pageSize=2&pageToken={token}")
    assert answer == {"identifiers": [["ws", "inner", "c"]], "next-page-token": None}
    inner = reader.at("ws").get("namespaces/inner/functions")["identifiers"]
    assert inner == [["inner", name] for name in "abc"]
    make_namespace("empty")
    assert reader.get("namespaces/empty/functions")["identifiers"] == []
    missing = "GET namespaces/nothing/functions"
    reader.refused(404, "NoSuchNamespaceException", "does not exist", missing)
    Iceberg().refused(401, "NotAuthorizedException", "No API key", missing)


@pytest.mark.operation("loadFunction")
def test_loading(reader: Iceberg, django_assert_num_queries):
    row = make(*F)
    reader.get("config")
    with django_assert_num_queries(1):
        answer = reader.get("namespaces/ws/functions/add_one")
    assert answer == {"metadata": row.metadata}
    assert answer["metadata"]["definitions"][0]["definition-id"] == "int"
    assert answer["metadata"]["doc"] == "adds"
    for path, kind in [
        ("namespaces/ws/functions/nothing", "NoSuchFunctionException"),
        ("namespaces/nothing/functions/add_one", "NoSuchNamespaceException"),
    ]:
        reader.refused(404, kind, "does not exist", f"GET {path}")
    reader.refused(405, "MethodNotAllowedException", "POST", "POST namespaces/ws/functions", {})


# --- changes -----------------------------------------------------------------------------------


def test_creating():
    row = make(*F, content=Content(definitions=[definition("x + 1", "x + 2")], secure=True))
    row.refresh_from_db()
    made = row.metadata["definitions"][0]
    assert [version["version-id"] for version in made["versions"]] == [1, 2]
    assert row.metadata["secure"] is True
    assert [entry["definition-versions"] for entry in row.metadata["definition-log"]] == [
        [{"definition-id": "int", "version-id": 2}]
    ]
    assert (row.owner, row.namespace.path) == ("system", ["ws"])
    event = AuditEvent.objects.get(action="function.create")
    assert (event.target, event.actor) == ("ws.add_one", "system")
    assert event.after == {
        "definitions": {"int": 2},
        "doc": "",
        "secure": True,
        "properties": {},
    }


def test_changing():
    row = make(*F)
    old = row.metadata
    versions = old["definitions"][0]["versions"]
    new = definition("x + 2")["versions"][0] | {"version-id": 2}
    content = Content(definitions=[{**definition(), "versions": [*versions, new]}], doc="more")
    functions.update_function(actor=SYSTEM, function=F, content=content, seen_at=row.updated_at)
    row.refresh_from_db()
    assert row.metadata["function-uuid"] == old["function-uuid"]
    assert row.metadata["definitions"][0]["current-version-id"] == 2
    assert len(row.metadata["definition-log"]) == 2
    assert row.metadata["doc"] == "more"
    event = AuditEvent.objects.get(action="function.update")
    assert event.before["definitions"] == {"int": 1}
    assert event.after["definitions"] == {"int": 2}
    # Back to the first version, which the log records.
    back = {**row.metadata["definitions"][0], "current-version-id": 1}
    functions.update_function(actor=SYSTEM, function=F, content=Content(definitions=[back]))
    row.refresh_from_db()
    assert "doc" not in row.metadata
    assert [
        entry["definition-versions"][0]["version-id"] for entry in row.metadata["definition-log"]
    ] == [
        1,
        2,
        1,
    ]
    functions.update_function(
        actor=SYSTEM, function=F, content=Content(definitions=[back], doc="only words")
    )
    row.refresh_from_db()
    assert len(row.metadata["definition-log"]) == 3


def test_dropping():
    make(*F)
    functions.drop_function(actor=SYSTEM, function=F)
    assert not Function.objects.exists()
    assert AuditEvent.objects.get(action="function.drop").before["definitions"] == {"int": 1}
    make(*F)  # the name is free


def test_refused_changes():
    row = make(*F)
    content = Content(definitions=[definition("x + 1")])
    other = Content(
        definitions=[{**definition("x - 1"), "versions": definition("x - 1")["versions"]}]
    )
    cases = [
        (Conflict, functions.create_function, {"function": F, "content": content}),
        (
            NamespaceNotFound,
            functions.create_function,
            {"function": ("no", "f"), "content": content},
        ),
        (InvalidIdentifier, functions.create_function, {"function": ("f",), "content": content}),
        (
            InvalidIdentifier,
            functions.create_function,
            {"function": ("ws", ""), "content": content},
        ),
        (
            InvalidMetadata,
            functions.create_function,
            {"function": ("ws", "g"), "content": Content(definitions=[])},
        ),
        (
            FunctionNotFound,
            functions.update_function,
            {"function": ("ws", "g"), "content": content},
        ),
        (
            NamespaceNotFound,
            functions.update_function,
            {"function": ("no", "g"), "content": content},
        ),
        (InvalidMetadata, functions.update_function, {"function": F, "content": other}),
        (
            CommitConflict,
            functions.update_function,
            {"function": F, "content": content, "seen_at": row.created_at.replace(year=2000)},
        ),
        (FunctionNotFound, functions.drop_function, {"function": ("ws", "g")}),
        (NamespaceNotFound, functions.drop_function, {"function": ("no", "g")}),
    ]
    for error, call, arguments in cases:
        with unchanged(), pytest.raises(error):
            call(actor=SYSTEM, **arguments)
    for call, arguments in [
        (functions.create_function, {"function": ("ws", "g"), "content": content}),
        (functions.update_function, {"function": F, "content": content}),
        (functions.drop_function, {"function": F}),
    ]:
        with unchanged(), pytest.raises(PermissionDenied):
            call(actor=READER, **arguments)


def test_the_namespace_is_locked_before_the_write():
    make_namespace("ws")
    with CaptureQueriesContext(connection) as captured:
        make(*F)
    texts = [query["sql"] for query in captured.captured_queries]
    locked = max(i for i, text in enumerate(texts) if "FOR NO KEY UPDATE" in text)
    assert locked < next(
        i for i, text in enumerate(texts) if 'INSERT INTO "catalog_function"' in text
    )


@pytest.mark.operation("dropNamespace")
def test_a_namespace_is_not_dropped_over_its_functions(iceberg: Iceberg):
    make("ns", "f")
    text = "Namespace ns is not empty. It holds 0 tables and 0 namespaces and 1 function"
    iceberg.refused(409, "NamespaceNotEmptyException", text, "DELETE namespaces/ns")


@pytest.mark.operation("dropNamespace")
def test_dropping_everything_drops_functions_too(iceberg: Iceberg):
    make("ns", "f")
    dropped = iceberg.call("POST", "/v1/namespace/ns/drop", {"behavior": "Cascade"})
    assert dropped.status_code == 200, dropped.content
    assert not Function.objects.exists()
    event = AuditEvent.objects.get(target="ns.f", action="namespace.drop")
    assert event.before["metadata"]
