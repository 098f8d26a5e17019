"""Describing and altering transactions, and dry runs."""

import json
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db import transaction as db
from django.db.models import QuerySet

from catalog import access
from catalog.access import On, Principal
from catalog.errors import (
    InvalidInput,
    InvalidTransactionState,
    PermissionDenied,
    PropertyAlreadySet,
    TransactionNotFound,
    label,
)
from catalog.identifiers import Identifier
from catalog.models import (
    AuditEvent,
    JobStatus,
    Table,
    TableVersion,
    Transaction,
    TransactionStatus,
)
from catalog.privileges import Privilege
from catalog.services.engine import audit_records, jobs, locks

RESERVED_PREFIX = "monodon."
"""Properties that the catalog itself reports; clients cannot set them."""


@dataclass(frozen=True)
class TransactionDescription:
    status: TransactionStatus
    properties: dict[str, str]


class IfSet(StrEnum):
    """The behavior of setting a property that is set already (spec: SetPropertyMode)."""

    OVERWRITE = "overwrite"
    FAIL = "fail"
    SKIP = "skip"


class IfUnset(StrEnum):
    """The behavior of unsetting a property that is not set (spec: UnsetPropertyMode)."""

    SKIP = "skip"
    FAIL = "fail"


@dataclass(frozen=True)
class SetStatus:
    status: TransactionStatus


@dataclass(frozen=True)
class SetProperty:
    key: str
    value: str
    mode: IfSet = IfSet.OVERWRITE


@dataclass(frozen=True)
class UnsetProperty:
    key: str
    mode: IfUnset = IfUnset.SKIP


Alteration = SetStatus | SetProperty | UnsetProperty


def time_of_transaction(*, actor: Principal, transaction_id: uuid.UUID) -> datetime:
    """The time at which a transaction was written: no time in the rows of its commit is later.

    Raises TransactionNotFound, also for a transaction that the actor may not see.
    """
    row = _find((str(transaction_id),))
    _require_visible(actor, row)
    return row.created_at


def describe_transaction(*, actor: Principal, transaction: Identifier) -> TransactionDescription:
    """A transaction by the id that a commit returned, or by a table and one of its versions.

    Raises TransactionNotFound.
    """
    if len(transaction) == 1:
        row = _find(transaction)
        _require_visible(actor, row)
        return TransactionDescription(TransactionStatus(row.status), _properties(actor, row))
    _require_visible_table(actor, transaction)
    access.require(actor, Privilege.READ, On.table(transaction[:-1]))
    version = _version(transaction)
    properties = {
        "monodon.table": label(transaction[:-1]),
        "monodon.version": str(version.version),
        "monodon.manifest_path": version.manifest_path,
        "monodon.created_at": version.created_at.isoformat(),
    }
    if version.transaction is None:
        return TransactionDescription(TransactionStatus.SUCCEEDED, properties)
    row = version.transaction
    return TransactionDescription(
        TransactionStatus(row.status), _properties(actor, row) | properties
    )


def alter_transaction(
    *, actor: Principal, transaction: Identifier, actions: Sequence[Alteration]
) -> TransactionDescription:
    """Apply all actions in order, or none. Raises TransactionNotFound, InvalidTransactionState,
    PropertyAlreadySet, and InvalidInput for a missing property that must be set.
    """
    if len(transaction) == 1:
        unlocked: Transaction | None = _find(transaction)
    else:
        _require_visible_table(actor, transaction)
        access.require(actor, Privilege.BROWSE, On.table(transaction[:-1]))
        unlocked = _version(transaction).transaction
    if unlocked is None:
        raise TransactionNotFound(label(transaction))
    with db.atomic():
        row = locks.lock_transaction(unlocked.pk)
        _require_alterable(actor, row, actions)
        before = {"status": row.status, "properties": dict(row.properties)}
        for action in actions:
            match action:
                case SetStatus():
                    _set_status(row, action.status)
                case SetProperty():
                    _set_property(row, action)
                case UnsetProperty():
                    _unset_property(row, action)
        row.save(update_fields=["status", "properties"])
        audit_records.record(
            actor,
            "transaction.alter",
            str(row.pk),
            before=before,
            after={"status": row.status, "properties": row.properties},
            transaction_id=row.pk,
        )
    return TransactionDescription(TransactionStatus(row.status), _properties(actor, row))


