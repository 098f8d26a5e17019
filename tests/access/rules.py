"""What each operation of each protocol takes, and on what. An operation without a rule fails the tests, so
whoever adds one says who may do it: here, or for the Lance protocol in the example of its tests.

The examples of the operations are about namespace ``ws`` and what is in it, and the privileges are
granted on ``ws``; where the rule says so, on the root, or on the table itself.
"""

from dataclasses import dataclass
from enum import Enum

from catalog.privileges import SINGLE, Privilege, closure


class Place(Enum):
    ROOT = "the root"
    NAMESPACE = "the namespace"
    TABLE = "the table, or the view"
    EVERYWHERE = "the whole catalog: no grant suffices"
    NOWHERE = "nothing: whoever is signed in"
    ASKED = "the namespace of what waits for a second person"
    ASKER = "the same: only who asked, whatever others hold there"


class Unseen(Enum):
    """Answer to a principal that may not browse the target."""

    MISSING = 404
    """The same answer as for a missing object."""
    REFUSED = 403
    """The existence of the target is not secret."""
    EMPTY = 200
    """The same answer as for an empty list."""
    SHOWN = "200 too"
    """The same as everybody else."""


@dataclass(frozen=True)
class Rule:
    target: Place
    needs: Privilege = Privilege.BROWSE
    unseen: Unseen = Unseen.MISSING
    or_needs: Privilege | None = None
    """An alternative privilege that also suffices."""

    def suffices(self, privilege: Privilege) -> bool:
        if self.target is Place.NOWHERE:
            return True
        if self.target in {Place.EVERYWHERE, Place.ASKER}:
            return False
        held = closure(privilege)
        return self.needs in held or (self.or_needs is not None and self.or_needs in held)

    @property
    def sufficing(self) -> list[Privilege]:
        return [privilege for privilege in SINGLE if self.suffices(privilege)]


P = Privilege
_namespace, _table = Place.NAMESPACE, Place.TABLE
BROWSE_NAMESPACE, CREATE = Rule(_namespace, P.BROWSE), Rule(_namespace, P.CREATE)
MANAGE_NAMESPACE, MAINTAIN_NAMESPACE = Rule(_namespace, P.MANAGE), Rule(_namespace, P.MAINTAIN)
BROWSE, READ, WRITE = Rule(_table, P.BROWSE), Rule(_table, P.READ), Rule(_table, P.WRITE)
MANAGE, MAINTAIN = Rule(_table, P.MANAGE), Rule(_table, P.MAINTAIN)
GRANT, GRANT_NAMESPACE = Rule(_table, P.GRANT), Rule(_namespace, P.GRANT)
SEE_GRANTS = Rule(_table, P.GRANT, or_needs=P.MANAGE)
SEE_GRANTS_NAMESPACE = Rule(_namespace, P.GRANT, or_needs=P.MANAGE)
CREATE_IN_ROOT = Rule(Place.ROOT, P.CREATE, Unseen.REFUSED)
ADMIN = Rule(Place.EVERYWHERE, P.ALL, Unseen.REFUSED)
OWN = Rule(Place.EVERYWHERE, P.ALL)
"""Objects hidden from other principals."""
FILTERED = Rule(Place.NOWHERE, unseen=Unseen.EMPTY)
"""A list of what may be browsed."""
ANYBODY = Rule(Place.NOWHERE, unseen=Unseen.SHOWN)
"""Operations that concern no object in the catalog."""

