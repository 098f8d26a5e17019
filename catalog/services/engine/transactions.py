"""Describing and altering transactions."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

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
"""Properties that the catalog itself reports; nobody sets them."""


@dataclass(frozen=True)
class TransactionFacts:
    status: TransactionStatus
    properties: dict[str, str]


class IfSet(StrEnum):
    """What setting a property does when it is set already (spec: SetPropertyMode)."""

    OVERWRITE = "overwrite"
    FAIL = "fail"
    SKIP = "skip"


class IfUnset(StrEnum):
    """What unsetting a property does when it is not set (spec: UnsetPropertyMode)."""

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


def describe_transaction(*, actor: Principal, transaction: Identifier) -> TransactionFacts:
    """A transaction by the id that a commit returned, or by a table and one of its versions.

    Raises TransactionNotFound.
    """
    if len(transaction) == 1:
        row = _find(transaction)
        _require_seen(actor, row)
        return TransactionFacts(TransactionStatus(row.status), _properties(actor, row))
    _require_table_seen(actor, transaction)
    access.require(actor, Privilege.READ, On.table(transaction[:-1]))
    version = _version(transaction)
    facts = {
        "monodon.table": label(transaction[:-1]),
        "monodon.version": str(version.version),
        "monodon.manifest_path": version.manifest_path,
        "monodon.created_at": version.created_at.isoformat(),
    }
    if version.transaction is None:
        return TransactionFacts(TransactionStatus.SUCCEEDED, facts)
    row = version.transaction
    return TransactionFacts(TransactionStatus(row.status), _properties(actor, row) | facts)


def alter_transaction(
    *, actor: Principal, transaction: Identifier, actions: Sequence[Alteration]
) -> TransactionFacts:
    """Apply all actions in order, or none. Raises TransactionNotFound, InvalidTransactionState,
    PropertyAlreadySet, NotFound for a property that must be there.
    """
    if len(transaction) == 1:
        found: Transaction | None = _find(transaction)
    else:
        _require_table_seen(actor, transaction)
        access.require(actor, Privilege.BROWSE, On.table(transaction[:-1]))
        found = _version(transaction).transaction
    if found is None:
        raise TransactionNotFound(label(transaction))
    with db.atomic():
        row = locks.lock_transaction(found.pk)
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
    return TransactionFacts(TransactionStatus(row.status), _properties(actor, row))


def _set_status(row: Transaction, status: TransactionStatus) -> None:
    """A commit that stands cannot be undone by renaming its status; waiting work can be canceled."""
    if status == row.status:
        return
    if status != TransactionStatus.CANCELED or row.status not in (
        TransactionStatus.QUEUED,
        TransactionStatus.RUNNING,
    ):
        raise InvalidTransactionState(row.pk, row.status, status)
    jobs.cancel_jobs_of(row)
    if not row.jobs.filter(status=JobStatus.RUNNING).exists():
        row.status = status  # else the running job decides, as soon as it sees the request


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


def _require_seen(actor: Principal, row: Transaction) -> None:
    """A transaction is seen by who made it, and by who may browse one of its tables."""
    if row.actor == actor.name or actor.holds_everywhere(Privilege.BROWSE):
        return
    if not _tables(row).filter(access.visible_tables(actor)).exists():
        raise TransactionNotFound(str(row.pk))


def _require_table_seen(actor: Principal, transaction: Identifier) -> None:
    """The same for one that is named by a table and a version of it."""
    if not access.is_visible(actor, On.table(transaction[:-1])):
        raise TransactionNotFound(label(transaction))


def _require_alterable(actor: Principal, row: Transaction, actions: Sequence[Alteration]) -> None:
    """Who made it may alter it with a key that lets write, and who may write to all its tables.

    Canceling its jobs takes no more than MAINTAIN.
    """
    _require_seen(actor, row)
    only_cancels = all(isinstance(action, SetStatus) for action in actions)
    enough = Privilege.MAINTAIN if only_cancels else Privilege.WRITE
    if row.actor == actor.name and (enough | Privilege.WRITE) & actor.ceiling:
        return
    if actor.holds_everywhere(Privilege.WRITE):
        return
    tables = list(_tables(row).select_related("namespace"))
    for table in tables:
        if not (access.holds(actor, enough, table) or access.holds(actor, Privilege.WRITE, table)):
            raise PermissionDenied(f"'{actor.name}' may not alter transaction '{row.pk}'")
    if not tables:
        access.require(actor, Privilege.WRITE)


def _tables(row: Transaction) -> QuerySet[Table]:
    """The tables that a transaction is about, those that were dropped since too."""
    events = AuditEvent.objects.filter(transaction_id=row.pk, table_uuid__isnull=False)
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


def _properties(actor: Principal, row: Transaction) -> dict[str, str]:
    operations = row.operations
    if row.actor != actor.name and not actor.holds_everywhere(Privilege.BROWSE):
        # Of the rest, who sees one table of a transaction is not told.
        seen = _tables(row).filter(access.visible_tables(actor)).values("uuid")
        events = AuditEvent.objects.filter(transaction_id=row.pk, table_uuid__in=seen)
        targets = set(events.values_list("target", flat=True))
        operations = [done for done in operations if done["target"] in targets]
    reported = {
        "monodon.operations": ",".join(done["operation"] for done in operations),
        "monodon.targets": ",".join(dict.fromkeys(done["target"] for done in operations)),
        "monodon.actor": row.actor,
        "monodon.created_at": row.created_at.isoformat(),
    }
    return {**row.properties, **reported, **_of_jobs(actor, row)}


def _of_jobs(actor: Principal, row: Transaction) -> dict[str, str]:
    """What the transaction left to jobs: how many there are, and how the decisive one fares.

    That is the first that failed, else the first that is not over, else the last.
    """
    jobs_of_it = row.jobs.order_by("pk")
    if row.actor != actor.name:
        jobs_of_it = jobs_of_it.filter(access.visible_tables(actor, "table__"))
    found = list(jobs_of_it)
    if not found:
        return {}
    failed = [job for job in found if job.status == JobStatus.FAILED]
    active = [job for job in found if job.status in (JobStatus.QUEUED, JobStatus.RUNNING)]
    job = (failed or active or found[-1:])[0]
    facts = {
        "jobs": str(len(found)),
        "jobs_over": str(len(found) - len(active)),
        "job_id": str(job.pk),
        "job_kind": job.kind,
        "job_status": job.status,
        "job_progress": str(job.progress),
        "job_unit": job.unit,
        "job_attempts": str(job.attempts),
    }
    if job.status == JobStatus.QUEUED and job.lease_until is not None:
        facts["job_due_at"] = job.lease_until.isoformat()
    if job.total is not None:
        facts["job_total"] = str(job.total)
    if job.error:
        facts["job_error"] = job.error
    if job.result is not None:
        facts["job_result"] = json.dumps(job.result)
    return {f"{RESERVED_PREFIX}{name}": value for name, value in facts.items()}
