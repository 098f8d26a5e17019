"""The web admin: one module per noun. It reads rows, and changes them through the services alone."""

from catalog.admin import (
    api_keys,
    audit,
    functions,
    jobs,
    maintenance,
    materialized_views,
    namespaces,
    people,
    schedules,
    tables,
    transactions,
)

__all__ = [
    "api_keys",
    "audit",
    "functions",
    "jobs",
    "maintenance",
    "materialized_views",
    "namespaces",
    "people",
    "schedules",
    "tables",
    "transactions",
]
