"""The operations that the commit engine applies, one module per noun."""

from catalog.services.operations.namespaces import (
    CreateMode,
    CreateNamespace,
    DropNamespace,
    PropertyChanges,
    UpdateNamespaceProperties,
)
from catalog.services.operations.tables import (
    DeclareTable,
    DeregisterTable,
    DropTable,
    RegisterTable,
    RenameTable,
)
from catalog.services.operations.versions import CreateVersion, DeleteVersions

__all__ = [
    "CreateMode",
    "CreateNamespace",
    "CreateVersion",
    "DeclareTable",
    "DeleteVersions",
    "DeregisterTable",
    "DropNamespace",
    "DropTable",
    "PropertyChanges",
    "RegisterTable",
    "RenameTable",
    "UpdateNamespaceProperties",
]
