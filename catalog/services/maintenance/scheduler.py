"""Maintenance scheduler: start the jobs that policies require, or that people request.

    measurements.measure_due ──▶ TableHealth: figures, a score, and the planned maintenance
    start_due                ──▶ a Job for each planned maintenance that the policy switches on
    start                    ──▶ a Job on request

Maintenance is planned again from the recorded figures whenever jobs are started, so a changed policy
takes effect at once. A dry run is a job that changes nothing; only people request dry runs.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from catalog import access, maintenance_actions
from catalog.access import SYSTEM, On, Principal
from catalog.errors import (
    CatalogError,
    InvalidInput,
    InvalidJobState,
    JobNotFound,
    TableHasNoData,
    TableNotFound,
    Unsupported,
)
from catalog.identifiers import Identifier
from catalog.maintenance_actions import LastRun, MaintenanceAction, Occasion
from catalog.models import (
    Job,
    JobStatus,
    Table,
    TableFormat,
    TableHealth,
    TableState,
)
from catalog.planning import Statistics
from catalog.policies import EffectivePolicy, Mode
from catalog.privileges import Privilege
from catalog.services.engine import locks, processes
from catalog.services.engine.commit import commit
from catalog.services.maintenance import (
    lance_rebuilds,
    policies,
)
from catalog.services.tables import job_operations, tables

log = logging.getLogger(__name__)

ACTIVE = (JobStatus.QUEUED, JobStatus.RUNNING)
_UNSUCCESSFUL = (JobStatus.FAILED, JobStatus.CANCELED)
_BATCH = 1000
# Minimum time between a job that failed, or changed nothing, and the next one of its kind.
_PAUSE = timedelta(hours=1)
_RECENT_JOB = timedelta(hours=1)
_ROUND = timedelta(minutes=1)
_MAX_AHEAD = 500


def start(
    *,
    actor: Principal,
    table: Identifier,
    kind: str,
    is_dry_run: bool = False,
    indexes: Sequence[str] | None = None,
) -> Job:
    """Start maintenance of a table now, regardless of its policy's mode and window.

    ``kind`` is the key of an action. ``indexes`` names the indexes to optimize or rebuild; None
    means all stale indexes, or all indexes. Raises TableNotFound, TableHasNoData, IndexNotFound, and
    InvalidInput for a kind that tables of this format do not have and for a rebuild of a table
    without indexes.
    """
    access.require(actor, Privilege.MAINTAIN, On.table(table))
    row = tables.find_any(actor=actor, table=table)
    action = maintenance_actions.require(kind)
    if row.format not in action.formats:
        raise InvalidInput(f"Tables in {row.get_format_display()} format do not support '{kind}'")
    if row.state == TableState.DECLARED:
        raise TableHasNoData(table)
    if reason := obstacles(row.format).get(action.key):
        raise Unsupported(f"No worker can run this kind of job: {reason}")
    parameters = _index_parameters(row, action, indexes)
    return _start(
        actor, row, kind, policies.effective_policy(row), parameters, is_dry_run=is_dry_run
    )


def obstacles(table_format: str) -> dict[str, str]:
    """The kinds of maintenance that no running worker can do, with the reason."""
    reason = processes.missing_for_iceberg() if table_format == TableFormat.ICEBERG else ""
    if not reason:
        return {}
    actions = maintenance_actions.of_format(table_format)
    return {a.key: reason for a in actions if a.implementations[table_format].takes_spark}


def _index_parameters(
    row: Table, action: MaintenanceAction, indexes: Sequence[str] | None
) -> Mapping[str, Any]:
    """Job parameters that name the indexes by their canonical names."""
    if indexes is None and not action.requires_index:
        return {}
    if not action.accepts_indexes:
        accepting = [
            other.key for other in maintenance_actions.registered() if other.accepts_indexes
        ]
        raise InvalidInput(
            f"'{action.key}' does not take 'indexes'; only {' and '.join(accepting)} do"
        )
    if indexes is not None and not indexes:
        raise InvalidInput("'indexes' is empty; leave it out to select all indexes")
    names = lance_rebuilds.resolve_names(table=row.identifier, names=indexes)
    return {} if indexes is None else {"indexes": names}


def index_names(*, actor: Principal, table: Identifier) -> list[str]:
    """Indexes that a job can be limited to; none for an Iceberg table.

    Requires MAINTAIN. Raises TableNotFound, TableHasNoData.
    """
    access.require(actor, Privilege.MAINTAIN, On.table(table))
    row = tables.find_any(actor=actor, table=table)
    if row.format != TableFormat.LANCE:
        return []
    return lance_rebuilds.index_names(table=table)


def retry(*, actor: Principal, job: int) -> Job:
    """Start failed or canceled maintenance again, as a new job under the current policy.

    Raises JobNotFound, InvalidJobState, TableNotFound, and InvalidInput for jobs that are not
    maintenance: those are requested again by the operation that started them.
    """
    old = Job.objects.select_related("table__namespace").filter(pk=job).first()
    if old is None or not access.holds(actor, Privilege.BROWSE, old.table):
        raise JobNotFound(job)
    access.require(actor, Privilege.MAINTAIN, old.table)
    if maintenance_actions.find(old.kind) is None:
        raise InvalidInput(
            f"Job {job} is '{old.kind}', which is not maintenance; repeat the operation that started it"
        )
    if old.status not in _UNSUCCESSFUL:
        raise InvalidJobState(job, old.status, "retried")
    row = old.table
    if row.state == TableState.DROPPED:
        raise TableNotFound(row.identifier)
    parameters = {name: value for name, value in old.parameters.items() if name != "policy"}
    policy = policies.effective_policy(row)
    return _start(actor, row, old.kind, policy, parameters, is_dry_run=old.is_dry_run)


# --- periodic start of jobs -------------------------------------------------------------------------


def start_due() -> int:
    """Start planned maintenance that is switched on, lowest scores first; returns the number of jobs.

    Tables that had a job within the last hour come last. A table has one job at a time, a policy
    limits the number of its running jobs, and jobs start only in the policy's window. A pass queues
    as many further jobs of a policy as ended within the last minute, so that short jobs need not wait
    for the next pass, and long jobs are not planned long before they run.
    """
    with locks.advisory_lock("start_due") as is_alone:
        return _SchedulingPass().run() if is_alone else 0


def _is_on_hold(
    action: MaintenanceAction, last: LastRun | None, row: TableHealth, now: datetime
) -> bool:
    """True if a planned job must not start yet because of the last one."""
    if last is None:
        return False
    if last.finished_at is None:
        return True
    if (
        last.was_useless
        and action.depends_on_files_only
        and last.version == row.statistics["version"]
    ):
        return True  # the files are the same, so the result would be the same
    if last.was_unsuccessful or last.was_useless:
        return now - last.finished_at <= _PAUSE
    return row.measured_at <= last.finished_at  # the plan is from before this job


_LAST_RUNS_SQL = """
    SELECT t.id, k.kind, j.*
    FROM unnest(%s::bigint[]) AS t(id)
    CROSS JOIN unnest(%s::text[], %s::text[], %s::text[]) AS k(kind, replaced, added)
    CROSS JOIN LATERAL (
        SELECT created_at, finished_at, status = ANY(%s::text[]) AS was_unsuccessful,
            COALESCE(result->'after' IS NOT DISTINCT FROM result->'before'
                     OR result->'after' IS NULL, true)
                OR COALESCE((result->'done'->>k.added)::bigint
                            >= (result->'done'->>k.replaced)::bigint, false)
                AS was_useless,
            (result->'after'->>'version')::bigint AS version
        FROM catalog_job
        WHERE table_id = t.id AND kind = k.kind AND NOT is_dry_run
        ORDER BY id DESC LIMIT 1
    ) j