LANCE: dict[str, Rule] = {
    "CreateNamespace": CREATE_IN_ROOT,
    "ListNamespaces": BROWSE_NAMESPACE,
    "DescribeNamespace": BROWSE_NAMESPACE,
    "DropNamespace": MANAGE_NAMESPACE,
    "NamespaceExists": BROWSE_NAMESPACE,
    "ListTables": BROWSE_NAMESPACE,
    "ListAllTables": FILTERED,
    "DeclareTable": CREATE,
    "RegisterTable": CREATE,
    "CreateTable": CREATE,
    "DescribeTable": READ,
    "TableExists": BROWSE,
    "DropTable": MANAGE,
    "DeregisterTable": MANAGE,
    "RenameTable": Rule(_namespace, P.MANAGE),  # and CREATE in the new name's namespace
    "ListTableVersions": READ,
    "CreateTableVersion": WRITE,
    "DescribeTableVersion": READ,
    "BatchDeleteTableVersions": WRITE,
    "BatchCreateTableVersions": WRITE,
    "BatchCommitTables": MANAGE,  # its example deregisters a table
    "DescribeTransaction": READ,
    "AlterTransaction": WRITE,
    "InsertIntoTable": WRITE,
    "MergeInsertIntoTable": WRITE,
    "UpdateTable": WRITE,
    "DeleteFromTable": WRITE,
    "QueryTable": READ,
    "ExplainTableQueryPlan": READ,
    "AnalyzeTableQueryPlan": READ,
    "UpdateTableSchemaMetadata": WRITE,
    "UpdateFieldMetadata": WRITE,
    "AlterTableAddColumns": WRITE,
    "AlterTableAlterColumns": WRITE,
    "AlterTableDropColumns": WRITE,
    "AlterTableBackfillColumns": WRITE,
    "RestoreTable": WRITE,
    "CreateTableIndex": WRITE,
    "CreateTableScalarIndex": WRITE,
    "ListTableIndices": READ,
    "DescribeTableIndexStats": READ,
    "DropTableIndex": WRITE,
    "ListTableTags": READ,
    "GetTableTagVersion": READ,
    "CreateTableTag": WRITE,
    "DeleteTableTag": WRITE,
    "UpdateTableTag": WRITE,
    "ListTableBranches": READ,
    "CreateTableBranch": WRITE,
    "DeleteTableBranch": WRITE,
    "CreateMaterializedView": Rule(_namespace, P.MANAGE),  # CREATE, and READ of its source
    "RefreshMaterializedView": Rule(_namespace, P.WRITE),  # and READ of its source
}

ICEBERG: dict[str, Rule] = {
    "getConfig": BROWSE_NAMESPACE,
    "createNamespace": CREATE_IN_ROOT,
    "listNamespaces": BROWSE_NAMESPACE,
    "loadNamespaceMetadata": BROWSE_NAMESPACE,
    "namespaceExists": BROWSE_NAMESPACE,
    "dropNamespace": MANAGE_NAMESPACE,
    "updateProperties": MANAGE_NAMESPACE,
    "listTables": BROWSE_NAMESPACE,
    "createTable": CREATE,
    "registerTable": CREATE,
    "loadTable": READ,
    "tableExists": BROWSE,
    "updateTable": WRITE,
    "dropTable": MANAGE,
    "unregisterTable": MANAGE,
    "renameTable": Rule(_namespace, P.MANAGE),
    "loadCredentials": READ,
    "signRequest": READ,  # its example reads an object; other requests take WRITE
    "planTableScan": READ,
    "fetchPlanningResult": READ,
    "cancelPlanning": READ,
    "fetchScanTasks": READ,
    "reportMetrics": READ,
    "commitTransaction": WRITE,
    "listViews": BROWSE_NAMESPACE,
    "createView": CREATE,
    "registerView": CREATE,
    "loadView": READ,
    "viewExists": BROWSE,
    "replaceView": WRITE,
    "dropView": MANAGE,
    "renameView": Rule(_namespace, P.MANAGE),
    "listFunctions": BROWSE_NAMESPACE,
    "loadFunction": Rule(_namespace, P.READ),
}
WITHOUT_SIGN_IN = {"getToken"}
"""Operations used to sign in."""

