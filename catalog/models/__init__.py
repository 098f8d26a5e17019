"""The tables of the catalog. Rows are changed by catalog.services alone."""

from catalog.models.access import ApiKey
from catalog.models.audit import AuditEvent
from catalog.models.iceberg import (
    Function,
    IcebergMetadata,
    IcebergPath,
    IdempotencyRecord,
    MetricsReport,
    ScanPlan,
    StagedFile,
)
from catalog.models.maintenance import Job, JobKind, JobStatus
from catalog.models.materialized_views import MaterializedView
from catalog.models.namespaces import Namespace
from catalog.models.refs import Branch
from catalog.models.tables import Table, TableFormat, TableKind, TableState
from catalog.models.transactions import Transaction, TransactionStatus
from catalog.models.upkeep import JobEvent, MaintenancePolicy, TableHealth
from catalog.models.versions import TableVersion

__all__ = [
    "ApiKey",
    "AuditEvent",
    "Branch",
    "Function",
    "IcebergMetadata",
    "IcebergPath",
    "IdempotencyRecord",
    "Job",
    "JobEvent",
    "JobKind",
    "JobStatus",
    "MaintenancePolicy",
    "MaterializedView",
    "MetricsReport",
    "Namespace",
    "ScanPlan",
    "StagedFile",
    "Table",
    "TableFormat",
    "TableHealth",
    "TableKind",
    "TableState",
    "TableVersion",
    "Transaction",
    "TransactionStatus",
]
