"""Serializers of protection, the trash, approvals and the repair of tables."""

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from api.management import fields
from api.management.serializers.base import QuerySerializer, Serializer
from catalog.identifiers import label
from catalog.models import (
    ApprovalRequest,
    ApprovalStatus,
    GuardedAction,
    Job,
    Namespace,
    Table,
    TableFormat,
    TrashItem,
    TrashState,
)
from catalog.services.access import grant_operations
from catalog.services.governance import access_requests
from catalog.services.recovery.undrop import NamespaceRules
from catalog.services.storage.file_references import Dependents

_REASON = "For the approver. The audit trail records it."


# --- protection and rules --------------------------------------------------------------------------


class SetProtectionSerializer(Serializer):
    """The protection to set."""

    protected = fields.FlagField()
    reason = fields.TextField(default="", help_text=_REASON)
    dry_run = fields.DryRunField()


class ProtectionSerializer(Serializer):
    """Whether the object is protected from being dropped or overwritten."""

    protected = serializers.BooleanField(source="is_protected")


class SetRetentionSerializer(Serializer):
    """The retention time to set."""

    seconds = fields.WholeNumberField(
        allow_null=True, help_text="Null: inherited. 0: dropped objects are purged at once."
    )


class RetentionSerializer(Serializer):
    """How long dropped objects of a namespace, and of those below it, can be undropped."""

    direct = serializers.IntegerField(
        source="namespace.retention_seconds",
        allow_null=True,
        help_text="The time set on this namespace, in seconds. Null: it is inherited.",
    )
    seconds = serializers.IntegerField(
        source="rules.seconds", help_text="The effective time in seconds."
    )
    source = serializers.CharField(  # type: ignore[assignment]
        source="rules.retention_source", help_text="The namespace that sets it. Empty: the default."
    )


class SetApprovalRuleSerializer(Serializer):
    """The actions that are to require approval."""

    actions = fields.ListField(help_text=f"Some of {', '.join(GuardedAction.values)}.")
    reason = fields.TextField(default="", help_text=_REASON)


class ApprovalRuleSerializer(Serializer):
    """The actions that require approval in a namespace and below it."""

    direct = serializers.ListField(
        child=fields.EnumField(GuardedAction),
        source="namespace.guarded",
        help_text="The actions set on this namespace.",
    )
    effective = serializers.SerializerMethodField(
        help_text="The effective actions, each with the highest namespace that sets it."
    )

    def get_effective(self, rules: NamespaceRules) -> dict[str, str]:
        return {str(action): label(source) for action, source in rules.rules.guarded.items()}


# --- the trash -------------------------------------------------------------------------------------


class DependentsSerializer(Serializer):
    """Tables that refer to files of a table."""

    tables = serializers.ListField(
        child=fields.NamesField(),
        source="visible",
        help_text="The first 100 that the caller may browse.",
    )
    others = serializers.IntegerField(
        help_text="The number of the others. Those that the caller may not browse count only if it may maintain"
        " the table."
    )


class TrashItemSerializer(Serializer):
    """A dropped object. The context has ``readable``, the numbers of tables that the caller may read,
    and ``dependents`` by these numbers."""

    id = serializers.IntegerField(source="pk")
    kind = serializers.CharField(help_text="namespace, table or view.")
    name = fields.NamesField(source="target.identifier", help_text="Its name when it was dropped.")
    format = fields.EnumField(TableFormat, source="table.format", allow_null=True)
    location = serializers.SerializerMethodField(
        help_text="Null for namespaces, and if the caller may not read the table."
    )
    state = fields.EnumField(TrashState)
    dropped_by = serializers.CharField()
    dropped_at = serializers.DateTimeField()
    purge_at = serializers.DateTimeField(
        allow_null=True, help_text="Null: it is kept until it is purged on request."
    )
    bytes = serializers.SerializerMethodField(
        help_text="The last measured size. Null: not measured."
    )
    job = serializers.IntegerField(
        source="job_id", allow_null=True, help_text="The job that purges it."
    )
    dependents = serializers.SerializerMethodField(
        help_text="Tables that refer to its files, which stay as long as they do. Empty if the caller"
        " may not read the table."
    )
    transaction_id = serializers.UUIDField(
        allow_null=True,
        help_text="The drop. Undropping a namespace restores all objects of the same drop.",
    )

    def get_location(self, row: TrashItem) -> str | None:
        table = row.table
        return table.location if table and table.pk in self.context["readable"] else None

    def get_bytes(self, row: TrashItem) -> int | None:
        return getattr(row, "size", None)

    @extend_schema_field(DependentsSerializer)
    def get_dependents(self, row: TrashItem) -> Mapping[str, Any]:
        dependents = self.context["dependents"].get(row.table_id or 0, Dependents())
        return DependentsSerializer(dependents).data