MANAGEMENT: dict[str, Rule] = {
    "ListRules": ANYBODY,
    "GetNamespacePolicy": BROWSE_NAMESPACE,
    "SetNamespacePolicy": MAINTAIN_NAMESPACE,
    "DeleteNamespacePolicy": MAINTAIN_NAMESPACE,
    "GetTablePolicy": BROWSE,
    "SetTablePolicy": MAINTAIN,
    "DeleteTablePolicy": MAINTAIN,
    "ListNamespaceGrants": SEE_GRANTS_NAMESPACE,
    "SetNamespaceGrant": GRANT_NAMESPACE,
    "DeleteNamespaceGrant": GRANT_NAMESPACE,
    "ExplainNamespaceAccess": SEE_GRANTS_NAMESPACE,
    "WhatIfNamespaceGrant": SEE_GRANTS_NAMESPACE,
    "ListTableGrants": SEE_GRANTS,
    "SetTableGrant": GRANT,
    "DeleteTableGrant": GRANT,
    "ExplainTableAccess": SEE_GRANTS,
    "WhatIfTableGrant": SEE_GRANTS,
    "ListHealth": FILTERED,
    "GetTableHealth": BROWSE,
    "MeasureTable": MAINTAIN,
    "PlanMaintenance": Rule(_table, P.READ, or_needs=P.MAINTAIN),
    "RepairTable": MANAGE,
    "StartMaintenance": MAINTAIN,
    "ListJobs": FILTERED,
    "GetJob": BROWSE,
    "CancelJob": MAINTAIN,
    "RetryJob": MAINTAIN,
    "GetSummary": Rule(Place.EVERYWHERE, P.READ, Unseen.REFUSED),
    "ListPrincipals": ADMIN,
    "CreatePrincipal": ADMIN,
    "GetPrincipal": ADMIN,
    "UpdatePrincipal": ADMIN,
    "AddMember": ADMIN,
    "RemoveMember": ADMIN,
    "ListKeys": FILTERED,
    "CreateKey": ADMIN,
    "GetKey": OWN,
    "RotateKey": OWN,
    "RevokeKey": OWN,
    "ListAudit": ADMIN,
    "ExportAudit": ADMIN,
    "GetNamespaceAnnotations": BROWSE_NAMESPACE,
    "UpdateNamespaceAnnotations": MANAGE_NAMESPACE,
    "GetTableAnnotations": BROWSE,
    "GetTableDependents": READ,
    "UpdateTableAnnotations": MANAGE,  # the owner: holds all privileges there
    "ListLabels": ANYBODY,
    "GetLabel": ANYBODY,
    "CreateLabel": ADMIN,
    "UpdateLabel": ADMIN,
    "DeleteLabel": ADMIN,
    "Search": FILTERED,
    "GetNamespaceProtection": BROWSE_NAMESPACE,
    "SetNamespaceProtection": MANAGE_NAMESPACE,
    "GetTableProtection": BROWSE,
    "SetTableProtection": MANAGE,
    "GetRetention": BROWSE_NAMESPACE,
    "SetRetention": MANAGE_NAMESPACE,
    "GetApprovalRule": BROWSE_NAMESPACE,
    "SetApprovalRule": MANAGE_NAMESPACE,
    # Dropped objects belong to their former parents.
    "ListTrash": FILTERED,
    "GetTrashItem": BROWSE_NAMESPACE,
    "UndropTrashItem": MANAGE_NAMESPACE,  # and CREATE where it comes back
    "PurgeTrashItem": MANAGE_NAMESPACE,
    "KeepTrashItem": MANAGE_NAMESPACE,
    "ListApprovals": FILTERED,
    "GetApproval": Rule(Place.ASKED, P.BROWSE),
    "ApproveRequest": Rule(Place.ASKED, P.MANAGE),
    "RefuseRequest": Rule(Place.ASKED, P.MANAGE),
    "WithdrawRequest": Rule(Place.ASKER),
    "GetHistory": FILTERED,
    "ListChanges": FILTERED,
    "CountChanges": FILTERED,
    "ListEvents": FILTERED,
    "StreamEvents": FILTERED,
    "ListStorageProfiles": ADMIN,
    "CreateStorageProfile": ADMIN,
    "GetStorageProfile": ADMIN,
    "UpdateStorageProfile": ADMIN,
    "DeleteStorageProfile": ADMIN,
    "PreviewStorageProfile": ADMIN,
    "RotateStorageProfileKey": ADMIN,
    "GetNamespaceStorageProfile": Rule(_namespace, P.READ),
    "SetNamespaceStorageProfile": ADMIN,
    "DeleteNamespaceStorageProfile": ADMIN,
    "ListWebhooks": ADMIN,
    "CreateWebhook": ADMIN,
    "GetWebhook": ADMIN,
    "UpdateWebhook": ADMIN,
    "DeleteWebhook": ADMIN,
    "RotateWebhookSecret": ADMIN,
    "ListDeliveries": ADMIN,
    "ReplayWebhook": ADMIN,
    "GetGovernance": ADMIN,
    "PlanRegistrations": Rule(Place.EVERYWHERE, P.MANAGE, Unseen.REFUSED),
    "RegisterStoredTables": Rule(Place.EVERYWHERE, P.MANAGE, Unseen.REFUSED),
    "PlanGovernance": ADMIN,
    "ApplyGovernance": ADMIN,
}

TELLS_OF_WS = {
    *("ListAllTables", "ListHealth", "ListJobs", "ListTrash", "Search"),
    *("GetHistory", "ListChanges", "ListEvents", "StreamEvents"),
}
"""Lists that name namespace ``ws`` or its content, for principals that may browse it."""