"""


class _SchedulingPass:
    """One pass over all tables."""

    def __init__(self) -> None:
        self._now = timezone.now()
        self._modes = _switched_on()
        self._running: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._obstacles = {fmt: obstacles(fmt) for fmt in TableFormat.values}
        self._full: set[str] = set()
        """Policies with as many jobs as they allow."""

    def run(self) -> int:
        if not self._modes:
            return 0
        self._running = policies.running_by_policy()
        self._ended = policies.ended_by_policy(self._now - _ROUND)
        limiting = (
            sum("max_jobs" in values for values in policies.policy_values()) + 1
        )  # the default
        started = 0
        for batch in self._batches():
            started += self._start_in(batch)
            if len(self._full) >= limiting:
                break
        return started

    def _batches(self) -> Iterator[list[TableHealth]]:
        """Tables without an active job in batches, lowest scores first.

        Tables that had a job recently come last. Otherwise a busy table that always has the lowest
        score would use up the number of jobs that the policy allows.
        """
        jobs_of_table = Job.objects.filter(table=OuterRef("table"))
        since = self._now - _RECENT_JOB
        had_job = Exists(
            jobs_of_table.filter(
                kind__in=maintenance_actions.keys(), is_dry_run=False, created_at__gt=since
            )
        )
        rows = (
            TableHealth.objects.newest()
            .filter(table__state=TableState.LIVE)
            .exclude(Exists(jobs_of_table.filter(status__in=ACTIVE)))
            .select_related("table__namespace")
            .order_by("score", "table")
        )
        for group in (rows.exclude(had_job), rows.filter(had_job)):
            after = Q()
            while batch := list(group.filter(after)[:_BATCH]):
                yield batch
                last = batch[-1]
                after = Q(score__gt=last.score) | Q(score=last.score, table__gt=last.table_id)

    def _start_in(self, batch: list[TableHealth]) -> int:
        effective = policies.effective_policies([row.table for row in batch])
        rows = [row for row in batch if self._is_eligible(row, effective[row.table_id])]
        last = self._last_runs(rows)
        return sum(self._start_first_due(row, effective[row.table_id], last) for row in rows)

    def _is_eligible(self, row: TableHealth, policy: EffectivePolicy) -> bool:
        if not row.statistics or "error" in row.statistics:
            return False
        is_on = any(policy.mode(mode) is Mode.ON for mode in self._modes)
        return is_on and self._has_room(policy) and policy.allows(self._now.time())

    def _has_room(self, policy: EffectivePolicy) -> bool:
        source = policy.values["max_jobs"].source
        ahead = min(self._ended[policies.limit_key(policy)], _MAX_AHEAD)
        has_room = self._running[source] < int(policy["max_jobs"]) + ahead
        if not has_room:
            self._full.add(source)
        return has_room

    def _start_first_due(
        self, row: TableHealth, policy: EffectivePolicy, last: Mapping[tuple[int, str], LastRun]
    ) -> bool:
        """Start the maintenance of this table that is due and ran least recently; False if none is.

        A busy table requires some kinds all the time, so without this order other kinds would
        never run.
        """
        if not self._has_room(policy):
            return False
        due = list(self._due(row, policy, last))
        due.sort(key=lambda item: _last_started(last.get((row.table_id, item[0]))))
        for kind, parameters in due:
            try:
                _start(SYSTEM, row.table, kind, policy, parameters, is_scheduled=True)
            except CatalogError as refused:  # dropped meanwhile, or a job was requested meanwhile
                log.warning("Maintenance of %s was refused: %s", row.table, refused)
                return False
            self._running[policy.values["max_jobs"].source] += 1
            return True
        return False

    def _due(
        self, row: TableHealth, policy: EffectivePolicy, last: Mapping[tuple[int, str], LastRun]
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Actions that the policy switches on and that are due, with the parameters of their jobs."""
        statistics = Statistics.from_json(row.statistics)
        planned = {job.kind: job for job in maintenance_actions.plan(statistics, policy)}
        actions = maintenance_actions.of_format(statistics.format)
        for action in sorted(actions, key=lambda action: action.order):
            if policy.mode(action.mode) is not Mode.ON:
                continue
            if action.key in self._obstacles[statistics.format]:
                continue
            last_run = last.get((row.table_id, action.key))
            occasion = Occasion(self._now, row.table.created_at, statistics, policy, last_run)
            if action.key in planned and not _is_on_hold(action, last_run, row, self._now):
                yield action.key, planned[action.key].parameters
            elif action.is_due is not None and action.is_due(occasion):
                yield action.key, {}

    @staticmethod
    def _last_runs(rows: Iterable[TableHealth]) -> dict[tuple[int, str], LastRun]:
        actions = maintenance_actions.registered()
        pairs = [action.replaced_files or (None, None) for action in actions]
        with connection.cursor() as cursor:
            cursor.execute(
                _LAST_RUNS_SQL,
                [
                    [row.table_id for row in rows],
                    [action.key for action in actions],
                    [replaced for replaced, _ in pairs],
                    [added for _, added in pairs],
                    [str(status) for status in _UNSUCCESSFUL],
                ],
            )
            return {(table, kind): LastRun(*columns) for table, kind, *columns in cursor.fetchall()}


def _last_started(last: LastRun | None) -> float:
    return 0.0 if last is None else last.created_at.timestamp()


def _switched_on() -> set[str]:
    """Modes that any policy switches on; usually there are none, and the pass ends at once."""
    actions = maintenance_actions.registered()
    modes = {action.mode for action in actions if action.rules[0].default == Mode.ON}
    for values in policies.policy_values():
        modes.update(action.mode for action in actions if values.get(action.mode) == Mode.ON)
    return modes


def _start(
    actor: Principal,
    row: Table,
    kind: str,
    policy: EffectivePolicy,
    parameters: Mapping[str, Any] | None = None,
    *,
    is_dry_run: bool = False,
    is_scheduled: bool = False,
) -> Job:
    values = {name: setting.value for name, setting in policy.values.items()}
    operation = job_operations.StartMaintenance(
        table=row.identifier,
        format=TableFormat(row.format),
        kind_of_job=kind,
        is_dry_run=is_dry_run,
        only_if_idle=is_scheduled,
        limit_key=policies.limit_key(policy) if is_scheduled else "",
        limit=int(policy["max_jobs"]) if is_scheduled else None,
        parameters={"policy": values, **(parameters or {})},
    )
    job: Job = commit([operation], actor=actor).results[0]
    return job