class TrashQuery(QuerySerializer):
    """Filters of the trash."""

    namespace = fields.TextParameter(
        help_text="Only this namespace and everything below it; spelled as in a path."
    )
    dropped_by = fields.TextParameter(help_text="The name of a principal.")


class UndropSerializer(Serializer):
    """How to undrop an object."""

    new = fields.ListField(
        **fields.OPTIONAL, help_text="Another name, from the root down. Null: its old name."
    )
    with_parents = fields.FlagField(
        default=False,
        help_text="Whether dropped namespaces above the object are restored too, without their other content.",
    )
    without_purged = fields.FlagField(
        default=False, help_text="For a namespace: whether purged tables are left out."
    )
    dry_run = fields.DryRunField()


class UndroppedSerializer(Serializer):
    """The restored object."""

    kind = serializers.SerializerMethodField(help_text="namespace, table or view.")
    name = fields.NamesField(source="identifier")

    def get_kind(self, row: Namespace | Table) -> str:
        return "namespace" if isinstance(row, Namespace) else row.kind


class PurgeSerializer(Serializer):
    """Why to purge an object."""

    reason = fields.TextField(default="", help_text=_REASON)


class PurgeJobsSerializer(Serializer):
    """The jobs that purge an object, one per table. They can be stopped until ``begins_at``."""

    jobs = serializers.SerializerMethodField()
    begins_at = serializers.SerializerMethodField()

    def get_jobs(self, rows: list[Job]) -> list[int]:
        return [row.pk for row in rows]

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_begins_at(self, rows: list[Job]) -> Any:
        return min((row.lease_until for row in rows if row.lease_until), default=None)


# --- approvals -------------------------------------------------------------------------------------


class ApprovalSerializer(Serializer):
    """A request for approval."""

    id = serializers.IntegerField(source="pk")
    action = serializers.CharField()
    target = serializers.CharField()
    namespace = serializers.SerializerMethodField(
        help_text="Principals that may manage this namespace decide."
    )
    operation = serializers.DictField()
    reason = serializers.CharField()
    requester = serializers.CharField()
    status = serializers.SerializerMethodField()
    decided_by = serializers.CharField()
    decision_reason = serializers.CharField()
    transaction_id = serializers.UUIDField(allow_null=True)
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    decided_at = serializers.DateTimeField(allow_null=True)

    @extend_schema_field(fields.NamesField())
    def get_namespace(self, row: ApprovalRequest) -> list[str]:
        # Of a request for access, the requested one: it does not reveal which namespaces exist.
        requested = access_requests.requested_namespace(row)
        return list(row.namespace.path if requested is None else requested)

    @extend_schema_field(fields.EnumField(ApprovalStatus))
    def get_status(self, row: ApprovalRequest) -> str:
        return ApprovalStatus.EXPIRED if row.is_expired else row.status


class ApprovalQuery(QuerySerializer):
    """Filters of approval requests."""

    status = fields.EnumParameter(ApprovalStatus, help_text="Only requests in this state.")
    waiting_for_me = fields.FlagParameter(
        default=False, help_text="Only requests that the caller may decide now."
    )


class ApproveSerializer(Serializer):
    """Why a request is approved, and for how long."""

    reason = fields.TextField(default="")
    days = fields.WholeNumberField(
        **fields.OPTIONAL,
        min_value=1,
        max_value=grant_operations.MAX_DAYS,
        help_text="Of a request for access: the days until the access ends. Null: as requested.",
    )


class RefuseSerializer(Serializer):
    """Why a request is refused."""

    reason = fields.TextField(help_text="The requester can read it.")


# --- repair ----------------------------------------------------------------------------------------


class RepairTableSerializer(Serializer):
    """How to repair a table."""

    dry_run = fields.FlagField(default=False, help_text="Report only; change nothing.")


class BranchReportSerializer(Serializer):
    """A branch in the ledger of a Lance table, compared with its storage."""

    branch = serializers.CharField(help_text="Empty: main.")
    newest = serializers.IntegerField(
        allow_null=True, help_text="The newest version in the ledger."
    )
    fault = serializers.CharField(help_text="Why it needs repair. Empty: it needs none.")
    last_complete = serializers.IntegerField(
        allow_null=True, help_text="The newest version whose files all exist."
    )
    missing = serializers.ListField(
        child=serializers.IntegerField(), help_text="Versions in the ledger without a manifest."
    )
    unlisted = serializers.ListField(
        child=serializers.IntegerField(),
        help_text="Versions in storage that are newer than the newest in the ledger.",
    )


class RepairReportSerializer(Serializer):
    """The state of a Lance table, and what the repair did."""

    branches = BranchReportSerializer(many=True)
    published = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="The version that was published, or would be, by branch.",
    )
    dry_run = serializers.BooleanField(source="is_dry_run")
    transaction_id = serializers.UUIDField(allow_null=True)
