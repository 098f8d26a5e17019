"""The requirements and updates of a commit, for the OpenAPI document.

The parsers are in ``catalog.formats.iceberg``; a test compares them with these models. They also accept
names in upper case and those of older clients, which are not described.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from api.iceberg.messages import TableIdentifier


def _hyphenated(name: str) -> str:
    return name.replace("_", "-")


class Described(BaseModel):
    model_config = ConfigDict(alias_generator=_hyphenated)


Id = Annotated[int, Field(ge=0, le=2**31 - 1)]
SnapshotId = Annotated[int, Field(ge=0, le=2**63 - 1, json_schema_extra={"format": "int64"})]
Uuid = Annotated[str, Field(json_schema_extra={"format": "uuid"})]
Specified = dict[str, Any]
"""An object of the table specification."""


# -- updates of tables and views


class AssignUUIDUpdate(Described):
    """Name the UUID of a new table. The UUID of an existing one cannot change."""

    action: Literal["assign-uuid"]
    uuid: Uuid


class UpgradeFormatVersionUpdate(Described):
    """Use a later version of the format."""

    action: Literal["upgrade-format-version"]
    format_version: int


class AddSchemaUpdate(Described):
    """Add a schema. An equal one is used again; else the server assigns the id."""

    action: Literal["add-schema"]
    added: Specified = Field(alias="schema")
    last_column_id: Id | None = Field(None, deprecated=True)


class SetLocationUpdate(Described):
    """Set the location of new files."""

    action: Literal["set-location"]
    location: str = Field(min_length=1)


class SetPropertiesUpdate(Described):
    """Set properties. Others stay."""

    action: Literal["set-properties"]
    updates: dict[str, str]


class RemovePropertiesUpdate(Described):
    """Remove properties, by their names."""

    action: Literal["remove-properties"]
    removals: list[str]


# -- updates of tables


class SetCurrentSchemaUpdate(Described):
    """Make a schema the current one."""

    action: Literal["set-current-schema"]
    schema_id: int = Field(ge=-1, description="-1: the schema that this commit added last.")


class AddPartitionSpecUpdate(Described):
    """Add a partition spec. An equal one is used again; else the server assigns the id."""

    action: Literal["add-spec"]
    spec: Specified


class SetDefaultSpecUpdate(Described):
    """Make a partition spec the default one."""

    action: Literal["set-default-spec"]
    spec_id: int = Field(ge=-1, description="-1: the spec that this commit added last.")


class AddSortOrderUpdate(Described):
    """Add a sort order. An equal one is used again; else the server assigns the id."""

    action: Literal["add-sort-order"]
    sort_order: Specified


class SetDefaultSortOrderUpdate(Described):
    """Make a sort order the default one."""

    action: Literal["set-default-sort-order"]
    sort_order_id: int = Field(ge=-1, description="-1: the order that this commit added last.")


class AddSnapshotUpdate(Described):
    """Add a snapshot. No branch names it until a reference is set."""

    action: Literal["add-snapshot"]
    snapshot: Specified


class SetSnapshotRefUpdate(Described):
    """Create or move a branch or a tag."""

    action: Literal["set-snapshot-ref"]
    ref_name: str = Field(min_length=1)
    type: Literal["branch", "tag"]
    snapshot_id: SnapshotId
    max_ref_age_ms: Annotated[int, Field(ge=1)] | None = None
    max_snapshot_age_ms: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Of branches."
    )
    min_snapshots_to_keep: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Of branches."
    )


class RemoveSnapshotsUpdate(Described):
    """Remove snapshots with their references and statistics."""

    action: Literal["remove-snapshots"]
    snapshot_ids: list[SnapshotId]


class RemoveSnapshotRefUpdate(Described):
    """Remove a branch or a tag."""

    action: Literal["remove-snapshot-ref"]
    ref_name: str = Field(min_length=1)


class SetStatisticsUpdate(Described):
    """Set the statistics file of a snapshot."""

    action: Literal["set-statistics"]
    statistics: Specified
    snapshot_id: SnapshotId | None = Field(None, deprecated=True)


class RemoveStatisticsUpdate(Described):
    """Remove the statistics file of a snapshot."""

    action: Literal["remove-statistics"]
    snapshot_id: SnapshotId


class SetPartitionStatisticsUpdate(Described):
    """Set the partition statistics file of a snapshot."""

    action: Literal["set-partition-statistics"]
    partition_statistics: Specified


class RemovePartitionStatisticsUpdate(Described):
    """Remove the partition statistics file of a snapshot."""

    action: Literal["remove-partition-statistics"]
    snapshot_id: SnapshotId


class RemovePartitionSpecsUpdate(Described):
    """Remove partition specs other than the default one."""

    action: Literal["remove-partition-specs"]
    spec_ids: list[Id]


class RemoveSchemasUpdate(Described):
    """Remove schemas other than the current one."""

    action: Literal["remove-schemas"]
    schema_ids: list[Id]


class AddEncryptionKeyUpdate(Described):
    """Add an encryption key, from version 3 of the format."""

    action: Literal["add-encryption-key"]
    encryption_key: Specified


class RemoveEncryptionKeyUpdate(Described):
    """Remove an encryption key."""

    action: Literal["remove-encryption-key"]
    key_id: str


class TableUpdate(
    RootModel[
        Annotated[
            AssignUUIDUpdate
            | UpgradeFormatVersionUpdate
            | AddSchemaUpdate
            | SetCurrentSchemaUpdate
            | AddPartitionSpecUpdate
            | SetDefaultSpecUpdate
            | AddSortOrderUpdate
            | SetDefaultSortOrderUpdate
            | AddSnapshotUpdate
            | SetSnapshotRefUpdate
            | RemoveSnapshotsUpdate
            | RemoveSnapshotRefUpdate
            | SetLocationUpdate
            | SetPropertiesUpdate
            | RemovePropertiesUpdate
            | SetStatisticsUpdate
            | RemoveStatisticsUpdate
            | SetPartitionStatisticsUpdate
            | RemovePartitionStatisticsUpdate
            | RemovePartitionSpecsUpdate
            | RemoveSchemasUpdate
            | AddEncryptionKeyUpdate
            | RemoveEncryptionKeyUpdate,
            Field(discriminator="action"),
        ]
    ]
):
    """One change of a table's metadata. The updates of a commit are applied in their order."""


