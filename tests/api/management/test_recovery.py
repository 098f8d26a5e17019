"""Protection, the trash and approvals in the management API, and the answers of the protocols."""

from datetime import timedelta

import pytest
from django.utils import timezone

from catalog import access
from catalog.access import SYSTEM
from catalog.models import (
    ApprovalRequest,
    Grant,
    Job,
    JobStatus,
    PrincipalLevel,
    Table,
    TrashItem,
)
from catalog.privileges import Privilege, closure
from catalog.services.access import api_keys
from catalog.services.engine.commit import commit
from catalog.services.governance import access_requests
from catalog.services.recovery import undrop as recovery_undrop
from catalog.services.tables import table_operations
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.api.management.client import Management
from tests.factories import (
    make_iceberg_table,
    make_lance_table,
    make_namespace,
    make_root,
    unchanged,
)


@pytest.fixture(autouse=True)
def _catalog(db, settings, monkeypatch):
    settings.MONODON_TRASH_SECONDS = 3600
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    make_root()


@pytest.fixture
def keys(db) -> dict[str, str]:
    made = {}
    for name in ("ada", "bob"):
        _, made[name] = api_keys.create_api_key(actor=SYSTEM, name=name)
    return made


@pytest.mark.operation("GetTableProtection")
@pytest.mark.operation("SetTableProtection")
def test_a_protected_table_is_not_dropped(management: Management, reader: Management, keys):
    table = make_lance_table(("ws", "t"))
    make_iceberg_table("ws", "i")
    for name in ("ws$t", "ws$i"):
        path = f"tables/{name}/protection"
        assert management.put(path, {"protected": True}) == {"protected": True}
        assert reader.get(path) == {"protected": True}
    lance = Lance(keys["ada"])
    lance.refused(409, 19, "Table 'ws.t' is protected", "/v1/table/ws$t/drop")
    lance.refused(409, 19, "Table 'ws.t' is protected", "/v1/table/ws$t/deregister", {})
    cascade = {"behavior": "Cascade"}
    message = "Table 'ws.t', table 'ws.i' are protected"
    lance.refused(409, 19, message, "/v1/namespace/ws/drop", cascade)
    iceberg = Iceberg(keys["ada"])
    iceberg.refused(
        403, "NotAuthorizedException", "Table 'ws.i' is protected", "DELETE namespaces/ws/tables/i"
    )
    assert Table.objects.present().filter(pk=table.pk).exists()
    management.put("tables/ws$t/protection", {"protected": False})
    lance.post("/v1/table/ws$t/drop")
    reader.refused(
        403, "permission-denied", "manage", "PUT tables/ws$i/protection", {"protected": False}
    )
    management.refused(
        404, "table-not-found", "ws.x", "PUT tables/ws$x/protection", {"protected": True}
    )
    management.refused(
        400, "invalid-input", "protect", "PUT tables/ws$i/protection", {"protect": False}
    )


@pytest.mark.operation("GetNamespaceProtection")
@pytest.mark.operation("SetNamespaceProtection")
def test_a_protected_namespace_is_not_dropped(management: Management, reader: Management, keys):
    make_namespace("ws")
    path = "namespaces/ws/protection"
    assert management.get(path) == {"protected": False}
    assert management.put(path, {"protected": True}) == reader.get(path) == {"protected": True}
    message = "Namespace 'ws' is protected"
    Lance(keys["ada"]).refused(409, 19, message, "/v1/namespace/ws/drop", {})
    Iceberg(keys["ada"]).refused(403, "NotAuthorizedException", message, "DELETE namespaces/ws")
    management.refused(
        404, "namespace-not-found", "'x'", "PUT namespaces/x/protection", {"protected": True}
    )
    reader.refused(403, "permission-denied", "manage", f"PUT {path}", {"protected": False})


@pytest.mark.operation("GetRetention")
@pytest.mark.operation("SetRetention")
def test_retention_is_set_and_inherited(management: Management, reader: Management):
    make_namespace("ws", "in")
    assert management.get("namespaces/ws/retention") == {
        "direct": None,
        "seconds": 3600,
        "source": "",
    }
    retention = {"direct": 60, "seconds": 60, "source": "ws"}
    assert management.put("namespaces/ws/retention", {"seconds": 60}) == retention
    assert reader.get("namespaces/ws$in/retention") == {**retention, "direct": None}
    put = "PUT namespaces/ws/retention"
    management.refused(400, "invalid-input", "0 to", put, {"seconds": -1})
    management.refused(400, "invalid-input", "seconds", put, {})
    reader.refused(403, "permission-denied", "manage", put, {"seconds": 0})


