"""Jobs as people see them: which there are, what they did, and stopping one."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import Count, Q
from django.utils import timezone

from catalog.errors import InvalidInput, InvalidJobState, JobNotFound
from catalog.identifiers import Identifier
from catalog.models import Job, JobEvent, JobKind, JobStatus, TransactionStatus
from catalog.privileges import Privilege
from catalog.services import access, tables, upkeep
from catalog.services.access import Principal
from catalog.services.transactions import SetStatus, alter_transaction

PAGE_SIZE = 100
MAX_PAGE = 1000
MAX_DAYS = 365


@dataclass(slots=True)
class Tally:
    """What the jobs of one kind, or of all, came to."""

    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    dry_runs: int = 0
    files_removed: int = 0
    """From storage."""
    bytes_reclaimed: int = 0
    """In storage. Iceberg does not tell how large the files of expired snapshots were."""
    files_merged: int = 0
    """How many data files fewer the tables have. The old ones go with the versions that have them."""

    def add(self, other: "Tally") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True, slots=True)
class Summary:
    """What maintenance did since then, and what goes on now."""

    since: datetime
    queued: int
    running: int
    total: Tally = field(default_factory=Tally)
    by_kind: dict[str, Tally] = field(default_factory=dict)


def list_jobs(
    *,
    actor: Principal,
    statuses: Collection[JobStatus] = (),
    kinds: Collection[JobKind] = (),
    table: Identifier | None = None,
    since: datetime | None = None,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[Job], str | None]:
    """A page of jobs, the newest first, and the token of the next.

    ``since``: those that are active, or ended since then. Raises TableNotFound, InvalidInput.
    """
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    rows = Job.objects.select_related("table__namespace", "transaction")
    rows = rows.filter(access.visible_tables(actor, "table__"))
    if statuses:
        rows = rows.filter(status__in=statuses)
    if kinds:
        rows = rows.filter(kind__in=kinds)
    if table is not None:
        rows = rows.filter(table=tables.find_any(actor=actor, table=table))
    if since is not None:
        rows = rows.filter(Q(status__in=upkeep.ACTIVE) | Q(finished_at__gte=since))
    if page_token:
        rows = rows.filter(pk__lt=_number(page_token))
    page = list(rows.order_by("-pk")[: size + 1])
    return page[:size], str(page[size - 1].pk) if len(page) > size else None


def find_job(*, actor: Principal, job: int) -> Job:
    """A job of any kind, of a table that the actor may browse. Raises JobNotFound."""
    found = Job.objects.select_related("table__namespace", "transaction").filter(pk=job).first()
    if found is None or not access.holds(actor, Privilege.BROWSE, found.table):
        raise JobNotFound(job)
    return found


def list_events(
    *, actor: Principal, job: Job, limit: int | None = None, page_token: str | None = None
) -> tuple[list[JobEvent], str | None]:
    """A page of a job's log, in order, and the token of the next. Raises InvalidInput."""
    access.require(actor, Privilege.BROWSE, job.table)
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    behind = _number(page_token) if page_token else 0
    page = list(JobEvent.objects.filter(job=job, pk__gt=behind).order_by("pk")[: size + 1])
    return page[:size], str(page[size - 1].pk) if len(page) > size else None


def cancel_job(*, actor: Principal, job: int) -> Job:
    """Cancel what waits, or ask what runs to stop, with all jobs of the same transaction.

    Raises JobNotFound, and InvalidJobState for a job that is over.
    """
    found = find_job(actor=actor, job=job)
    access.require(actor, Privilege.MAINTAIN, found.table)
    if found.status not in upkeep.ACTIVE:
        raise InvalidJobState(job, found.status, "canceled")
    if found.transaction_id is None:
        raise InvalidInput(f"Job {job} belongs to no transaction and cannot be canceled")
    alter_transaction(
        actor=actor,
        transaction=(str(found.transaction_id),),
        actions=[SetStatus(TransactionStatus.CANCELED)],
    )
    return find_job(actor=actor, job=job)


# Lance's jobs tell what they removed as files and bytes, Iceberg's procedures in words of their own.
_SUMMARY = """
    SELECT kind, ending, count(*),
        COALESCE(sum(CASE WHEN ending = 'succeeded' THEN
            COALESCE((result->>'files')::bigint, 0)
            + COALESCE((result->'done'->>'orphan_files_count')::bigint, 0)
            + (SELECT COALESCE(sum(value::bigint), 0) FROM jsonb_each_text(
                CASE jsonb_typeof(result->'done') WHEN 'object' THEN result->'done' ELSE '{}'::jsonb END)
               WHERE key LIKE 'deleted_%%' AND value ~ '^[0-9]+$')
        END), 0),
        COALESCE(sum(CASE WHEN ending = 'succeeded' THEN
            COALESCE((result->>'bytes')::bigint, 0)
            + COALESCE((result->'done'->>'orphan_bytes')::bigint, 0)
        END), 0),
        COALESCE(sum(CASE WHEN ending = 'succeeded' AND kind = 'compact' THEN GREATEST(
            (result->'before'->>'files')::bigint - (result->'after'->>'files')::bigint, 0)
        END), 0)
    FROM (
        SELECT kind, result,
            CASE WHEN status = 'succeeded' AND is_dry_run THEN 'dry_runs' ELSE status END AS ending
        FROM catalog_job WHERE kind = ANY(%s) AND finished_at >= %s
    ) ended
    GROUP BY kind, ending
"""


def summarize(*, actor: Principal, days: int = 30) -> Summary:
    """What maintenance did on the last days. Two statements."""
    access.require(actor, Privilege.READ)
    since = timezone.now() - timedelta(days=min(days, MAX_DAYS))
    kinds = [str(kind) for kind in upkeep.MODES]
    active = Job.objects.filter(kind__in=kinds, status__in=upkeep.ACTIVE).aggregate(
        queued=Count("pk", filter=Q(status=JobStatus.QUEUED)),
        running=Count("pk", filter=Q(status=JobStatus.RUNNING)),
    )
    summary = Summary(since, **active)
    with connection.cursor() as cursor:
        cursor.execute(_SUMMARY, [kinds, since])
        for kind, ending, count, files, size, merged in cursor.fetchall():
            tally = Tally(
                **{ending: count},
                files_removed=int(files),
                bytes_reclaimed=int(size),
                files_merged=int(merged),
            )
            summary.total.add(tally)
            summary.by_kind.setdefault(kind, Tally()).add(tally)
    return summary


def _number(token: str) -> int:
    if not (token.isascii() and token.isdigit() and len(token) < 19):
        raise InvalidInput(f"Page token {token!r} is not one of this list")
    return int(token)
