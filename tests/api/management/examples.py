"""A request of every operation that succeeds, and the catalog that it needs."""

from dataclasses import dataclass
from typing import Any

from catalog.models import Job, JobKind, JobStatus
from catalog.services import jobs, policies, upkeep
from catalog.services.access import SYSTEM
from tests.factories import make_lance_table, make_root


@dataclass(frozen=True)
class Example:
    method: str
    path: str
    """``WAITS`` and ``FAILED`` in it are the jobs of the catalog."""
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
    "ListHealth": Example("GET", "health"),
    "GetTableHealth": Example("GET", "tables/ws$t/health"),
    "MeasureTable": Example("POST", "tables/ws$t/measure"),
    "PlanMaintenance": Example("POST", "tables/ws$t/plan"),
    "StartMaintenance": Example("POST", "tables/ws$t/maintenance", {"kind": "compact"}, 202),
    "ListJobs": Example("GET", "jobs"),
    "GetJob": Example("GET", "jobs/WAITS"),
    "CancelJob": Example("POST", "jobs/WAITS/cancel"),
    "RetryJob": Example("POST", "jobs/FAILED/retry", status=202),
    "GetSummary": Example("GET", "summary"),
    "GetHistory": Example("GET", "history?at=2026-01-01T00:00:00Z"),
    "ListChanges": Example("GET", "history/changes?from=2026-01-01&to=2026-01-02"),
    "CountChanges": Example("GET", "history/counts?from=2026-01-01&to=2026-01-02"),
    "ListAudit": Example("GET", "audit?limit=2"),
    "ExportAudit": Example("GET", "audit/export?format=jsonl"),
}


def make_catalog() -> dict[str, int]:
    """Table ``ws.t`` with policies, figures, a job that failed and one that waits."""
    make_root()
    make_lance_table(("ws", "t"))
    policies.set_namespace_policy(actor=SYSTEM, namespace=("ws",), values={"keep_versions": 5})
    policies.set_table_policy(actor=SYSTEM, table=("ws", "t"), values={"keep_versions": 6})
    upkeep.measure(actor=SYSTEM, table=("ws", "t"))
    failed = upkeep.start(actor=SYSTEM, table=("ws", "t"), kind=JobKind.COMPACT)
    taken = jobs.take(failed.pk)
    assert taken is not None
    jobs.finish(taken, JobStatus.FAILED, "no good")
    waits = upkeep.start(actor=SYSTEM, table=("ws", "t"), kind=JobKind.CLEAN_UP)
    assert Job.objects.count() == 2
    return {"FAILED": failed.pk, "WAITS": waits.pk}


def spell(path: str, known: dict[str, int]) -> str:
    for name, pk in known.items():
        path = path.replace(name, str(pk))
    return path