@pytest.mark.operation("ListTrash")
@pytest.mark.operation("GetTrashItem")
@pytest.mark.operation("UndropTrashItem")
def test_a_table_is_undropped(management: Management, reader: Management, keys):
    table = make_lance_table(("ws", "t"))
    Lance(keys["ada"]).post("/v1/table/ws$t/drop")
    (item,) = reader.get("trash?namespace=ws&dropped_by=ada")["items"]
    assert item == reader.get(f"trash/{item['id']}")
    assert item["kind"] == "table"
    assert (item["name"], item["format"], item["location"]) == (
        ["ws", "t"],
        "lance",
        table.location,
    )
    assert (item["state"], item["dropped_by"], item["bytes"]) == ("waiting", "ada", None)
    assert item["purge_at"] > item["dropped_at"]
    undrop = f"trash/{item['id']}/undrop"
    reader.refused(403, "permission-denied", "may not manage 'ws.t'", f"POST {undrop}", {})
    make_lance_table(("ws", "t"))
    detail = "Table 'ws.t' exists already. Restore it under another name."
    management.refused(409, "table-already-exists", detail, f"POST {undrop}", {})
    management.refused(404, "namespace-not-found", "'x'", f"POST {undrop}", {"new": ["x", "t"]})
    assert management.post(undrop, {"new": ["ws", "old"]}) == {
        "kind": "table",
        "name": ["ws", "old"],
    }
    assert management.get("trash") == {"items": [], "next_page_token": None}
    management.refused(404, "not-in-the-trash", str(item["id"]), f"POST {undrop}", {})
    management.refused(404, "not-in-the-trash", "'x'", "GET trash/x")


@pytest.mark.operation("PurgeTrashItem")
@pytest.mark.operation("KeepTrashItem")
def test_a_purge_starts_and_is_stopped(management: Management, reader: Management, keys):
    make_iceberg_table("ws", "i")
    Iceberg(keys["ada"]).call("DELETE", "namespaces/ws/tables/i?purgeRequested=true")
    (item,) = management.get("trash")["items"]
    purge, keep = f"trash/{item['id']}/purge", f"trash/{item['id']}/keep"
    reader.refused(403, "permission-denied", "manage", f"POST {purge}", {})
    reader.refused(403, "permission-denied", "manage", f"POST {keep}")
    purged = management.post(purge, {"reason": "GDPR"}, status=202)
    assert purged["jobs"] == [item["job"]]
    assert item["purge_at"] > purged["begins_at"]
    item_kept = management.post(keep)
    assert (item_kept["state"], item_kept["purge_at"]) == ("kept", None)
    assert Job.objects.get().status == JobStatus.CANCELED
    TrashItem.objects.update(purge_begun_at=item["dropped_at"])
    management.refused(409, "invalid-table-state", "has already begun", f"POST {keep}")
    management.refused(
        409, "not-recoverable", "its purge has begun", f"POST trash/{item['id']}/undrop", {}
    )


@pytest.mark.operation("ApproveRequest")
def test_a_temporary_approver_grants_access_until_its_own_end(keys, management: Management):
    make_lance_table(("ws", "t"))
    _, key = api_keys.create_for(actor=SYSTEM, principal=None, name="temporary")
    end = (timezone.now() + timedelta(days=5)).isoformat()
    mine = {"principal": "temporary", "privileges": ["manage", "grant"], "expires_at": end}
    management.put("tables/ws$t/grants", mine)
    requester = access.named("ada")
    assert requester is not None
    request = access_requests.request_access(
        actor=requester, on=access.On.table(("ws", "t")), privileges=Privilege.READ, reason="report"
    )
    approver, approve = Management(key), f"POST approvals/{request.pk}/approve"
    with unchanged():
        for body in ({}, {"days": None}, {"days": 6}):
            approver.refused(403, "permission-denied", "for a limited time", approve, body)
        for days in (0, -1, 3651, 10**30, "3"):
            approver.refused(400, "invalid-input", "days", approve, {"days": days})
    approver.post(f"approvals/{request.pk}/approve", {"days": 4})
    grant = Grant.objects.get(principal__name="ada", table__isnull=False)
    assert (grant.expires_at - timezone.now()).days == 3


