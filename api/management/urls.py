"""The routes of the management API.

``{id}`` is a namespace or a table as the Lance protocol spells it: its names, joined by ``$`` or the
parameter ``delimiter``, percent-encoded. Names may contain slashes, and the server receives decoded
paths; each route has one word after the name, so that each path has one reading.
"""

from api.management.routers import ResourceRouter, SingletonRouter
from api.management.views import (
    annotations,
    approvals,
    audit,
    events,
    governance,
    grants,
    health,
    history,
    jobs,
    labels,
    policies,
    principals,
    protection,
    recovery,
    registrations,
    search,
    storage,
    webhooks,
)

# Any character: a line break is for the identifier to refuse, not for the router.
_NAMESPACE = r"namespaces/(?P<id>[\s\S]+)"
_TABLE = r"tables/(?P<id>[\s\S]+)"
_MEMBERS = r"principals/(?P<principal>[^/]+)/members"
_MEMBER = rf"{_MEMBERS}/(?P<member>[^/]+)"

_resources = ResourceRouter()
_singletons = SingletonRouter()
for _router, _prefix, _viewset in (
    (_resources, "rules", policies.RuleViewSet),
    (_singletons, f"{_NAMESPACE}/policy", policies.NamespacePolicyViewSet),
    (_singletons, f"{_TABLE}/policy", policies.TablePolicyViewSet),
    (_singletons, f"{_NAMESPACE}/grants", grants.NamespaceGrantViewSet),
    (_singletons, f"{_TABLE}/grants", grants.TableGrantViewSet),
    (_singletons, f"{_NAMESPACE}/access", grants.NamespaceAccessViewSet),
    (_singletons, f"{_TABLE}/access", grants.TableAccessViewSet),
    (_singletons, f"{_NAMESPACE}/protection", protection.NamespaceProtectionViewSet),
    (_singletons, f"{_TABLE}/protection", protection.TableProtectionViewSet),
    (_singletons, f"{_NAMESPACE}/retention", protection.RetentionViewSet),
    (_singletons, f"{_NAMESPACE}/approval-rule", protection.ApprovalRuleViewSet),
    (_resources, "storage-profiles", storage.StorageProfileViewSet),
    (_resources, r"storage-profiles/(?P<profile>[^/]+)/tests", storage.StorageTestViewSet),
    (_singletons, f"{_NAMESPACE}/storage-profile", storage.NamespaceStorageViewSet),
    (_resources, "engine-profiles", policies.EngineProfileViewSet),
    (_resources, "trash", recovery.TrashViewSet),
    (_resources, "approvals", approvals.ApprovalViewSet),
    (_resources, "health", health.HealthViewSet),
    (_singletons, f"{_TABLE}/health", health.TableHealthViewSet),
    (_singletons, f"{_TABLE}/measure", health.MeasurementViewSet),
    (_singletons, f"{_TABLE}/plan", health.PlanViewSet),
    (_singletons, f"{_TABLE}/repair", recovery.RepairViewSet),
    (_singletons, f"{_TABLE}/maintenance", jobs.MaintenanceViewSet),
    (_singletons, "registrations", registrations.RegistrationViewSet),
    (_resources, "jobs", jobs.JobViewSet),
    (_singletons, "summary", jobs.SummaryViewSet),
    (_singletons, "history", history.HistoryViewSet),
    (_singletons, f"{_NAMESPACE}/annotations", annotations.NamespaceAnnotationsViewSet),
    (_singletons, f"{_TABLE}/annotations", annotations.TableAnnotationsViewSet),
    (_singletons, f"{_TABLE}/dependents", annotations.DependentsViewSet),
    (_singletons, f"{_TABLE}/dependents/detach", annotations.DetachmentViewSet),
    (_singletons, f"{_TABLE}/lineage", annotations.LineageViewSet),
    (_singletons, f"{_TABLE}/lineage/columns", annotations.ColumnLineageViewSet),
    (_resources, "labels", labels.LabelViewSet),
    (_singletons, "search", search.SearchViewSet),
    (_singletons, "governance", governance.GovernanceViewSet),
    (_singletons, "events", events.EventViewSet),
    (_resources, "webhooks", webhooks.WebhookViewSet),
    (_resources, r"webhooks/(?P<webhook>[^/]+)/deliveries", webhooks.DeliveryViewSet),
    (_resources, "audit", audit.AuditViewSet),
    (_resources, "principals", principals.PrincipalViewSet),
    (_singletons, _MEMBERS, principals.MembersViewSet),
    (_singletons, _MEMBER, principals.MemberViewSet),
    (_resources, "keys", principals.KeyViewSet),
    (_singletons, "sign-on", principals.SignOnViewSet),
):
    _router.register(_prefix, _viewset, basename=_viewset.__name__)

urlpatterns = [*_resources.urls, *_singletons.urls]
