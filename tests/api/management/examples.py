"""A successful request of every operation, and the catalog that the requests need."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from catalog.access import SYSTEM, Principal
from catalog.engine_profiles import EngineKind
from catalog.errors import ApprovalRequired
from catalog.models import (
    ApprovalRequest,
    Job,
    JobStatus,
    PrincipalKind,
    PrincipalLevel,
    StorageTest,
    StorageTestStatus,
    TrashItem,
)
from catalog.privileges import Privilege
from catalog.services.access import api_keys, principals
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.events import webhooks
from catalog.services.governance import annotations
from catalog.services.maintenance import measurements, policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.maintenance.engine_profiles import profiles
from catalog.services.recovery import undrop
from catalog.services.storage import profile_operations
from catalog.services.tables import namespace_operations, table_operations
from catalog.storage.configuration import Key, ServerIdentity, StoreKind
from tests.factories import make_lance_table, make_namespace, make_root, make_table
from tests.recall import recall


@dataclass(frozen=True)
class Example:
    method: str
    path: str
    """``WAITS`` and ``FAILED`` stand for the ids of the catalog's jobs."""
    body: dict[str, Any] | None = None
    status: int = 200


EXAMPLES: dict[str, Example] = {
    "ListRules": Example("GET", "rules"),
    "GetNamespacePolicy": Example("GET", "namespaces/ws/policy"),
    "SetNamespacePolicy": Example("PUT", "namespaces/ws/policy", {"values": {"cleanup": "on"}}),
    "DeleteNamespacePolicy": Example("DELETE", "namespaces/ws/policy", status=204),
    "GetTablePolicy": Example("GET", "tables/ws$t/policy"),
    "SetTablePolicy": Example("PUT", "tables/ws$t/policy", {"values": {"cleanup": "on"}}),
    "DeleteTablePolicy": Example("DELETE", "tables/ws$t/policy", status=204),
    "ListNamespaceGrants": Example("GET", "namespaces/ws/grants"),
    "SetNamespaceGrant": Example(
        "PUT", "namespaces/ws/grants", {"principal": "known", "privileges": ["grant"]}
    ),
    "DeleteNamespaceGrant": Example("DELETE", "namespaces/ws/grants?principal=known", status=204),
    "ExplainNamespaceAccess": Example("GET", "namespaces/ws/access"),
    "WhatIfNamespaceGrant": Example("POST", "namespaces/ws/access/what-if", {"principal": "known"}),
    "ListTableGrants": Example("GET", "tables/ws$t/grants"),
    "SetTableGrant": Example(
        "PUT", "tables/ws$t/grants", {"principal": "known", "privileges": ["grant"]}
    ),
    "DeleteTableGrant": Example("DELETE", "tables/ws$t/grants?principal=known", status=204),
    "ExplainTableAccess": Example("GET", "tables/ws$t/access"),
    "WhatIfTableGrant": Example("POST", "tables/ws$t/access/what-if", {"principal": "known"}),
    "GetNamespaceProtection": Example("GET", "namespaces/ws/protection"),
    "SetNamespaceProtection": Example("PUT", "namespaces/ws/protection", {"protected": True}),
    "GetTableProtection": Example("GET", "tables/ws$t/protection"),
    "SetTableProtection": Example("PUT", "tables/ws$t/protection", {"protected": True}),
    "GetRetention": Example("GET", "namespaces/ws/retention"),
    "SetRetention": Example("PUT", "namespaces/ws/retention", {"seconds": 3600}),
    "GetApprovalRule": Example("GET", "namespaces/ws/approval-rule"),
    "SetApprovalRule": Example("PUT", "namespaces/ws/approval-rule", {"actions": ["purge"]}),
    "ListTrash": Example("GET", "trash"),
    "GetTrashItem": Example("GET", "trash/DROPPED"),
    "UndropTrashItem": Example("POST", "trash/DROPPED/undrop", {"new": ["ws", "back"]}),
    "PurgeTrashItem": Example("POST", "trash/DROPPED/purge", {"reason": "old"}, 202),
    "KeepTrashItem": Example("POST", "trash/DROPPED/keep"),
    "ListApprovals": Example("GET", "approvals"),
    "GetApproval": Example("GET", "approvals/ASKED"),
    "ApproveRequest": Example("POST", "approvals/ASKED/approve", {}),
    "RefuseRequest": Example("POST", "approvals/ASKED/refuse", {"reason": "no"}),
    "WithdrawRequest": Example("POST", "approvals/OWN/withdraw"),
    "ListHealth": Example("GET", "health"),
    "GetTableHealth": Example("GET", "tables/ws$t/health"),
    "MeasureTable": Example("POST", "tables/ws$t/measure"),
    "PlanMaintenance": Example("POST", "tables/ws$t/plan"),
    "DetachDependents": Example("POST", "tables/ws$t/dependents/detach", {"dry_run": True}),
    "RepairTable": Example("POST", "tables/ws$t/repair", {"dry_run": True}),
    "PlanRegistrations": Example(
        "POST", "registrations/plan", {"location": "moved", "namespace": ["ws"]}
    ),
    "RegisterStoredTables": Example(
        "POST",
        "registrations",
        {"tables": [{"format": "lance", "table": ["ws", "moved"], "location": "moved"}]},
    ),
    "StartMaintenance": Example("POST", "tables/ws$t/maintenance", {"kind": "compact"}, 202),
    "ListJobs": Example("GET", "jobs"),
    "GetJob": Example("GET", "jobs/WAITS"),
    "CancelJob": Example("POST", "jobs/WAITS/cancel"),
    "RetryJob": Example("POST", "jobs/FAILED/retry", status=202),
    "GetSignOn": Example("GET", "sign-on"),
    "GetSummary": Example("GET", "summary"),
    "GetHistory": Example("GET", "history?at=2026-01-01T00:00:00Z"),
    "ListChanges": Example("GET", "history/changes?from=2026-01-01&to=2026-01-02"),
    "CountChanges": Example("GET", "history/counts?from=2026-01-01&to=2026-01-02"),
    "GetNamespaceAnnotations": Example("GET", "namespaces/ws/annotations"),
    "UpdateNamespaceAnnotations": Example(
        "PATCH", "namespaces/ws/annotations", {"description": "x"}
    ),
    "GetTableAnnotations": Example("GET", "tables/ws$t/annotations"),
    "GetTableDependents": Example("GET", "tables/ws$t/dependents"),
    "GetTableLineage": Example("GET", "tables/ws$t/lineage"),
    "GetTableColumnLineage": Example("GET", "tables/ws$t/lineage/columns"),
    "UpdateTableAnnotations": Example(
        "PATCH", "tables/ws$t/annotations", {"labels": {"known": ["a"]}}
    ),
    "ListLabels": Example("GET", "labels"),
    "CreateLabel": Example("POST", "labels", {"key": "another"}, 201),
    "GetLabel": Example("GET", "labels/known"),
    "UpdateLabel": Example("PATCH", "labels/known", {"colour": "red"}),
    "DeleteLabel": Example("DELETE", "labels/known", status=204),
    "Search": Example("GET", "search?q=known"),
    "ListPrincipals": Example("GET", "principals"),
    "CreatePrincipal": Example("POST", "principals", {"name": "etl", "kind": "service"}, 201),
    "GetPrincipal": Example("GET", "principals/group:known"),
    "UpdatePrincipal": Example("PATCH", "principals/group:known", {"description": "new"}),
    "ListMembers": Example("GET", "principals/group:known/members"),
    "AddMember": Example("PUT", "principals/group:known/members/known", status=204),
    "RemoveMember": Example("DELETE", "principals/group:known/members/known", status=204),
    "ListKeys": Example("GET", "keys"),
    "CreateKey": Example("POST", "keys", {"principal": "known", "name": "another"}, 201),
    "GetKey": Example("GET", "keys/known"),
    "RotateKey": Example("POST", "keys/known/rotate", {"overlap_seconds": 60}, 201),
    "RevokeKey": Example("POST", "keys/known/revoke"),
    "GetGovernance": Example("GET", "governance"),
    "PlanGovernance": Example(
        "POST", "governance/plan", {"version": 1, "labels": [{"key": "new"}]}
    ),
    "ApplyGovernance": Example("PUT", "governance", {"version": 1, "labels": [{"key": "new"}]}),
    "ListEvents": Example("GET", "events?after=0-0"),
    "StreamEvents": Example("GET", "events/stream?after=0-0"),
    "ListWebhooks": Example("GET", "webhooks"),
    "CreateWebhook": Example(
        "POST", "webhooks", {"name": "another", "url": "https://example.com/hook"}, 201
    ),
    "GetWebhook": Example("GET", "webhooks/known"),
    "UpdateWebhook": Example("PATCH", "webhooks/known", {"types": ["table.*"]}),
    "DeleteWebhook": Example("DELETE", "webhooks/known", status=204),
    "RotateWebhookSecret": Example("POST", "webhooks/known/rotate"),
    "ListDeliveries": Example("GET", "webhooks/known/deliveries?status=dead"),
    "ReplayWebhook": Example("POST", "webhooks/known/replay", {"dead": True}),
    "ListStorageProfiles": Example("GET", "storage-profiles"),
    "CreateStorageProfile": Example(
        "POST",
        "storage-profiles",
        {"name": "another", "kind": "s3", "roots": ["s3://another/root"], "region": "eu-central-1"},
        201,
    ),
    "GetStorageProfile": Example("GET", "storage-profiles/known"),
    "UpdateStorageProfile": Example("PATCH", "storage-profiles/known", {"region": "eu-west-1"}),
    "DeleteStorageProfile": Example("DELETE", "storage-profiles/known", status=204),
    "PreviewStorageProfile": Example(
        "POST", "storage-profiles/known/preview", {"roots": ["s3://known/new"]}
    ),
    "TestStorageProfile": Example("POST", "storage-profiles/known/test", status=202),
    "ListStorageTests": Example("GET", "storage-profiles/known/tests"),
    "GetStorageTest": Example("GET", "storage-profiles/known/tests/TESTED"),
    "RotateStorageProfileKey": Example(
        "POST", "storage-profiles/known/rotate", {"id": "AKIANEW", "secret": "a-new-secret"}
    ),
    "GetNamespaceStorageProfile": Example("GET", "namespaces/ws/storage-profile"),
    "SetNamespaceStorageProfile": Example(
        "PUT", "namespaces/ws/storage-profile", {"profile": "known"}
    ),
    "DeleteNamespaceStorageProfile": Example("DELETE", "namespaces/ws/storage-profile", status=204),
    "ListEngineProfiles": Example("GET", "engine-profiles"),
    "CreateEngineProfile": Example(
        "POST", "engine-profiles", {"name": "another", "kind": "local", "cores": 4}, 201
    ),
    "GetEngineProfile": Example("GET", "engine-profiles/known"),
    "UpdateEngineProfile": Example("PATCH", "engine-profiles/known", {"memory": "2g"}),
    "DeleteEngineProfile": Example("DELETE", "engine-profiles/known", status=204),
    "ListAudit": Example("GET", "audit?limit=2"),
    "ExportAudit": Example("GET", "audit/export?format=jsonl"),
}


