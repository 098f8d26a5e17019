"""The routes of the management API.

``{id}`` is a namespace or a table as the Lance protocol spells it: its names, joined by ``$`` or
what ``?delimiter=`` says, percent-encoded. Names may hold slashes, and the server sees paths decoded;
each route has one word after the name, so that each path has one reading.
"""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, re_path

from api.management.operation import ManagementOperation
from api.management.views import (
    approvals,
    audit,
    events,
    facts,
    fallback,
    governance,
    grants,
    health,
    history,
    jobs,
    keys,
    labels,
    policies,
    principals,
    protection,
    repair,
    search,
    trash,
)

_GROUPS = {
    # Any character: a line break too is for the identifier to refuse, not for the router.
    "{id}": r"(?P<id>[\s\S]+)",
    "{job}": r"(?P<job>[^/]+)",
    "{label}": r"(?P<label>[^/]+)",
    "{item}": r"(?P<item>[^/]+)",
    "{approval}": r"(?P<approval>[^/]+)",
    # Their names hold no slash.
    "{principal}": r"(?P<principal>[^/]+)",
    "{member}": r"(?P<member>[^/]+)",
    "{key}": r"(?P<key>[^/]+)",
    "{webhook}": r"(?P<webhook>[^/]+)",
}

ROUTES: dict[str, dict[str, type[ManagementOperation]]] = {}
"""The operations by path and method, without ``/management/v1/``."""


def _route(template: str, *operations: type[ManagementOperation]) -> URLPattern:
    by_method = ROUTES[template] = {operation.verb: operation for operation in operations}
    pattern = template
    for name, group in _GROUPS.items():
        pattern = pattern.replace(name, group)
    return re_path(
        rf"^{pattern}$", _dispatcher(by_method), name="-".join(op.__name__ for op in operations)
    )


def _dispatcher(operations: dict[str, type[ManagementOperation]]) -> Callable[..., HttpResponse]:
    """The view of a path: the operation of the method, each request with an instance of its own."""
    allowed = ", ".join(operations)

    def view(request: HttpRequest, **path: str) -> HttpResponse:
        operation = operations.get(request.method or "")
        if operation is None:
            return fallback.WrongMethod(allowed=allowed).dispatch(request)
        return operation().dispatch(request, **path)

    view.csrf_exempt = True  # type: ignore[attr-defined]
    return view


urlpatterns = [
    _route("rules", policies.ListRules),
    _route(
        "namespaces/{id}/policy",
        policies.GetNamespacePolicy,
        policies.SetNamespacePolicy,
        policies.DeleteNamespacePolicy,
    ),
    _route(
        "tables/{id}/policy",
        policies.GetTablePolicy,
        policies.SetTablePolicy,
        policies.DeleteTablePolicy,
    ),
    _route(
        "namespaces/{id}/grants",
        grants.ListNamespaceGrants,
        grants.SetNamespaceGrant,
        grants.DeleteNamespaceGrant,
    ),
    _route("namespaces/{id}/access", grants.ExplainNamespaceAccess),
    _route("namespaces/{id}/access/what-if", grants.WhatIfNamespaceGrant),
    _route(
        "tables/{id}/grants",
        grants.ListTableGrants,
        grants.SetTableGrant,
        grants.DeleteTableGrant,
    ),
    _route("tables/{id}/access", grants.ExplainTableAccess),
    _route("tables/{id}/access/what-if", grants.WhatIfTableGrant),
    _route(
        "namespaces/{id}/protection",
        protection.GetNamespaceProtection,
        protection.SetNamespaceProtection,
    ),
    _route("tables/{id}/protection", protection.GetTableProtection, protection.SetTableProtection),
    _route("namespaces/{id}/retention", protection.GetRetention, protection.SetRetention),
    _route("namespaces/{id}/approval-rule", protection.GetApprovalRule, protection.SetApprovalRule),
    _route("trash", trash.ListTrash),
    _route("trash/{item}", trash.GetTrashItem),
    _route("trash/{item}/undrop", trash.UndropTrashItem),
    _route("trash/{item}/purge", trash.PurgeTrashItem),
    _route("trash/{item}/keep", trash.KeepTrashItem),
    _route("approvals", approvals.ListApprovals),
    _route("approvals/{approval}", approvals.GetApproval),
    _route("approvals/{approval}/approve", approvals.ApproveRequest),
    _route("approvals/{approval}/refuse", approvals.RefuseRequest),
    _route("approvals/{approval}/withdraw", approvals.WithdrawRequest),
    _route("health", health.ListHealth),
    _route("tables/{id}/health", health.GetTableHealth),
    _route("tables/{id}/measure", health.MeasureTable),
    _route("tables/{id}/plan", health.PlanMaintenance),
    _route("tables/{id}/repair", repair.RepairTable),
    _route("tables/{id}/maintenance", jobs.StartMaintenance),
    _route("jobs", jobs.ListJobs),
    _route("jobs/{job}", jobs.GetJob),
    _route("jobs/{job}/cancel", jobs.CancelJob),
    _route("jobs/{job}/retry", jobs.RetryJob),
    _route("summary", jobs.GetSummary),
    _route("history", history.GetHistory),
    _route("history/changes", history.ListChanges),
    _route("history/counts", history.CountChanges),
    _route("namespaces/{id}/facts", facts.GetNamespaceFacts, facts.UpdateNamespaceFacts),
    _route("tables/{id}/facts", facts.GetTableFacts, facts.UpdateTableFacts),
    _route("tables/{id}/dependents", facts.GetTableDependents),
    _route("labels", labels.ListLabels, labels.CreateLabel),
    _route("labels/{label}", labels.GetLabel, labels.UpdateLabel, labels.DeleteLabel),
    _route("search", search.Search),
    _route("governance", governance.GetGovernance, governance.ApplyGovernance),
    _route("governance/plan", governance.PlanGovernance),
    _route("events", events.ListEvents),
    _route("events/stream", events.StreamEvents),
    _route("webhooks", events.ListWebhooks, events.CreateWebhook),
    _route("webhooks/{webhook}", events.GetWebhook, events.UpdateWebhook, events.DeleteWebhook),
    _route("webhooks/{webhook}/rotate", events.RotateWebhookSecret),
    _route("webhooks/{webhook}/deliveries", events.ListDeliveries),
    _route("webhooks/{webhook}/replay", events.ReplayWebhook),
    _route("audit", audit.ListAudit),
    _route("audit/export", audit.ExportAudit),
    _route("principals", principals.ListPrincipals, principals.CreatePrincipal),
    _route("principals/{principal}", principals.GetPrincipal, principals.UpdatePrincipal),
    _route(
        "principals/{principal}/members/{member}", principals.AddMember, principals.RemoveMember
    ),
    _route("keys", keys.ListKeys, keys.CreateKey),
    _route("keys/{key}", keys.GetKey),
    _route("keys/{key}/rotate", keys.RotateKey),
    _route("keys/{key}/revoke", keys.RevokeKey),
]