# -- updates of views


class AddViewVersionUpdate(Described):
    """Add a version. An equal one is used again; else the server assigns the id."""

    action: Literal["add-view-version"]
    view_version: Specified


class SetCurrentViewVersionUpdate(Described):
    """Make a version the current one."""

    action: Literal["set-current-view-version"]
    view_version_id: int = Field(ge=-1, description="-1: the version that this commit added last.")


class ViewUpdate(
    RootModel[
        Annotated[
            AssignUUIDUpdate
            | UpgradeFormatVersionUpdate
            | AddSchemaUpdate
            | SetLocationUpdate
            | SetPropertiesUpdate
            | RemovePropertiesUpdate
            | AddViewVersionUpdate
            | SetCurrentViewVersionUpdate,
            Field(discriminator="action"),
        ]
    ]
):
    """One change of a view's metadata. The updates of a commit are applied in their order."""


# -- requirements


class AssertCreate(Described):
    """The table does not exist."""

    type: Literal["assert-create"]


class AssertTableUUID(Described):
    type: Literal["assert-table-uuid"]
    uuid: Uuid


class AssertRefSnapshotId(Described):
    """A branch or a tag names this snapshot."""

    type: Literal["assert-ref-snapshot-id"]
    ref: str = Field(min_length=1)
    snapshot_id: SnapshotId | None = Field(
        None, description="Null or absent: the branch or tag does not exist."
    )


class AssertLastAssignedFieldId(Described):
    type: Literal["assert-last-assigned-field-id"]
    last_assigned_field_id: int


class AssertCurrentSchemaId(Described):
    type: Literal["assert-current-schema-id"]
    current_schema_id: int


class AssertLastAssignedPartitionId(Described):
    type: Literal["assert-last-assigned-partition-id"]
    last_assigned_partition_id: int


class AssertDefaultSpecId(Described):
    type: Literal["assert-default-spec-id"]
    default_spec_id: int


class AssertDefaultSortOrderId(Described):
    type: Literal["assert-default-sort-order-id"]
    default_sort_order_id: int


class TableRequirement(
    RootModel[
        Annotated[
            AssertCreate
            | AssertTableUUID
            | AssertRefSnapshotId
            | AssertLastAssignedFieldId
            | AssertCurrentSchemaId
            | AssertLastAssignedPartitionId
            | AssertDefaultSpecId
            | AssertDefaultSortOrderId,
            Field(discriminator="type"),
        ]
    ]
):
    """What must hold on the current metadata. Otherwise the answer is 409, and nothing changes."""


class AssertViewUUID(Described):
    type: Literal["assert-view-uuid"]
    uuid: Uuid


class ViewRequirement(RootModel[AssertViewUUID]):
    """What must hold on the current metadata. Otherwise the answer is 409, and nothing changes."""


# -- requests


class CommitTableRequest(Described):
    identifier: TableIdentifier | None = Field(
        None, description="The table. Required in a transaction; otherwise the path names it."
    )
    requirements: list[TableRequirement]
    updates: list[TableUpdate]


class CommitViewRequest(Described):
    identifier: TableIdentifier | None = Field(
        None, description="The view, which the path names as well."
    )
    requirements: list[ViewRequirement] | None = None
    updates: list[ViewUpdate]


class CommitTransactionRequest(Described):
    table_changes: list[CommitTableRequest]


REQUESTS: dict[str, type[Described]] = {
    model.__name__: model
    for model in (CommitTableRequest, CommitViewRequest, CommitTransactionRequest)
}
