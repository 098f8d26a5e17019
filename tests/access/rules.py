"""The privilege that each operation of each protocol requires, and its target.

Every operation needs a rule, or a test fails. The rule is in this module or, for the Lance protocol,
may be in the example of the operation's tests.

The examples of the operations concern namespace ``ws`` and its content. The tests grant privileges on
``ws``, or on the root or the table if the rule has that target.
"""

from dataclasses import dataclass
from enum import Enum

from catalog.privileges import SINGLE, Privilege, closure


class Target(Enum):
    ROOT = "the root"
    NAMESPACE = "the namespace"
    TABLE = "the table, or the view"
    CATALOG = "the whole catalog: no grant suffices"
    NOTHING = "no object: every authenticated principal may send it"
    APPROVAL = "the namespace of the object that an approval request concerns"
    REQUESTER = (
        "the same namespace, but only the requester may send it, whatever privileges others hold"
    )


class HiddenAnswer(Enum):
    """Answer to a principal that may not browse the target."""

    MISSING = 404
    """The same answer as for a missing object."""
    REFUSED = 403
    """The existence of the target is not secret."""
    EMPTY = 200
    """The same answer as for an empty list."""
    SAME = "200 too"
    """The same answer as for other principals."""


@dataclass(frozen=True)
class Rule:
    target: Target
    needs: Privilege = Privilege.BROWSE
    when_hidden: HiddenAnswer = HiddenAnswer.MISSING
    or_needs: Privilege | None = None
    """An alternative privilege that also suffices."""

    def suffices(self, privilege: Privilege) -> bool:
        if self.target is Target.NOTHING:
            return True
        if self.target in {Target.CATALOG, Target.REQUESTER}:
            return False
        held = closure(privilege)
        return self.needs in held or (self.or_needs is not None and self.or_needs in held)

    @property
    def sufficing(self) -> list[Privilege]:
        return [privilege for privilege in SINGLE if self.suffices(privilege)]


P = Privilege
_namespace, _table = Target.NAMESPACE, Target.TABLE
BROWSE_NAMESPACE, CREATE = Rule(_namespace, P.BROWSE), Rule(_namespace, P.CREATE)
MANAGE_NAMESPACE, MAINTAIN_NAMESPACE = Rule(_namespace, P.MANAGE), Rule(_namespace, P.MAINTAIN)
BROWSE, READ, WRITE = Rule(_table, P.BROWSE), Rule(_table, P.READ), Rule(_table, P.WRITE)
MANAGE, MAINTAIN = Rule(_table, P.MANAGE), Rule(_table, P.MAINTAIN)
GRANT, GRANT_NAMESPACE = Rule(_table, P.GRANT), Rule(_namespace, P.GRANT)
SEE_GRANTS = Rule(_table, P.GRANT, or_needs=P.MANAGE)
SEE_GRANTS_NAMESPACE = Rule(_namespace, P.GRANT, or_needs=P.MANAGE)
CREATE_IN_ROOT = Rule(Target.ROOT, P.CREATE, HiddenAnswer.REFUSED)
ADMIN = Rule(Target.CATALOG, P.ALL, HiddenAnswer.REFUSED)
OWN = Rule(Target.CATALOG, P.ALL)
"""Objects hidden from other principals."""
FILTERED = Rule(Target.NOTHING, when_hidden=HiddenAnswer.EMPTY)
"""A list of the objects that the principal may browse."""
ANYBODY = Rule(Target.NOTHING, when_hidden=HiddenAnswer.SAME)
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
WITHOUT_SIGN_IN = {"getToken", "GetSignOn"}
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
    "DetachDependents": MANAGE,
    "StartMaintenance": MAINTAIN,
    "ListJobs": FILTERED,
    "GetJob": BROWSE,
    "CancelJob": MAINTAIN,
    "RetryJob": MAINTAIN,
    "GetSummary": Rule(Target.CATALOG, P.READ, HiddenAnswer.REFUSED),
    "ListPrincipals": ADMIN,
    "CreatePrincipal": ADMIN,
    "GetPrincipal": ADMIN,
    "UpdatePrincipal": ADMIN,
    "ListMembers": ADMIN,
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
    "GetTableLineage": BROWSE,
    "GetTableColumnLineage": READ,
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
    "GetApproval": Rule(Target.APPROVAL, P.BROWSE),
    "ApproveRequest": Rule(Target.APPROVAL, P.MANAGE),
    "RefuseRequest": Rule(Target.APPROVAL, P.MANAGE),
    "WithdrawRequest": Rule(Target.REQUESTER),
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
    "TestStorageProfile": ADMIN,
    "ListStorageTests": ADMIN,
    "GetStorageTest": ADMIN,
    "GetNamespaceStorageProfile": Rule(_namespace, P.READ),
    "SetNamespaceStorageProfile": ADMIN,
    "DeleteNamespaceStorageProfile": ADMIN,
    "ListEngineProfiles": ADMIN,
    "CreateEngineProfile": ADMIN,
    "GetEngineProfile": ADMIN,
    "UpdateEngineProfile": ADMIN,
    "DeleteEngineProfile": ADMIN,
    "ListWebhooks": ADMIN,
    "CreateWebhook": ADMIN,
    "GetWebhook": ADMIN,
    "UpdateWebhook": ADMIN,
    "DeleteWebhook": ADMIN,
    "RotateWebhookSecret": ADMIN,
    "ListDeliveries": ADMIN,
    "ReplayWebhook": ADMIN,
    "GetGovernance": ADMIN,
    "PlanRegistrations": Rule(Target.CATALOG, P.MANAGE, HiddenAnswer.REFUSED),
    "RegisterStoredTables": Rule(Target.CATALOG, P.MANAGE, HiddenAnswer.REFUSED),
    "PlanGovernance": ADMIN,
    "ApplyGovernance": ADMIN,
}

LISTS_OF_WS = {
    *("ListAllTables", "ListHealth", "ListJobs", "ListTrash", "Search"),
    *("GetHistory", "ListChanges", "ListEvents", "StreamEvents"),
}
"""Lists that name namespace ``ws`` or its content, for principals that may browse it."""
