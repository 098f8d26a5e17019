"""The operation that sets a grant."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from catalog import access
from catalog.access import On
from catalog.errors import PermissionDenied, PrincipalNotFound
from catalog.identifiers import Identifier, check_table, label
from catalog.models import Grant, Namespace, Principal, Table
from catalog.privileges import NOTHING, Privilege, closure, essence, words
from catalog.services.engine.batch import Batch
from catalog.services.engine.operation import Operation


@dataclass(frozen=True, kw_only=True)
class SetGrant(Operation):
    """Replace a principal's grant on a namespace or a table by these privileges and those they include.

    Without privileges the grant is revoked. The result is the new grant. Requires GRANT on the
    target, and every privilege that is granted or revoked. Privileges from other sources stay.
    """

    name = "SetGrant"
    action = "grant.set"

    on: On
    principal: str
    privileges: Privilege

    def prepare(self) -> "SetGrant":
        if self.on.is_table:
            check_table(self.on.identifier)
        return replace(self, privileges=closure(self.privileges))

    def namespaces(self) -> Iterable[Identifier]:
        return () if self.on.is_table else (self.on.identifier,)

    def tables(self) -> Iterable[Identifier]:
        return (self.on.identifier,) if self.on.is_table else ()

    def apply(self, batch: Batch) -> Privilege:
        # Checked by name, before the rows are read: the refusal must not reveal whether they exist.
        access.require(batch.actor, Privilege.GRANT, self.on)
        batch.flush()
        namespace, table = self._rows(batch)
        principal = Principal.objects.filter(name=self.principal.replace("\x00", "")).first()
        if principal is None:
            raise PrincipalNotFound(self.principal)
        of_this = Grant.objects.filter(principal=principal, namespace=namespace, table=table)
        before = Privilege(of_this.values_list("mask", flat=True).first() or NOTHING)
        after = self.privileges
        if after == before:
            return after
        self._require_held(batch, table or namespace, before ^ after)
        if not after:
            of_this.delete()
        else:
            Grant.objects.update_or_create(
                principal=principal,
                namespace=namespace,
                table=table,
                defaults={"mask": after.value, "granted_by": batch.actor.name},
            )
        batch.record(
            label(self.on.identifier),
            table=table,
            before={"principal": principal.name, "privileges": words(before)},
            after={"principal": principal.name, "privileges": words(after)},
        )
        return after

    def _rows(self, batch: Batch) -> tuple[Namespace | None, Table | None]:
        if self.on.is_table:
            return None, batch.table(self.on.identifier)
        return batch.namespace(self.on.identifier), None

    def _require_held(
        self, batch: Batch, row: Namespace | Table | None, changed: Privilege
    ) -> None:
        if row is None or batch.actor.holds_everywhere(Privilege.ALL):
            return
        lacking = changed & ~access.held_on(batch.actor, row)
        if lacking:
            raise PermissionDenied(
                f"'{batch.actor.name}' does not hold {', '.join(essence(lacking))} on"
                f" '{label(self.on.identifier)}', so it can neither grant nor revoke it"
            )