@pytest.mark.operation("GetApprovalRule")
@pytest.mark.operation("SetApprovalRule")
@pytest.mark.operation("ListApprovals")
@pytest.mark.operation("GetApproval")
@pytest.mark.operation("ApproveRequest")
def test_a_second_person_approves_a_drop(keys, reader: Management):
    ada, bob = Management(keys["ada"]), Management(keys["bob"])
    make_namespace("ws", "in")
    rule = ada.put("namespaces/ws/approval-rule", {"actions": ["drop_protected"]})
    assert rule == {"direct": ["drop_protected"], "effective": {"drop_protected": "ws"}}
    assert ada.get("namespaces/ws$in/approval-rule") == {**rule, "direct": []}
    ada.put("namespaces/ws$in/protection", {"protected": True})
    answer = Lance(keys["ada"]).call("POST", "/v1/namespace/ws$in/drop", {})
    request = ApprovalRequest.objects.get()
    assert (answer.status_code, answer.json()["code"]) == (403, 15)
    message = (
        "Dropping protected namespace 'ws.in' needs the approval of a second person:"
        f" request {request.pk} waits for it"
    )
    assert message in answer.json()["error"]
    answer = Iceberg(keys["ada"]).call("DELETE", "namespaces/ws%1Fin")
    assert answer.status_code == 403
    assert message in answer.json()["error"]["message"]
    with unchanged():
        answer = ada.call("PUT", "namespaces/ws/approval-rule", {"actions": ["drop_protected"]})
    assert answer.status_code == 200
    (waits,) = bob.get("approvals?waiting_for_me=true")["approvals"]
    assert waits == reader.get(f"approvals/{request.pk}")
    assert (waits["requester"], waits["namespace"], waits["status"]) == (
        "ada",
        ["ws", "in"],
        "pending",
    )
    assert waits["operation"]["operation"] == "DropNamespace"
    assert ada.get("approvals?waiting_for_me=true")["approvals"] == []
    approve = f"POST approvals/{request.pk}/approve"
    ada.refused(403, "permission-denied", "another principal must decide", approve, {})
    reader.refused(403, "permission-denied", "manage", approve, {})
    with unchanged():
        bob.refused(400, "invalid-input", "request for access", approve, {"days": 3})
    bob.refused(404, "approval-request-not-found", "'x'", "GET approvals/x")
    approved = bob.post(f"approvals/{request.pk}/approve", {"reason": "yes"})
    assert (approved["status"], approved["decided_by"], approved["decision_reason"]) == (
        "done",
        "bob",
        "yes",
    )
    bob.refused(409, "invalid-approval-state", "is done", approve, {})
    assert [approval["id"] for approval in bob.get("approvals?status=done")["approvals"]] == [
        request.pk
    ]
    bob.refused(400, "invalid-input", "status", "GET approvals?status=done,pending")


@pytest.mark.operation("RefuseRequest")
@pytest.mark.operation("WithdrawRequest")
def test_a_request_is_refused_or_withdrawn(keys):
    ada, bob = Management(keys["ada"]), Management(keys["bob"])
    make_namespace("ws")
    ada.put("namespaces/ws/approval-rule", {"actions": ["purge"]})
    loosen = {"actions": [], "reason": "too slow"}
    answer = ada.call("PUT", "namespaces/ws/approval-rule", loosen)
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:monodon:approval-required")
    request = ApprovalRequest.objects.get()
    assert f"request {request.pk} waits" in answer.json()["detail"]
    assert request.reason == "too slow"
    refuse = f"approvals/{request.pk}/refuse"
    bob.refused(400, "invalid-input", "reason", f"POST {refuse}", {})
    bob.refused(403, "permission-denied", "withdraw", f"POST approvals/{request.pk}/withdraw")
    assert bob.post(refuse, {"reason": "no"})["decision_reason"] == "no"
    ada.refused(409, "invalid-approval-state", "refused", f"POST approvals/{request.pk}/withdraw")
    ada.call("PUT", "namespaces/ws/approval-rule", loosen)
    again = ApprovalRequest.objects.latest("pk")
    assert ada.post(f"approvals/{again.pk}/withdraw")["status"] == "withdrawn"
    assert ada.get("namespaces/ws/approval-rule")["direct"] == ["purge"]


def test_trash_items_are_hidden_without_privileges(keys):
    make_lance_table(("ws", "t"))
    Lance(keys["ada"]).post("/v1/table/ws$t/drop")
    item = TrashItem.objects.get()
    _, key = api_keys.create_api_key(actor=SYSTEM, name="x", level=PrincipalLevel.GRANTED)
    stranger = Management(key)
    assert stranger.get("trash")["items"] == []
    for method, path, body in (
        ("GET", f"trash/{item.pk}", None),
        ("POST", f"trash/{item.pk}/undrop", {}),
        ("POST", f"trash/{item.pk}/purge", {}),
        ("POST", f"trash/{item.pk}/keep", None),
    ):
        stranger.refused(404, "not-in-the-trash", str(item.pk), f"{method} {path}", body)
    assert recovery_undrop.list_trash(actor=SYSTEM)[0] == [item]


@pytest.mark.parametrize(
    ("privilege", "is_visible"), [(Privilege.BROWSE, False), (Privilege.READ, True)]
)
def test_locations_in_the_trash_are_visible_only_to_readers(management, privilege, is_visible):
    table = make_lance_table(("ws", "t"))
    key, secret = api_keys.create_api_key(actor=SYSTEM, name="bob", level=PrincipalLevel.GRANTED)
    Grant.objects.create(principal=key.principal, table=table, mask=int(closure(privilege)))
    commit([table_operations.DropTable(table=("ws", "t"))], actor=SYSTEM)
    (item,) = Management(secret).get("trash")["items"]
    assert item["location"] == (table.location if is_visible else None)
    assert Management(secret).get(f"trash/{item['id']}") == item
    assert management.post(f"trash/{item['id']}/keep", {})["location"] == table.location
