"""The measured tables that may get a job, by namespace and in the order of their turns."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from django.db import connection
from django.db.models import Exists, OuterRef

from catalog import maintenance_actions
from catalog.maintenance_actions import LastRun
from catalog.models import Job, JobStatus, Table, TableHealth, TableState, TableVersion
from catalog.planning import Statistics
from catalog.policies import EffectivePolicy
from catalog.scheduling import holds, rounds
from catalog.scheduling.holds import Commits
from catalog.services.maintenance import policies
from catalog.services.maintenance.engine_profiles import engines

_BATCH = 1000
_AT_LEAST = 5
"""Tables of each namespace to read at first."""
_ACTIVE = (JobStatus.QUEUED, JobStatus.RUNNING)
_UNSUCCESSFUL = (JobStatus.FAILED, JobStatus.CANCELED)
_MAX_COMMITS = 1000
"""Versions of a table to read at most, to judge whether its writers are quiet."""


@dataclass(frozen=True, slots=True)
class Candidate(rounds.Table):
    """A table, as the decisions see it, with its row."""

    row: Table


class _Entry(NamedTuple):
    pk: int
    namespace: str
    turn: datetime
    table: int


_PAGE_SQL = """
    SELECT h.id, h.namespace, h.turn, h.table_id FROM unnest(%s::text[]) AS n(name)
    CROSS JOIN LATERAL (
        SELECT id, namespace, turn, table_id FROM catalog_tablehealth
        WHERE is_newest AND namespace = n.name AND (turn, table_id) > (%s::timestamptz, %s)
        ORDER BY turn, table_id LIMIT %s
    ) h
    ORDER BY h.namespace, h.turn, h.table_id
"""

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
            (result->'after'->>'version')::bigint AS version,
            GREATEST(attempts, (
                SELECT max(attempts) FROM (
                    SELECT attempts FROM catalog_job
                    WHERE table_id = t.id AND kind = k.kind AND NOT is_dry_run
                    ORDER BY id DESC LIMIT 3
                ) last_jobs
            )) AS attempts
        FROM catalog_job
        WHERE table_id = t.id AND kind = k.kind AND NOT is_dry_run
        ORDER BY id DESC LIMIT 1
    ) j
"""


def last_runs(tables: Iterable[int]) -> dict[int, dict[str, LastRun]]:
    """The last job of each kind, by table. One statement."""
    actions = maintenance_actions.registered()
    pairs = [action.replaced_files or (None, None) for action in actions]
    runs: dict[int, dict[str, LastRun]] = {table: {} for table in tables}
    with connection.cursor() as cursor:
        cursor.execute(
            _LAST_RUNS_SQL,
            [
                list(runs),
                [action.key for action in actions],
                [replaced for replaced, _ in pairs],
                [added for _, added in pairs],
                [str(status) for status in _UNSUCCESSFUL],
            ],
        )
        for table, kind, *columns in cursor.fetchall():
            runs[table][kind] = LastRun(*columns)
    return runs


def obstacles(table_format: str, policy: EffectivePolicy) -> dict[str, str]:
    """The kinds of maintenance that no running worker can do under a policy, with the reason."""
    reason = engines.obstacle(table_format, policy)
    if not reason:
        return {}
    actions = maintenance_actions.of_format(table_format)
    return {a.key: reason for a in actions if a.implementations[table_format].takes_spark}


def profile(table_format: str, policy: EffectivePolicy, kind: str) -> str:
    """The engine profile of a job; empty if it never uses Spark."""
    takes_spark = maintenance_actions.require(kind).implementations[table_format].takes_spark
    return engines.profile_of(table_format, policy) if takes_spark else ""


def top_namespace(table: Table) -> str:
    """The first part of the name of a table's namespace; empty for a table of the root."""
    path = table.namespace.path
    return path[0] if path else ""


def recent_commits(table: Table, now: datetime) -> Commits:
    """The commits to the main branch of a table. One statement."""
    versions = TableVersion.objects.on("").filter(table=table).order_by("-version")
    moments = versions.values_list("created_at", flat=True)[:_MAX_COMMITS]
    ages = [now - moment for moment in moments]
    return Commits(
        recent=sum(age <= holds.QUIET for age in ages),
        day=sum(age <= timedelta(days=1) for age in ages),
    )


class Candidates:
    """The candidates of one round. Tables with an active job are left out."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._obstacles: dict[tuple[str, str, str], dict[str, str]] = {}
        """By format, engine and engine profile."""

    def by_namespace(self) -> dict[str, Iterator[Candidate]]:
        """An iterator for each top-level namespace with measured tables, which reads in pages."""
        newest = TableHealth.objects.newest().order_by()
        names = list(newest.values_list("namespace", flat=True).distinct())
        number = max(_BATCH // max(len(names), 1), _AT_LEAST)
        together = max(_BATCH // number, 1)
        sources: dict[str, Iterator[Candidate]] = {}
        for begin in range(0, len(names), together):
            chunk = names[begin : begin + together]
            first = self._page(chunk, number)
            loaded = self._load(first)
            for name in chunk:
                entries = [entry for entry in first if entry.namespace == name]
                sources[name] = self._of(name, entries, loaded, number)
        return sources

    def _of(
        self, name: str, entries: list[_Entry], loaded: Mapping[int, Candidate], number: int
    ) -> Iterator[Candidate]:
        while True:
            for entry in entries:
                if entry.pk in loaded:
                    yield loaded[entry.pk]
            if len(entries) < number:
                return
            number = _BATCH
            entries = self._page([name], number, entries[-1])
            loaded = self._load(entries)

    @staticmethod
    def _page(names: Collection[str], number: int, after: _Entry | None = None) -> list[_Entry]:
        """The next measurements of each namespace, at most ``number``. One statement."""
        turn, table = ("-infinity", 0) if after is None else (after.turn, after.table)
        with connection.cursor() as cursor:
            cursor.execute(_PAGE_SQL, [list(names), turn, table, number])
            return [_Entry(*columns) for columns in cursor.fetchall()]

    def _load(self, entries: list[_Entry]) -> dict[int, Candidate]:
        """The candidates among measurements, by primary key. A fixed number of statements."""
        active = Job.objects.filter(table=OuterRef("table"), status__in=_ACTIVE)
        rows = list(
            TableHealth.objects.filter(pk__in=[entry.pk for entry in entries])
            .filter(table__state=TableState.LIVE)
            .exclude(Exists(active))
            .select_related("table__namespace")
        )
        effective = policies.effective_policies([row.table for row in rows])
        runs = last_runs([row.table_id for row in rows])
        return {
            row.pk: self._candidate(row, effective[row.table_id], runs[row.table_id])
            for row in rows
            if row.statistics and "error" not in row.statistics
        }

    def _candidate(
        self, row: TableHealth, policy: EffectivePolicy, runs: Mapping[str, LastRun]
    ) -> Candidate:
        table = row.table
        return Candidate(
            pk=table.pk,
            namespace=top_namespace(table),
            turn=row.turn,
            measured_at=row.measured_at,
            created_at=table.created_at,
            policy=policy,
            statistics=partial(Statistics.from_json, row.statistics),
            last_runs=runs,
            obstacles=self._obstacles_under(row.statistics["format"], policy),
            profile=partial(profile, table.format, policy),
            commits=partial(recent_commits, table, self._now),
            row=table,
        )

    def _obstacles_under(self, table_format: str, policy: EffectivePolicy) -> dict[str, str]:
        key = table_format, policy["engine"], policy["engine_profile"]
        if key not in self._obstacles:
            self._obstacles[key] = obstacles(table_format, policy)
        return self._obstacles[key]
