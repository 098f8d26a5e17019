"""The web admin: one module per noun. It reads rows, and changes them through the services alone."""

from catalog.admin import (
    api_keys,
    approvals,
    audit,
    functions,
    jobs,
    labels,
    maintenance,
    materialized_views,
    namespaces,
    people,
    principals,
    schedules,
    tables,
    transactions,
    trash,
    webhooks,
)

__all__ = [
    "api_keys",
    "approvals",
    "audit",
    "functions",
    "jobs",
    "labels",
    "maintenance",
    "materialized_views",
    "namespaces",
    "people",
    "principals",
    "schedules",
    "tables",
    "transactions",
    "trash",
    "webhooks",
]
