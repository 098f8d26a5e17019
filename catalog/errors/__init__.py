"""The errors of the catalog, as one tree. Classes carry facts, never a status code.

This package re-exports every class: import them from ``catalog.errors``. Its modules are the
families: ``base``, ``inputs``, ``not_found``, ``conflicts``, ``access``, ``availability``.

    CatalogError
    ├── InvalidInput                the request is malformed
    │   ├── InvalidIdentifier
    │   ├── InvalidLocation
    │   ├── ForeignFile             a file that does not belong to the table
    │   ├── InvalidManifestPath
    │   ├── InvalidTransactionState
    │   ├── InvalidJobState
    │   ├── InvalidApprovalState
    │   ├── InvalidMetadata
    │   ├── SchemaMismatch          data does not have the table's schema
    │   ├── DataTooLarge            more than this server takes in one request
    │   └── ContradictoryInput      well-formed, but contradicts itself
    ├── Unsupported                 this server does not support the request
    ├── NotFound
    │   ├── NamespaceNotFound
    │   ├── TableNotFound
    │   ├── VersionNotFound
    │   ├── ManifestNotFound        a version, stored or being created, has no manifest file
    │   ├── BranchNotFound
    │   ├── TagNotFound
    │   ├── ColumnNotFound
    │   ├── IndexNotFound
    │   ├── TransactionNotFound
    │   ├── JobNotFound
    │   ├── WarehouseNotFound
    │   ├── ViewNotFound
    │   ├── FunctionNotFound
    │   ├── LabelNotFound
    │   ├── WebhookNotFound
    │   ├── StorageProfileNotFound
    │   ├── EngineProfileNotFound
    │   ├── StorageTestNotFound
    │   ├── PrincipalNotFound
    │   ├── KeyNotFound
    │   ├── TrashItemNotFound
    │   ├── ApprovalNotFound
    │   ├── PlanNotFound
    │   └── PlanTaskNotFound
    ├── Conflict                    the present state does not allow the change
    │   ├── NamespaceAlreadyExists
    │   ├── NamespaceNotEmpty
    │   ├── TableAlreadyExists
    │   ├── ViewAlreadyExists
    │   ├── CannotRename            the new name is taken
    │   ├── FunctionAlreadyExists
    │   ├── LabelAlreadyExists
    │   ├── LabelInUse
    │   ├── StorageProfileAlreadyExists
    │   ├── StorageProfileInUse     tables or namespaces need it as it is
    │   ├── EngineProfileAlreadyExists
    │   ├── EngineProfileInUse      policies or jobs need it
    │   ├── PrincipalAlreadyExists
    │   ├── LastAdministrator       the change would leave no administrator
    │   ├── VersionAlreadyExists
    │   ├── TagAlreadyExists
    │   ├── BranchAlreadyExists
    │   ├── IndexAlreadyExists
    │   ├── PropertyAlreadySet
    │   ├── LocationTaken
    │   ├── NotRecoverable          the data is removed, or is being removed
    │   ├── ApprovalOutdated        the target changed since the approval was requested
    │   ├── RequirementFailed
    │   └── CommitConflict          concurrent commits won every attempt; nothing changed
    ├── InvalidTableState
    │   ├── CredentialsRefused      nobody gets credentials for the table
    │   └── TableHasNoData          the table is declared and has no version yet
    ├── Unauthenticated
    │   └── TokenExpired            the token was valid before; request another
    ├── PermissionDenied
    ├── Protected                   a protection flag must be cleared first
    ├── ApprovalRequired            a second person must approve the change
    ├── TooManyAttempts             too many wrong credentials; wait
    ├── ServiceUnavailable          try again later; nothing changed
    │   └── Busy                    a lock is held, or too many requests wait for it
    └── OutcomeUnknown              the commit was sent, and its answer was lost

Each protocol maps these classes in its own ``errors.py``; nothing else knows a status code. The
messages are those of the admin and the management API. Iceberg and Lance replace the messages that
their clients match, each in its own ``wording.py``.
"""

