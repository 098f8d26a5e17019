"""The operation that sets a grant."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.utils import timezone

from catalog import access
from catalog.access import On
from catalog.errors import InvalidInput, PermissionDenied
from catalog.identifiers import Identifier, check_table, label
from catalog.models import Grant, Namespace, Principal, Table
from catalog.privileges import NOTHING, Privilege, closure, essence, words
from catalog.services.access import grant_expiry, similar_names
from catalog.services.engine.batch import Batch
from catalog.services.engine.operation import Operation

MAX_DAYS = 3650
"""The longest time of a grant whose end is given as a number of days."""


def require_days(days: int) -> None:
    """Raise InvalidInput unless a grant may last for this number of days."""
    if not 1 <= days <= MAX_DAYS:
        raise InvalidInput(f"Access is granted for 1 to {MAX_DAYS} days")


@dataclass(frozen=True, slots=True)
class GrantChange:
    """A grant after it was set."""

    principal: str
    target: Namespace | Table
    privileges: Privilege
    """The new grant."""
    withdrawn: Privilege
    """The privileges of the previous grant that it lacks."""
    expires_at: datetime | None
    """The end of the new grant; None: no end, or no grant."""


@dataclass(frozen=True, kw_only=True)
class SetGrant(Operation):
    """Replace a principal's grant on a namespace or a table by these privileges and those they include.

    Without privileges the grant is revoked. The result is a ``GrantChange``. Requires GRANT on the
    target, and every privilege that is granted or revoked, at least until the end of the grant. Privileges
    from other sources stay.
    """

    name = "SetGrant"
    action = "grant.set"

    on: On
    principal: str
    privileges: Privilege
    expires_at: datetime | None = None
    """The time from which the grant permits nothing; None: it does not expire."""

    def prepare(self) -> "SetGrant":
        if self.on.is_table:
            check_table(self.on.identifier)
        if self.expires_at is not None and self.expires_at <= timezone.now():
            end = self.expires_at.isoformat(timespec="seconds")
            raise InvalidInput(f"The end {end} of the grant is in the past: choose a later one")
        return replace(self, privileges=closure(self.privileges))

    def namespaces(self) -> Iterable[Identifier]:
        return () if self.on.is_table else (self.on.identifier,)

    def tables(self) -> Iterable[Identifier]:
        return (self.on.identifier,) if self.on.is_table else ()

    def apply(self, batch: Batch) -> GrantChange:
        # Checked by name, before the rows are read: the refusal must not reveal whether they exist.
        access.require(batch.actor, Privilege.GRANT, self.on)
        batch.flush()
        target = self._row(batch)
        namespace = target if isinstance(target, Namespace) else None
        table = target if isinstance(target, Table) else None
        principal = Principal.objects.filter(name=self.principal.replace("\x00", "")).first()
        if principal is None:
            raise similar_names.not_found(self.principal)
        of_this = Grant.objects.filter(principal=principal, namespace=namespace, table=table)
        present = of_this.select_related("principal", "namespace", "table__namespace").first()
        if present is not None and present.expires_at and present.expires_at <= batch.now:
            deleted, _ = Grant.objects.filter(pk=present.pk).delete()
            if deleted:  # otherwise the periodic task has deleted and recorded it meanwhile
                grant_expiry.record(present)
            present = None
        before = NOTHING if present is None else present.privileges
        old_end = None if present is None else present.expires_at
        after = self.privileges
        end = self.expires_at if after else None
        change = GrantChange(principal.name, target, after, before & ~after, end)
        if (after, end) == (before, old_end):
            return change
        changed = before ^ after if end == old_end else before | after
        self._require_held(batch, target, changed)
        is_longer = old_end is not None and (end is None or end > old_end)
        self._require_lasting(batch, target, after if is_longer else after & ~before)
        if not after:
            of_this.delete()
        else:
            Grant.objects.update_or_create(
                principal=principal,
                namespace=namespace,
                table=table,
                defaults={
                    "mask": after.value,
                    "granted_by": batch.actor.name,
                    "granted_at": batch.now,
                    "expires_at": end,
                },
            )
        batch.record(
            label(self.on.identifier),
            table=table,
            before={"principal": principal.name, "privileges": words(before), **_end(old_end)},
            after={"principal": principal.name, "privileges": words(after), **_end(end)},
        )
        return change

    def _row(self, batch: Batch) -> Namespace | Table:
        if self.on.is_table:
            return batch.table(self.on.identifier)
        return batch.namespace(self.on.identifier)

    def _require_held(self, batch: Batch, row: Namespace | Table, changed: Privilege) -> None:
        if batch.actor.holds_everywhere(Privilege.ALL):
            return
        lacking = changed & ~access.held_on(batch.actor, row)
        if lacking:
            raise PermissionDenied(
                f"'{batch.actor.name}' does not hold {', '.join(essence(lacking))} on"
                f" '{label(self.on.identifier)}', so it can neither grant nor revoke it"
            )

    def _require_lasting(self, batch: Batch, row: Namespace | Table, privileges: Privilege) -> None:
        """Raise PermissionDenied for privileges that the actor would grant for longer than it holds them."""
        ending = privileges & ~access.held_until(batch.actor, row, self.expires_at)
        if ending:
            raise PermissionDenied(
                f"'{batch.actor.name}' holds {', '.join(essence(ending))} on"
                f" '{label(self.on.identifier)}' for a limited time, so it cannot grant it for longer",
                detail="Set an end that is not later than that of your own grant.",
            )


def _end(expires_at: datetime | None) -> dict[str, Any]:
    return {} if expires_at is None else {"expires_at": expires_at.isoformat()}
