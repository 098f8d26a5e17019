"""Jobs for people: list them, summarize what they did, and cancel one."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Count, ExpressionWrapper, F, FloatField, Min, Q, QuerySet
from django.db.models.functions import Coalesce, Extract
from django.utils import timezone

from catalog import access, maintenance_actions
from catalog.access import Principal
from catalog.errors import InvalidInput, InvalidJobState, JobNotFound
from catalog.identifiers import Identifier
from catalog.models import Job, JobEvent, JobStatus, TransactionStatus
from catalog.privileges import Privilege
from catalog.services.engine import jobs
from catalog.services.engine.database_clock import database_now
from catalog.services.engine.transactions import SetStatus, alter_transaction
from catalog.services.maintenance import scheduler
from catalog.services.maintenance.engine_profiles import profiles
from catalog.services.tables import tables

PAGE_SIZE = 100
MAX_PAGE = 1000
MAX_DAYS = 365
_MOST_FEW = 1000
"""The most tables whose jobs are read for a list, apart from all others."""
MAX_FAILED = 100_000
"""The newest failed jobs of the catalog that are searched for a principal with many tables."""


@dataclass(slots=True)
class Tally:
    """Totals of the jobs of one kind, or of all kinds."""

    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    dry_runs: int = 0
    files_removed: int = 0
    """From storage."""
    bytes_reclaimed: int = 0
    """In storage, as far as the jobs report it."""
    files_merged: int = 0
    """Data files by which compaction reduced the tables. Clean-up removes the old files later."""
    plans_kept: int = 0
    """Jobs whose files and bytes were within 10 % of the plan."""
    plans_broken: int = 0

    def add(self, other: "Tally") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def plans_kept_percent(self) -> int | None:
        """The share of kept plans; None if no job had a plan. Only all of them are 100."""
        plans = self.plans_kept + self.plans_broken
        return 100 * self.plans_kept // plans if plans else None


@dataclass(frozen=True, slots=True)
class Activity:
    """Maintenance since a moment, by day (UTC) and kind, and the number of active jobs."""

    tallies: Mapping[tuple[date, str], Tally]
    queued: int
    running: int
    whole_since: datetime | None
    """Start of the period that was counted completely; None: the whole period."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Maintenance since a moment, and the number of active jobs."""

    since: datetime
    queued: int
    running: int
    total: Tally = field(default_factory=Tally)
    by_kind: dict[str, Tally] = field(default_factory=dict)


def list_jobs(
    *,
    actor: Principal,
    statuses: Collection[JobStatus] = (),
    kinds: Collection[str] = (),
    table: Identifier | None = None,
    since: datetime | None = None,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[Job], str | None]:
    """A page of jobs, newest first, and the token of the next page.

    ``since`` limits the list to active jobs and those that ended after it. Jobs of tables that the actor
    may not read have no details (``access.limit_jobs``). For an actor that may browse few tables, only the jobs of
    these are read. Raises TableNotFound, InvalidInput.
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
        rows = rows.filter(Q(status__in=scheduler.ACTIVE) | Q(finished_at__gte=since))
    if page_token:
        rows = rows.filter(pk__lt=_number(page_token))
    few_tables = access.few_visible_tables(actor, _MOST_FEW, with_dropped=True)
    if few_tables is not None:
        # By an expression, because the database would search the jobs of all others by the primary key.
        rows = rows.filter(table__in=few_tables).order_by((F("pk") + 0).desc())
    else:
        rows = rows.order_by("-pk")
    page = list(rows[: size + 1])
    token = str(page[size - 1].pk) if len(page) > size else None
    return access.limit_jobs(actor, page[:size]), token


# The limit per table bounds the work, however often a table's jobs fail.
_NEWEST_FAILED = """
    SELECT j.id FROM unnest(%(tables)s::bigint[]) AS t(id)
    CROSS JOIN LATERAL (
        SELECT id, created_at FROM catalog_job
        WHERE table_id = t.id AND status = 'failed' AND created_at > %(since)s
        ORDER BY created_at DESC LIMIT %(limit)s
    ) j
    ORDER BY j.created_at DESC, j.id DESC LIMIT %(limit)s