from catalog.errors.access import (
    ApprovalRequired,
    PermissionDenied,
    Protected,
    TokenExpired,
    TooManyAttempts,
    Unauthenticated,
)
from catalog.errors.availability import Busy, OutcomeUnknown, ServiceUnavailable
from catalog.errors.base import CatalogError, Identifier, Name, label
from catalog.errors.conflicts import (
    ApprovalOutdated,
    BranchAlreadyExists,
    CannotRename,
    CommitConflict,
    Conflict,
    CredentialsRefused,
    EngineProfileAlreadyExists,
    EngineProfileInUse,
    FunctionAlreadyExists,
    IndexAlreadyExists,
    InvalidTableState,
    LabelAlreadyExists,
    LabelInUse,
    LastAdministrator,
    LocationTaken,
    NamespaceAlreadyExists,
    NamespaceNotEmpty,
    NotRecoverable,
    PrincipalAlreadyExists,
    PropertyAlreadySet,
    RequirementFailed,
    StorageProfileAlreadyExists,
    StorageProfileInUse,
    TableAlreadyExists,
    TableHasNoData,
    TagAlreadyExists,
    VersionAlreadyExists,
    ViewAlreadyExists,
)
from catalog.errors.inputs import (
    ContradictoryInput,
    DataTooLarge,
    ForeignFile,
    InvalidApprovalState,
    InvalidIdentifier,
    InvalidInput,
    InvalidJobState,
    InvalidLocation,
    InvalidManifestPath,
    InvalidMetadata,
    InvalidTransactionState,
    LocationFault,
    SchemaMismatch,
    Unsupported,
)
from catalog.errors.not_found import (
    ApprovalNotFound,
    BranchNotFound,
    ColumnNotFound,
    EngineProfileNotFound,
    FunctionNotFound,
    IndexNotFound,
    JobNotFound,
    KeyNotFound,
    LabelNotFound,
    ManifestNotFound,
    NamespaceNotFound,
    NotFound,
    PlanNotFound,
    PlanTaskNotFound,
    PrincipalNotFound,
    StorageProfileNotFound,
    StorageTestNotFound,
    TableNotFound,
    TagNotFound,
    TransactionNotFound,
    TrashItemNotFound,
    VersionNotFound,
    ViewNotFound,
    WarehouseNotFound,
    WebhookNotFound,
)

__all__ = [
    "ApprovalNotFound",
    "ApprovalOutdated",
    "ApprovalRequired",
    "BranchAlreadyExists",
    "BranchNotFound",
    "Busy",
    "CannotRename",
    "CatalogError",
    "ColumnNotFound",
    "CommitConflict",
    "Conflict",
    "ContradictoryInput",
    "CredentialsRefused",
    "DataTooLarge",
    "EngineProfileAlreadyExists",
    "EngineProfileInUse",
    "EngineProfileNotFound",
    "ForeignFile",
    "FunctionAlreadyExists",
    "FunctionNotFound",
    "Identifier",
    "IndexAlreadyExists",
    "IndexNotFound",
    "InvalidApprovalState",
    "InvalidIdentifier",
    "InvalidInput",
    "InvalidJobState",
    "InvalidLocation",
    "InvalidManifestPath",
    "InvalidMetadata",
    "InvalidTableState",
    "InvalidTransactionState",
    "JobNotFound",
    "KeyNotFound",
    "LabelAlreadyExists",
    "LabelInUse",
    "LabelNotFound",
    "LastAdministrator",
    "LocationFault",
    "LocationTaken",
    "ManifestNotFound",
    "Name",
    "NamespaceAlreadyExists",
    "NamespaceNotEmpty",
    "NamespaceNotFound",
    "NotFound",
    "NotRecoverable",
    "OutcomeUnknown",
    "PermissionDenied",
    "PlanNotFound",
    "PlanTaskNotFound",
    "PrincipalAlreadyExists",
    "PrincipalNotFound",
    "PropertyAlreadySet",
    "Protected",
    "RequirementFailed",
    "SchemaMismatch",
    "ServiceUnavailable",
    "StorageProfileAlreadyExists",
    "StorageProfileInUse",
    "StorageProfileNotFound",
    "StorageTestNotFound",
    "TableAlreadyExists",
    "TableHasNoData",
    "TableNotFound",
    "TagAlreadyExists",
    "TagNotFound",
    "TokenExpired",
    "TooManyAttempts",
    "TransactionNotFound",
    "TrashItemNotFound",
    "Unauthenticated",
    "Unsupported",
    "VersionAlreadyExists",
    "VersionNotFound",
    "ViewAlreadyExists",
    "ViewNotFound",
    "WarehouseNotFound",
    "WebhookNotFound",
    "label",
]
