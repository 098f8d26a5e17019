"""Searches of the audit trail through the API, and the events that refused requests leave in it."""

import csv
import io
import json
import uuid

import pytest

from catalog.access import SYSTEM
from catalog.models import AuditEvent, Namespace, PrincipalLevel
from catalog.privileges import Privilege
from catalog.services.access import api_keys
from catalog.services.audit import refusals
from catalog.services.audit import trail as audit_trail
from catalog.services.engine.commit import commit
from catalog.services.tables.table_operations import RenameTable
from tests.access.protocols import give
from tests.api.management.client import Management
from tests.cases import shared_cases
from tests.factories import make_lance_table, make_namespace, make_root, make_table, unchanged

CANARY = "c4n4ry-9d1e"


def make(**facts) -> AuditEvent:
    values = {
        "actor": "ada",
        "action": "tag.create",
        "target": "ws.t",
        "interface": "lance",
        **facts,
    }
    return AuditEvent.objects.create(**values)


@pytest.mark.operation("ListAudit")
def test_search_results_have_pages(management: Management):
    rows = [make(key="laptop", after={"tag": n}) for n in range(3)]
    make(key="other")
    with unchanged():
        first = management.get("audit?key=laptop&limit=2")
        second = management.get(f"audit?key=laptop&page_token={first['next_page_token']}")
    assert [event["id"] for event in first["events"]] == [rows[2].pk, rows[1].pk]
    assert [event["id"] for event in second["events"]] == [rows[0].pk]
    assert second["next_page_token"] is None
    first_event = second["events"][0]
    assert (first_event["actor"], first_event["after"], first_event["interface"]) == (
        "ada",
        {"tag": 0},
        "lance",
    )
    assert (first_event["outcome"], first_event["table_uuid"], first_event["transaction_id"]) == (
        "done",
        None,
        None,
    )
    assert first_event["at"].endswith("Z")


@pytest.mark.operation("ListAudit")
def test_each_parameter_filters_the_events(management: Management, warehouse):
    table = make_table("ws", "t")
    expected = make(
        table_uuid=table.uuid,
        target="ws.old",
        actor="bob",
        action="tag.delete",
        interface="iceberg",
        outcome="refused",
        request_id="req-1",
        transaction_id=uuid.uuid4(),
    )
    for query in (
        "table=ws$t&action=tag.delete",
        "target=ws.old",
        "actor=bob",
        "action=tag.delete",
        "interface=iceberg",
        "outcome=refused",
        "request_id=req-1",
        f"transaction={expected.transaction_id}",
        f"actor=bob&since={expected.at.isoformat().replace('+', '%2B')}",
        "actor=bob&until=2999-01-01",
    ):
        events = management.get(f"audit?{query}")["events"]
        assert [event["id"] for event in events] == [expected.pk], query
    assert management.get("audit?actor=bob&until=2020-01-01")["events"] == []


@pytest.mark.operation("ListAudit")
@shared_cases(
    ("query", "text"),
    [
        ("interface=window", "use lance, iceberg"),
        ("outcome=done,refused", "use done, refused"),
        ("transaction=1", "use a UUID"),
        ("since=yesterday", "use a time such as"),
        ("page_token=x", "Page token 'x'"),
        ("actor=%00", "Null characters"),
        ("limit=0", "positive integer"),
    ],
)
def test_invalid_queries_are_refused(management: Management, query, text):
    management.refused(400, "invalid-input", text, f"GET audit?{query}")