def make_catalog() -> dict[str, int]:
    """Table ``ws.t`` with policies, measurements, a failed job and a queued job."""
    return recall("management", _make_catalog)


def _make_catalog() -> dict[str, int]:
    make_root()
    make_lance_table(("ws", "t"))
    annotations.create_label(actor=SYSTEM, key="known")
    webhooks.create_webhook(actor=SYSTEM, name="known", url="https://example.com/known")
    profiles.create_profile(actor=SYSTEM, name="known", kind=EngineKind.LOCAL)
    profile = profile_operations.create_profile(
        actor=SYSTEM,
        name="known",
        kind=StoreKind.S3,
        roots=["s3://known/root"],
        region="eu-central-1",
        identity=ServerIdentity.KEY,
        key=Key("AKIAKNOWN", "a-known-secret"),
    )
    tested = StorageTest.objects.create(
        profile=profile, profile_version=1, status=StorageTestStatus.PASSED
    )
    policies.set_namespace_policy(actor=SYSTEM, namespace=("ws",), values={"keep_versions": 5})
    policies.set_table_policy(actor=SYSTEM, table=("ws", "t"), values={"keep_versions": 6})
    measurements.measure(actor=SYSTEM, table=("ws", "t"))
    failed = maintenance_scheduler.start(actor=SYSTEM, table=("ws", "t"), kind="compact")
    taken = jobs.take(failed.pk)
    assert taken is not None
    jobs.finish(taken, JobStatus.FAILED, "no good")
    waits = maintenance_scheduler.start(actor=SYSTEM, table=("ws", "t"), kind="clean_up")
    assert Job.objects.count() == 2
    api_keys.create_api_key(actor=SYSTEM, name="known", level=PrincipalLevel.GRANTED)
    principals.create_principal(actor=SYSTEM, name="group:known", kind=PrincipalKind.GROUP)
    return {"FAILED": failed.pk, "WAITS": waits.pk, "TESTED": tested.pk, **_make_trash()}


def _make_trash() -> dict[str, int]:
    """A deregistered table, and two approval requests."""
    make_table("ws", "gone")
    commit([table_operations.DeregisterTable(table=("ws", "gone"))], actor=SYSTEM)
    make_namespace("guarded")
    undrop.set_namespace_protection(actor=SYSTEM, namespace=("guarded",), is_protected=True)
    undrop.set_approval_rule(actor=SYSTEM, namespace=("guarded",), actions=["drop_protected"])
    requests = []
    for actor in (SYSTEM, Principal("tester", Privilege.ALL)):
        with suppress(ApprovalRequired):
            commit([namespace_operations.DropNamespace(namespace=("guarded",))], actor=actor)
        requests.append(ApprovalRequest.objects.latest("pk").pk)
    return {"DROPPED": TrashItem.objects.get().pk, "ASKED": requests[0], "OWN": requests[1]}


def spell(path: str, substitutes: dict[str, int]) -> str:
    for name, pk in substitutes.items():
        path = path.replace(name, str(pk))
    return path