def _set_status(row: Transaction, status: TransactionStatus) -> None:
    """Cancel waiting work. The status of a committed transaction cannot be changed."""
    if status == row.status:
        return
    if status != TransactionStatus.CANCELED or row.status not in (
        TransactionStatus.QUEUED,
        TransactionStatus.RUNNING,
    ):
        raise InvalidTransactionState(row.pk, row.status, status)
    jobs.cancel_jobs_of(row)
    if not row.jobs.filter(status=JobStatus.RUNNING).exists():
        row.status = status  # otherwise the running job sets it once it sees the request


def _set_property(row: Transaction, action: SetProperty) -> None:
    if action.key.startswith(RESERVED_PREFIX):
        raise InvalidInput(f"Properties that begin with '{RESERVED_PREFIX}' cannot be set")
    if action.key in row.properties:
        if action.mode is IfSet.FAIL:
            raise PropertyAlreadySet(action.key)
        if action.mode is IfSet.SKIP:
            return
    row.properties[action.key] = action.value


def _unset_property(row: Transaction, action: UnsetProperty) -> None:
    if action.key in row.properties:
        del row.properties[action.key]
    elif action.mode is IfUnset.FAIL:
        raise InvalidInput(f"Property '{action.key}' is not set")


def _require_visible(actor: Principal, row: Transaction) -> None:
    """Require that the actor made the transaction or may browse one of its tables."""
    if row.actor == actor.name or actor.holds_everywhere(Privilege.BROWSE):
        return
    if not _tables(row).filter(access.visible_tables(actor)).exists():
        raise TransactionNotFound(str(row.pk))


def _require_visible_table(actor: Principal, transaction: Identifier) -> None:
    """Require that the actor may see the table by which a transaction is named."""
    if not access.is_visible(actor, On.table(transaction[:-1])):
        raise TransactionNotFound(label(transaction))


def _require_alterable(actor: Principal, row: Transaction, actions: Sequence[Alteration]) -> None:
    """Require WRITE on all tables of the transaction, or its creator with a key that may write.

    MAINTAIN is sufficient to cancel its jobs.
    """
    _require_visible(actor, row)
    only_cancels = all(isinstance(action, SetStatus) for action in actions)
    required = Privilege.MAINTAIN if only_cancels else Privilege.WRITE
    if row.actor == actor.name and (required | Privilege.WRITE) & actor.ceiling:
        return
    if actor.holds_everywhere(Privilege.WRITE):
        return
    tables = list(_tables(row).select_related("namespace"))
    for table in tables:
        if not (
            access.holds(actor, required, table) or access.holds(actor, Privilege.WRITE, table)
        ):
            raise PermissionDenied(f"'{actor.name}' may not alter transaction '{row.pk}'")
    if not tables:
        access.require(actor, Privilege.WRITE)


def _tables(row: Transaction) -> QuerySet[Table]:
    """The tables that a transaction changed, including those dropped since."""
    events = AuditEvent.objects.filter(transaction_id=row.pk)
    return Table.objects.filter(uuid__in=events.values("table_uuid"))


def _find(transaction: Identifier) -> Transaction:
    try:
        return Transaction.objects.get(pk=uuid.UUID(transaction[0]))
    except (ValueError, Transaction.DoesNotExist):
        raise TransactionNotFound(label(transaction)) from None