"""


def newest_failed(
    *, actor: Principal, since: datetime, limit: int, few_tables: Sequence[int] | None = None
) -> list[int]:
    """The primary keys of the newest failed jobs that were created after a moment, newest first.

    ``few_tables`` are all tables that the actor may browse, also dropped ones, if they are few: only
    jobs of these are read then. Otherwise the newest ``MAX_FAILED`` failed jobs of the catalog are
    searched. One statement.
    """
    if few_tables is not None:
        with connection.cursor() as cursor:
            parameters: dict[str, Any] = {
                "tables": list(few_tables),
                "since": since,
                "limit": limit,
            }
            cursor.execute(_NEWEST_FAILED, parameters)
            return [pk for (pk,) in cursor.fetchall()]
    rows = Job.objects.filter(status=JobStatus.FAILED, created_at__gt=since)
    rows = rows.order_by("-created_at", "-pk")
    if not actor.holds_everywhere(Privilege.BROWSE):
        visible = Job.objects.filter(access.visible_tables(actor, "table__"))
        newest = rows.values("pk")[:MAX_FAILED]
        rows = visible.filter(pk__in=newest).order_by("-created_at", "-pk")
    return list(rows.values_list("pk", flat=True)[:limit])


def find_job(*, actor: Principal, job: int) -> Job:
    """A job of any kind, of a table that the actor may browse; without details unless it may read it.

    Raises JobNotFound.
    """
    row = Job.objects.select_related("table__namespace", "transaction").filter(pk=job).first()
    if row is None or not access.holds(actor, Privilege.BROWSE, row.table):
        raise JobNotFound(job)
    return access.limit_jobs(actor, [row])[0]


def find_job_of_transaction(*, actor: Principal, transaction: str | None) -> Job | None:
    """The job that a transaction started, if it started one that the actor may see."""
    if transaction is None:
        return None
    row = Job.objects.select_related("table__namespace").filter(transaction_id=transaction).first()
    if row is None or not access.holds(actor, Privilege.BROWSE, row.table):
        return None
    return access.limit_jobs(actor, [row])[0]


def list_events(
    *, actor: Principal, job: Job, limit: int | None = None, page_token: str | None = None
) -> tuple[list[JobEvent], str | None]:
    """A page of a job's log, oldest first, and the token of the next page. Requires READ on its table.

    Raises InvalidInput and PermissionDenied.
    """
    if not access.readable_tables(actor, [job.table_id]):
        access.require(actor, Privilege.READ, job.table)
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    last_seen = _number(page_token) if page_token else 0
    page = list(JobEvent.objects.filter(job=job, pk__gt=last_seen).order_by("pk")[: size + 1])
    return page[:size], str(page[size - 1].pk) if len(page) > size else None


def cancel_job(*, actor: Principal, job: int) -> Job:
    """Cancel a queued job, or ask a running one to stop, with all jobs of the same transaction.

    Raises JobNotFound, and InvalidJobState for a job that has ended.
    """
    row = find_job(actor=actor, job=job)
    access.require(actor, Privilege.MAINTAIN, row.table)
    if row.status not in scheduler.ACTIVE:
        raise InvalidJobState(job, row.status, "canceled")
    if row.transaction_id is None:
        raise InvalidInput(f"Job {job} belongs to no transaction and cannot be canceled")
    alter_transaction(
        actor=actor,
        transaction=(str(row.transaction_id),),
        actions=[SetStatus(TransactionStatus.CANCELED)],
    )
    return find_job(actor=actor, job=job)


# Jobs that remove files report "files" and "bytes"; values that are no numbers do not count. Sums are
# bounded: writers of files choose some of the figures.
_ACTIVITY_SQL = """
    WITH ended AS MATERIALIZED (
        SELECT kind, status, is_dry_run, finished_at, result
        FROM catalog_job WHERE finished_at >= %(since)s ORDER BY finished_at DESC LIMIT %(limit)s
    ), results AS (
        SELECT (finished_at AT TIME ZONE 'UTC')::date AS day, kind,
            CASE WHEN status = 'succeeded' AND is_dry_run THEN 'dry_runs' ELSE status END AS ending,
            CASE WHEN status = 'succeeded' AND NOT is_dry_run THEN result END AS result,
            CASE WHEN NOT is_dry_run THEN result#>>'{promise,kept}' END AS kept
        FROM ended WHERE kind = ANY(%(kinds)s)
    ), figures AS (
        SELECT day, kind, ending,
            CASE WHEN jsonb_typeof(result->'files') = 'number' THEN (result->>'files')::numeric END
                AS files,
            CASE WHEN jsonb_typeof(result->'bytes') = 'number' THEN (result->>'bytes')::numeric END
                AS bytes,
            CASE WHEN kind = ANY(%(merging)s) AND jsonb_typeof(result#>'{before,files}') = 'number'
                AND jsonb_typeof(result#>'{after,files}') = 'number'
            THEN GREATEST(
                (result#>>'{before,files}')::numeric - (result#>>'{after,files}')::numeric, 0
            ) END AS merged, kept
        FROM results
    )
    SELECT day, kind, ending, count(*),
        GREATEST(LEAST(COALESCE(sum(files), 0), 9223372036854775807), 0)::bigint,
        GREATEST(LEAST(COALESCE(sum(bytes), 0), 9223372036854775807), 0)::bigint,
        GREATEST(LEAST(COALESCE(sum(merged), 0), 9223372036854775807), 0)::bigint,
        count(*) FILTER (WHERE kept = 'true'), count(*) FILTER (WHERE kept = 'false'),
        NULL::timestamptz
    FROM figures GROUP BY day, kind, ending
    UNION ALL
    SELECT NULL, NULL, 'examined', count(*), 0, 0, 0, 0, 0, min(finished_at) FROM ended
    UNION ALL
    SELECT NULL, NULL, status, count(*), 0, 0, 0, 0, 0, NULL FROM (
        SELECT status FROM catalog_job
        WHERE status IN ('queued', 'running') AND kind = ANY(%(kinds)s) LIMIT %(limit)s
    ) active GROUP BY status
"""


def count_activity(*, since: datetime, limit: int | None = None) -> Activity:
    """Count the results of maintenance in the newest ``limit`` jobs. One statement."""
    tallies: dict[tuple[date, str], Tally] = defaultdict(Tally)
    active: Counter[str] = Counter()
    whole_since = None
    with connection.cursor() as cursor:
        parameters = {
            "since": since,
            "limit": limit,
            "kinds": maintenance_actions.keys(),
            "merging": [
                action.key for action in maintenance_actions.registered() if action.merges_files
            ],
        }
        cursor.execute(_ACTIVITY_SQL, parameters)
        for day, kind, ending, count, *figures, oldest in cursor.fetchall():
            if day is not None:
                names = (
                    *("files_removed", "bytes_reclaimed", "files_merged"),
                    *("plans_kept", "plans_broken"),
                )
                tally = Tally(**{ending: count}, **dict(zip(names, figures, strict=True)))
                tallies[day, kind].add(tally)
            elif ending != "examined":
                active[ending] = count
            elif count == limit:
                whole_since = oldest
    return Activity(dict(tallies), active["queued"], active["running"], whole_since)


def summarize(*, actor: Principal, days: int = 30) -> Summary:
    """Summarize the maintenance of the last ``days``. One statement."""
    access.require(actor, Privilege.READ)
    since = timezone.now() - timedelta(days=min(days, MAX_DAYS))
    activity = count_activity(since=since)
    summary = Summary(since, activity.queued, activity.running)
    for (_, kind), tally in activity.tallies.items():
        summary.total.add(tally)
        summary.by_kind.setdefault(kind, Tally()).add(tally)
    return summary


_Counts = Counter[tuple[str, str, str, str]]
"""The number of jobs by kind, status, engine and engine profile."""
_OTHER_PROFILE = "other"
"""Stands for all profiles that were deleted, so that the number of series stays limited."""


def count_active() -> _Counts:
    """The number of queued and running jobs. Jobs that are not due yet, as purges, count too."""
    return _counted(Job.objects.filter(status__in=scheduler.ACTIVE))


def count_ended(span: timedelta = timedelta(hours=1)) -> _Counts:
    """The number of jobs that ended recently."""
    return _counted(Job.objects.filter(finished_at__gt=timezone.now() - span))


def _counted(rows: "QuerySet[Job]") -> _Counts:
    names = {"", *profiles.names()}
    columns = ("kind", "status", "engine", "engine_profile")
    counts: _Counts = Counter()
    for *key, profile, number in rows.values_list(*columns).annotate(number=Count("pk")):
        kind, status, engine = key
        counts[kind, status, engine, profile if profile in names else _OTHER_PROFILE] += number
    return counts


def oldest_due_seconds() -> float:
    """Time for which the oldest job that is due has waited; 0 if there is none."""
    due = Job.objects.filter(
        Q(lease_until=None) | Q(lease_until__lt=database_now()), status=JobStatus.QUEUED
    )
    oldest = due.aggregate(oldest=Min(Coalesce("lease_until", "created_at")))["oldest"]
    return 0.0 if oldest is None else (timezone.now() - oldest).total_seconds()


def longest_running_seconds() -> float:
    """Time for which the oldest running job has run; 0 if there is none."""
    oldest = Job.objects.filter(status=JobStatus.RUNNING).aggregate(oldest=Min("started_at"))
    began = oldest["oldest"]
    return 0.0 if began is None else (timezone.now() - began).total_seconds()


def longest_silence_seconds() -> float:
    """Time since a worker renewed its lease, of the running job that waits for it longest; 0 without jobs."""
    running = Job.objects.filter(status=JobStatus.RUNNING, lease_until__isnull=False)
    remaining = ExpressionWrapper(
        Extract(Min("lease_until") - database_now(), "epoch"), output_field=FloatField()
    )
    seconds = running.aggregate(seconds=remaining)["seconds"]
    return 0.0 if seconds is None else max(jobs.LEASE.total_seconds() - float(seconds), 0.0)


def count_lost() -> int:
    """The running jobs whose workers have not renewed their leases, and that no other has taken over."""
    running = Job.objects.filter(status=JobStatus.RUNNING)
    return running.filter(lease_until__lt=database_now()).count()


def _number(token: str) -> int:
    if not (token.isascii() and token.isdigit() and len(token) < 19):
        raise InvalidInput(f"Page token {token!r} is not one of this list")
    return int(token)
