"""Operations that set protection, retention and approval rules."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from catalog import access
from catalog.errors import InvalidInput
from catalog.identifiers import Identifier, label
from catalog.models import GuardedAction, Namespace, Table
from catalog.privileges import Privilege
from catalog.services.engine.batch import Batch
from catalog.services.engine.operation import Operation
from catalog.services.tables import trash
from catalog.services.tables.approval_gate import GatedOperation


@dataclass(frozen=True, kw_only=True)
class SetProtection(GatedOperation):
    """Protect or unprotect a namespace, table or view. The result is its row.

    Raises NamespaceNotFound, TableNotFound, PermissionDenied, and ApprovalRequired if a rule
    requires an approval to unprotect the namespace.
    """

    name = "SetProtection"
    action = "protection.set"

    identifier: Identifier
    is_namespace: bool
    is_protected: bool

    def namespaces(self) -> Iterable[Identifier]:
        return (self.identifier,) if self.is_namespace else ()

    def tables(self) -> Iterable[Identifier]:
        return () if self.is_namespace else (self.identifier,)

    def apply(self, batch: Batch) -> Namespace | Table:
        row: Namespace | Table
        if self.is_namespace:
            row = batch.namespace(self.identifier)
            access.require(batch.actor, Privilege.MANAGE, row)
            if row.is_protected > self.is_protected or self.approved_for is not None:
                self.require_approval(
                    batch,
                    action=GuardedAction.DROP_PROTECTED,
                    description="unprotecting namespace",
                    target=row.identifier,
                    namespace=row,
                    state={"namespace": row.pk, "is_protected": row.is_protected},
                )
        else:
            row = batch.table(self.identifier)
            access.require(batch.actor, Privilege.MANAGE, row)
        if row.is_protected == self.is_protected:
            return row
        batch.flush()
        row.is_protected = self.is_protected
        row.save(update_fields=["is_protected", "updated_at"])
        batch.record(
            label(self.identifier),
            table=row if isinstance(row, Table) else None,
            before={"is_protected": not self.is_protected},
            after={"is_protected": self.is_protected},
        )
        return row


@dataclass(frozen=True, kw_only=True)
class SetRetention(Operation):
    """Set the retention of objects dropped in a namespace and below. The result is its row.

    ``seconds`` None inherits the retention from above, 0 disables recovery. Objects that are
    already in the trash keep their retention.
    """

    name = "SetRetention"
    action = "retention.set"

    namespace: Identifier
    seconds: int | None

    def prepare(self) -> "SetRetention":
        if self.seconds is not None and not 0 <= self.seconds <= trash.MAX_SECONDS:
            raise InvalidInput(
                f"The retention is {self.seconds} seconds; use 0 to {trash.MAX_SECONDS}"
            )
        return self

    def namespaces(self) -> Iterable[Identifier]:
        return (self.namespace,)

    def apply(self, batch: Batch) -> Namespace:
        row = batch.namespace(self.namespace)
        access.require(batch.actor, Privilege.MANAGE, row)
        before = row.retention_seconds
        if before != self.seconds:
            batch.flush()
            row.retention_seconds = self.seconds
            row.save(update_fields=["retention_seconds", "updated_at"])
            batch.record(
                str(row),
                before={"retention_seconds": before},
                after={"retention_seconds": self.seconds},
            )
        return row


@dataclass(frozen=True, kw_only=True)
class SetApprovalRule(GatedOperation):
    """Set the actions that need an approval in a namespace and below. The result is its row.

    The rules of the namespaces above apply as well. Weakening a rule itself needs an approval;
    otherwise a single person could remove the rule first.
    """

    name = "SetApprovalRule"
    action = "approval_rule.set"

    namespace: Identifier
    actions: Sequence[str]

    def prepare(self) -> "SetApprovalRule":
        unknown = sorted(set(self.actions) - set(GuardedAction.values))
        if unknown:
            allowed = ", ".join(GuardedAction.values)
            raise InvalidInput(
                f"Action '{unknown[0]}' cannot require an approval; use one of {allowed}"
            )
        return replace(self, actions=tuple(sorted(set(self.actions))))

    def namespaces(self) -> Iterable[Identifier]:
        return (self.namespace,)

    def apply(self, batch: Batch) -> Namespace:
        row = batch.namespace(self.namespace)
        access.require(batch.actor, Privilege.MANAGE, row)
        before, after = sorted(row.guarded), list(self.actions)
        above = trash.rules([row.parent_id])[row.parent_id].guarded if row.parent_id else {}
        if set(before) - set(after) - set(above) or self.approved_for is not None:
            self.require_approval(
                batch,
                action=None,
                description="removing approval rules of namespace",
                target=row.identifier,
                namespace=row,
                state={"namespace": row.pk, "actions": before},
            )
        if after != before:
            batch.flush()
            row.guarded = after
            row.save(update_fields=["guarded", "updated_at"])
            batch.record(str(row), before={"guarded": before}, after={"guarded": after})
        return row