def _version(transaction: Identifier) -> TableVersion:
    *table, number = transaction or ("",)
    if not (number.isascii() and number.isdigit() and len(number) < 20):
        raise TransactionNotFound(label(transaction))
    version = (
        TableVersion.objects.visible()
        .filter(table__in=Table.objects.named(tuple(table)), branch="", version=int(number))
        .select_related("transaction")
        .first()
    )
    if version is None:
        raise TransactionNotFound(label(transaction))
    return version


def visible_operations(
    actor: Principal, rows: Collection[Transaction]
) -> dict[uuid.UUID, list[dict[str, Any]]]:
    """The operations of each transaction that the actor may see.

    Of transactions of others these are the operations on tables that the actor may browse. One statement at most.
    """
    operations = {row.pk: list(row.operations) for row in rows}
    others = [row.pk for row in rows if row.actor != actor.name]
    if not others or actor.holds_everywhere(Privilege.BROWSE):
        return operations
    events = AuditEvent.objects.filter(transaction_id__in=others)
    visible = Table.objects.filter(
        access.visible_tables(actor), uuid__in=events.values("table_uuid")
    )
    targets = set(
        events.filter(table_uuid__in=visible.values("uuid")).values_list("transaction_id", "target")
    )
    for key in others:
        operations[key] = [
            operation for operation in operations[key] if (key, operation.get("target")) in targets
        ]
    return operations


def _properties(actor: Principal, row: Transaction) -> dict[str, str]:
    operations = visible_operations(actor, [row])[row.pk]
    names = [operation["operation"] for operation in operations]
    reported = {
        "monodon.operations": ",".join(names),
        "monodon.targets": ",".join(dict.fromkeys(entry["target"] for entry in operations)),
        "monodon.actor": row.actor,
        "monodon.created_at": row.created_at.isoformat(),
    }
    return {**row.properties, **reported, **_of_jobs(actor, row)}


def _of_jobs(actor: Principal, row: Transaction) -> dict[str, str]:
    """The properties of a transaction's jobs: their number, and the state of the decisive job.

    That is the first that failed, else the first that is not over, else the last.
    """
    queryset = row.jobs.order_by("pk")
    if row.actor != actor.name:
        queryset = queryset.filter(access.visible_tables(actor, "table__"))
    visible_jobs = access.limit_jobs(actor, list(queryset))
    if not visible_jobs:
        return {}
    failed = [job for job in visible_jobs if job.status == JobStatus.FAILED]
    active = [job for job in visible_jobs if job.status in (JobStatus.QUEUED, JobStatus.RUNNING)]
    job = (failed or active or visible_jobs[-1:])[0]
    properties = {
        "jobs": str(len(visible_jobs)),
        "jobs_over": str(len(visible_jobs) - len(active)),
        "job_id": str(job.pk),
        "job_kind": job.kind,
        "job_status": job.status,
        "job_progress": str(job.progress),
        "job_unit": job.unit,
        "job_attempts": str(job.attempts),
    }
    if job.status == JobStatus.QUEUED and job.lease_until is not None:
        properties["job_due_at"] = job.lease_until.isoformat()
    if job.total is not None:
        properties["job_total"] = str(job.total)
    if job.error:
        properties["job_error"] = job.error
    if job.result is not None:
        properties["job_result"] = json.dumps(job.result)
    return {f"{RESERVED_PREFIX}{name}": value for name, value in properties.items()}


# --- dry runs ------------------------------------------------------------------------------------


@contextmanager
def rehearsal(actor: Principal, *, is_dry_run: bool) -> Iterator[None]:
    """Roll back the changes of the block if ``is_dry_run``, otherwise do nothing.

    The block has the results and the refusals of the real change, and no other transaction sees its
    rows. Only for changes that do nothing outside the database, except in ``on_commit``.
    """
    if not is_dry_run:
        yield
        return
    actor.progress.is_dry_run = True
    try:
        with db.atomic():
            yield
            db.set_rollback(True)
    finally:
        actor.progress.is_dry_run = actor.progress.committed = False
