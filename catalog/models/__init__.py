"""The tables of the catalog. Only ``catalog.services`` changes rows."""

from catalog.models.access import (
    ApiKey,
    Grant,
    GrantVersion,
    Principal,
    PrincipalKind,
    PrincipalLevel,
)
from catalog.models.annotations import (
    Facts,
    LabelAssignment,
    LabelColour,
    LabelDefinition,
    LabelTarget,
    SearchCursor,
    SearchDocument,
    SearchWord,
    Sensitivity,
)
from catalog.models.audit import AuditEvent
from catalog.models.engine_profiles import EngineProfile
from catalog.models.events import DeliveryStatus, Webhook, WebhookDelivery
from catalog.models.files import FileReference, FreeDirectory, UnreadSnapshot
from catalog.models.iceberg import (
    Function,
    IcebergMetadata,
    IcebergPath,
    IdempotencyRecord,
    MetricsReport,
    ScanPlan,
    StagedFile,
    ViewQuery,
    ViewSource,
)
from catalog.models.maintenance import (
    Engine,
    Job,
    JobEvent,
    JobKind,
    JobStatus,
    MaintenancePolicy,
    RemainingFiles,
    TableColumnUse,
    TableHealth,
    TableUse,
    job_kinds,
)
from catalog.models.materialized_views import MaterializedView
from catalog.models.namespaces import Namespace
from catalog.models.processes import Heartbeat, ProcessRole
from catalog.models.protection import (
    ApprovalRequest,
    ApprovalStatus,
    GuardedAction,
    TrashItem,
    TrashState,
)
from catalog.models.refs import Branch
from catalog.models.storage import StagedLocation, StorageProfile
from catalog.models.storage_tests import StorageTest, StorageTestStatus
from catalog.models.summaries import (
    TableSummary,
    TableSummaryCursor,
    TableTerms,
    TableTermsCursor,
)
from catalog.models.tables import Table, TableFormat, TableKind, TableState
from catalog.models.transactions import Transaction, TransactionStatus
from catalog.models.versions import LedgerCheck, TableVersion

__all__ = [
    "ApiKey",
    "ApprovalRequest",
    "ApprovalStatus",
    "AuditEvent",
    "Branch",
    "DeliveryStatus",
    "Engine",
    "EngineProfile",
    "Facts",
    "FileReference",
    "FreeDirectory",
    "Function",
    "Grant",
    "GrantVersion",
    "GuardedAction",
    "Heartbeat",
    "IcebergMetadata",
    "IcebergPath",
    "IdempotencyRecord",
    "Job",
    "JobEvent",
    "JobKind",
    "JobStatus",
    "LabelAssignment",
    "LabelColour",
    "LabelDefinition",
    "LabelTarget",
    "LedgerCheck",
    "MaintenancePolicy",
    "MaterializedView",
    "MetricsReport",
    "Namespace",
    "Principal",
    "PrincipalKind",
    "PrincipalLevel",
    "ProcessRole",
    "RemainingFiles",
    "ScanPlan",
    "SearchCursor",
    "SearchDocument",
    "SearchWord",
    "Sensitivity",
    "StagedFile",
    "StagedLocation",
    "StorageProfile",
    "StorageTest",
    "StorageTestStatus",
    "Table",
    "TableColumnUse",
    "TableFormat",
    "TableHealth",
    "TableKind",
    "TableState",
    "TableSummary",
    "TableSummaryCursor",
    "TableTerms",
    "TableTermsCursor",
    "TableUse",
    "TableVersion",
    "Transaction",
    "TransactionStatus",
    "TrashItem",
    "TrashState",
    "UnreadSnapshot",
    "ViewQuery",
    "ViewSource",
    "Webhook",
    "WebhookDelivery",
    "job_kinds",
]