@pytest.mark.operation("ExportAudit")
def test_an_export_applies_the_filter(management: Management):
    rows = [make(actor="=1+1", key="laptop") for _ in range(3)]
    make()
    response = management.call("GET", "audit/export?format=csv&key=laptop")
    assert response.status_code == 200
    assert response["content-type"] == "text/csv; charset=utf-8"
    assert response["content-disposition"].startswith('attachment; filename="audit-')
    text = b"".join(response.streaming_content).decode()
    lines = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [int(line["id"]) for line in lines] == [row.pk for row in rows]
    assert {line["actor"] for line in lines} == {"'=1+1"}
    response = management.call("GET", "audit/export?format=jsonl&key=laptop")
    assert response["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in b"".join(response.streaming_content).splitlines()]
    assert [line["id"] for line in lines] == [row.pk for row in rows]
    exports = AuditEvent.objects.filter(action="audit.export").order_by("pk")
    assert [row.after["format"] for row in exports] == ["csv", "jsonl"]
    assert {(row.actor, row.interface) for row in exports} == {("tester", "management")}
    management.refused(400, "invalid-input", "csv or jsonl", "GET audit/export?format=xml")


@pytest.mark.operation("ExportAudit")
def test_readers_may_not_read_or_export_the_trail(reader: Management, warehouse):
    make_root()
    make_lance_table(("ws", "t"))
    for path in ("audit", "audit/export", "audit?table=ws$t", "audit/export?table=ws$t"):
        reader.refused(403, "permission-denied", "'reader' may not manage", f"GET {path}")
    assert not AuditEvent.objects.filter(action="audit.export").exists()


@pytest.mark.operation("ListAudit")
@pytest.mark.operation("ExportAudit")
def test_the_manager_of_a_table_sees_no_names_of_hidden_namespaces(
    management: Management, warehouse
):
    make_root()
    make_namespace("secret")
    make_table("secret", "plan")
    make_namespace("mine")
    commit([RenameTable(table=("secret", "plan"), new=("mine", "t"))], actor=SYSTEM)
    row, key = api_keys.create_api_key(actor=SYSTEM, name="who", level=PrincipalLevel.GRANTED)
    give(row.principal, Privilege.ALL, Namespace.objects.get(name="mine"))
    manager = Management(key)
    page = manager.get("audit?table=mine$t")
    rename = next(event for event in page["events"] if event["action"] == "table.rename")
    assert (rename["target"], rename["before"], rename["after"]) == (
        "mine.t",
        {},
        {"name": "mine.t"},
    )
    export = manager.call("GET", "audit/export?table=mine$t&format=jsonl")
    assert b"secret" not in json.dumps(page).encode() + export.getvalue()
    for criterion in ("target=secret", "target=secret.plan"):
        page = manager.get(f"audit?table=mine$t&{criterion}")
        exported = manager.call("GET", f"audit/export?table=mine$t&format=jsonl&{criterion}")
        assert (page["events"], exported.getvalue()) == ([], b""), criterion
    everything = management.get("audit?table=mine$t&target=secret.plan")["events"]
    assert everything[-1]["target"] == "secret.plan"


# --- events of refused requests ------------------------------------------------------------------


@pytest.fixture
def written(monkeypatch):
    """The events of refusals, which are written immediately here."""
    monkeypatch.setattr(refusals, "ledger", refusals.Ledger(refusals.write))
    return lambda: list(AuditEvent.objects.filter(outcome="refused").order_by("pk"))


@pytest.fixture
def tables(db, warehouse) -> None:
    make_root()
    make_lance_table(("ws", "t"))


def test_refused_access_is_recorded_for_every_interface(reader, tables, written):
    assert reader.call("PUT", "tables/ws$t/policy", {"values": {}}).status_code == 403
    assert reader.call("POST", "/v1/table/ws$t/drop", {}).status_code == 403
    assert reader.call("DELETE", "/v1/namespaces/ws/tables/t").status_code == 403
    records = [(row.interface, row.action, row.target, row.actor, row.key) for row in written()]
    assert records == [
        ("management", "SetTablePolicy", "ws.t", "reader", "reader"),
        ("lance", "table.drop", "ws.t", "reader", "reader"),
        ("iceberg", "table.drop", "ws.t", "reader", "reader"),
    ]
    for row in written():
        assert row.error.startswith("PermissionDenied: 'reader' may not ")
        assert row.after == {"address": "127.0.0.1"}
        assert row.request_id


def test_unauthenticated_requests_are_recorded_without_the_credentials(tables, written):
    for headers in ({"x-api-key": CANARY}, {"authorization": f"Bearer {CANARY}"}):
        assert Management(**headers).call("GET", "jobs").status_code == 401
    assert Management().call("GET", "/v1/namespaces").status_code == 401
    rows = written()
    assert {(row.interface, row.actor) for row in rows} == {
        ("management", "anonymous"),
        ("iceberg", "anonymous"),
    }
    assert all(row.error.startswith("Unauthenticated: ") for row in rows)
    assert CANARY not in json.dumps([audit_trail.as_json(row) for row in rows], default=str)


def test_refused_changes_are_recorded_and_invalid_reads_are_not(management, tables, written):
    assert management.call("POST", "/v1/table/ws$t/version/create", {}).status_code == 400
    assert management.call("POST", "/v1/namespace/ws/create", {}).status_code == 409
    assert management.call("GET", "jobs?status=nothing").status_code == 400
    assert management.call("GET", "tables/ws$no/policy").status_code == 404
    refusals = [(row.action, row.error.partition(":")[0]) for row in written()]
    assert refusals == [
        ("version.create", "InvalidInput"),
        ("namespace.create", "NamespaceAlreadyExists"),
    ]


def test_requests_for_hidden_objects_are_recorded(tables, written):
    _, key = api_keys.create_api_key(actor=SYSTEM, name="part", level=PrincipalLevel.GRANTED)
    assert Management(key).call("GET", "/v1/namespaces/ws/tables/t").status_code == 404
    (row,) = written()
    assert (row.actor, row.interface, row.target) == ("part", "iceberg", "ws.t")
    assert "NotFound" in row.error


def test_the_trail_contains_no_secrets_of_headers_and_properties(management, tables, written):
    secret = {
        "x-lance-ctx-authorization": CANARY,
        "x-lance-ctx-x-api-key": CANARY,
        "x-lance-ctx-session-token": CANARY,
        "x-lance-ctx-job": "nightly",
        "cookie": f"a={CANARY}",
    }
    management.call("POST", "/v1/namespace/other/create", {}, headers=secret)
    management.call("POST", "/v1/namespace/other/create", {}, headers=secret)
    properties = {"s3.secret-access-key": CANARY, "owner": "ada"}
    body = {"properties": properties}
    management.call("POST", "/v1/namespace/more/create", body, headers=secret)
    success = AuditEvent.objects.get(target="other", outcome="done")
    (refused,) = written()
    for row in (success, refused):
        assert row.context["job"] == "nightly"
    rows = [audit_trail.as_json(row) for row in AuditEvent.objects.all()]
    assert CANARY not in json.dumps(rows, default=str)
    more = AuditEvent.objects.get(target="more")
    assert more.after["properties"] == {"s3.secret-access-key": "***", "owner": "ada"}
