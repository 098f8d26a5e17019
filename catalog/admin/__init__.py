"""The web admin, in packages by concern. It reads rows, and changes them through the services."""

from catalog.admin import list_parts
from catalog.admin.access import api_keys, principals, sessions, users
from catalog.admin.audit import trail as audit_trail
from catalog.admin.engine import transactions
from catalog.admin.events import webhooks
from catalog.admin.governance import approvals, labels
from catalog.admin.iceberg import functions
from catalog.admin.lance import materialized_views
from catalog.admin.maintenance import engine_profiles, jobs, schedules
from catalog.admin.maintenance import overview as maintenance_overview
from catalog.admin.recovery import trash
from catalog.admin.storage import profiles as storage_profiles
from catalog.admin.tables import namespaces, tables

__all__ = [
    "api_keys",
    "approvals",
    "audit_trail",
    "engine_profiles",
    "functions",
    "jobs",
    "labels",
    "maintenance_overview",
    "materialized_views",
    "namespaces",
    "principals",
    "schedules",
    "sessions",
    "storage_profiles",
    "tables",
    "transactions",
    "trash",
    "users",
    "webhooks",
]

list_parts.compute_once()
