"""Maintenance policies: set them, and resolve the effective policy of a table."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Count, Q

from catalog import maintenance_actions, policies
from catalog.access import Principal
from catalog.identifiers import Identifier, digest, label
from catalog.models import Job, JobStatus, MaintenancePolicy, Table, TableFormat
from catalog.policies import EffectivePolicy
from catalog.scheduling import fairness
from catalog.scheduling.limits import ActiveJobs
from catalog.services.engine import job_queue
from catalog.services.engine.commit import commit
from catalog.services.engine.database_clock import database_now
from catalog.services.maintenance import policy_operations
from catalog.services.tables import namespaces, tables

_ACTIVE = (JobStatus.QUEUED, JobStatus.RUNNING)


def set_namespace_policy(
    *, actor: Principal, namespace: Identifier, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Set the maintenance policy of a namespace and of everything below it; returns the new policy.

    Values that are left out are inherited. Raises NamespaceNotFound, InvalidInput.
    """
    committed = commit(
        [policy_operations.SetNamespacePolicy(namespace=namespace, values=values)], actor=actor
    )
    policy: dict[str, Any] = committed.results[0]
    return policy


def set_table_policy(
    *, actor: Principal, table: Identifier, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Set the maintenance policy of a table; returns it. Raises TableNotFound, InvalidInput."""
    row = tables.find_any(actor=actor, table=table)
    operation = policy_operations.SetTablePolicy(
        table=table, format=TableFormat(row.format), values=values
    )
    policy: dict[str, Any] = commit([operation], actor=actor).results[0]
    return policy


def policy_of_namespace(
    *, actor: Principal, namespace: Identifier
) -> tuple[EffectivePolicy, dict[str, Any]]:
    """The effective policy for tables of a namespace, and the namespace's own policy."""
    namespaces.describe_namespace(actor=actor, namespace=namespace)
    policies_by_digest = _own_policies([namespace])
    own = dict(policies_by_digest.get(digest(namespace), {}))
    return policies.effective(_chain(policies_by_digest, namespace)), own


def policy_of_table(
    *, actor: Principal, table: Identifier
) -> tuple[EffectivePolicy, dict[str, Any]]:
    """The effective policy of a table, and its own policy. Raises TableNotFound."""
    row = tables.find_any(actor=actor, table=table)
    own = MaintenancePolicy.objects.filter(table=row).values_list("values", flat=True).first()
    return effective_policy(row), own or {}


def effective_policy(table: Table) -> EffectivePolicy:
    """The effective policy of a table, with the source of each value. Two statements."""
    return effective_policies([table])[table.pk]


def effective_policies(rows: Iterable[Table]) -> dict[int, EffectivePolicy]:
    """Effective policies of many tables by primary key; their namespaces should be loaded."""
    tables_ = list(rows)
    policies_by_digest = _own_policies([tuple(row.namespace.path) for row in tables_])
    own: dict[int | None, dict[str, Any]] = dict(
        MaintenancePolicy.objects.filter(table__in=[row.pk for row in tables_]).values_list(
            "table", "values"
        )
    )
    return {
        row.pk: policies.effective(
            [
                *_chain(policies_by_digest, tuple(row.namespace.path)),
                (str(row), own.get(row.pk, {}), f"table {row.digest}"),
            ]
        )
        for row in tables_
    }


def _own_policies(paths: Iterable[Identifier]) -> dict[Any, dict[str, Any]]:
    """Policies of the namespaces and their ancestors, by digest of the name."""
    digests = {digest(path[:depth]) for path in paths for depth in range(len(path) + 1)}
    return dict(
        MaintenancePolicy.objects.filter(
            namespace__digest__in=digests, namespace__dropped_at=None
        ).values_list("namespace__digest", "values")
    )


def _chain(
    policies_by_digest: Mapping[Any, Mapping[str, Any]], path: Identifier
) -> Iterable[policies.Layer]:
    for depth in range(len(path) + 1):
        identity = digest(path[:depth])
        values = policies_by_digest.get(identity)
        if values:
            yield label(path[:depth]), values, f"namespace {identity}"


# --- limits of running jobs ---------------------------------------------------------------------


def policy_values() -> list[Mapping[str, Any]]:
    return list(MaintenancePolicy.objects.values_list("values", flat=True))


def number_of_limits() -> int:
    """The number of policies whose jobs count together, with the default."""
    return sum(not policies.LIMITS.isdisjoint(values) for values in policy_values()) + 1


def ended_by_policy(since: datetime) -> Counter[str]:
    """Number of jobs that the scheduler started and that ended, by their limit's key."""
    ended = Job.objects.filter(finished_at__gt=since).exclude(limit_key="")
    return Counter(dict(ended.values_list("limit_key").annotate(number=Count("pk"))))


def uniform_namespaces(names: Iterable[str]) -> set[str]:
    """Those top-level namespaces whose tables all have the same policy. Two statements."""
    rows = MaintenancePolicy.objects.exclude(values={})
    of_tables = rows.filter(table__isnull=False).values_list("table__namespace__path", flat=True)
    inner = rows.filter(namespace__path__len__gt=1).values_list("namespace__path", flat=True)
    mixed = {path[0] for path in (*of_tables, *inner) if path}
    return set(names) - mixed - {""}


_USED_SQL = """
    SELECT top, priority, sum(GREATEST(seconds, %(least)s)) FROM (
        SELECT COALESCE(n.path[1], '') AS top,
            COALESCE((j.parameters->'policy'->>'priority')::integer, 1) AS priority,
            CASE WHEN j.status <> %(queued)s THEN  -- else it began an attempt that failed
                EXTRACT(EPOCH FROM COALESCE(j.finished_at, %(now)s) - j.started_at)::float
            END AS seconds
        FROM catalog_job j
        JOIN catalog_table t ON t.id = j.table_id
        JOIN catalog_namespace n ON n.id = t.namespace_id
        WHERE j.limit_key <> ''
            AND (j.finished_at > %(since)s OR j.status = ANY(%(active)s::text[]))
    ) recent
    GROUP BY top, priority
"""


def used_time(now: datetime) -> dict[str, float]:
    """The use of each top-level namespace by the jobs that the scheduler started. One statement."""
    used: dict[str, float] = defaultdict(float)
    facts: dict[str, Any] = {
        "least": fairness.LEAST_CHARGE,
        "now": now,
        "since": now - fairness.HISTORY,
        "active": [str(status) for status in _ACTIVE],
        "queued": str(JobStatus.QUEUED),
    }
    with connection.cursor() as cursor:
        cursor.execute(_USED_SQL, facts)
        for top, priority, seconds in cursor.fetchall():
            used[top] += fairness.charge(seconds, priority)
    return used


def active_jobs() -> ActiveJobs:
    """The jobs of all tables. A fixed number of statements."""
    active = ActiveJobs(job_queue.free_drivers())
    is_next = Q(lease_until=None) | Q(lease_until__lte=database_now())
    at_work = Job.objects.filter(
        Q(status=JobStatus.RUNNING) | Q(is_next, status=JobStatus.QUEUED),
        kind__in=maintenance_actions.keys(),
    )
    first_jobs: dict[int, tuple[str, str]] = {}
    for table, *job in at_work.order_by("pk").values_list("table", "status", "engine_profile"):
        status, profile = job
        if status == JobStatus.RUNNING or table not in first_jobs:
            first_jobs[table] = status, profile
    rows = Table.objects.filter(pk__in=first_jobs).select_related("namespace")
    for table, policy in effective_policies(rows).items():
        status, profile = first_jobs[table]
        if status == JobStatus.RUNNING:
            active.add_running(policy.limit_key)
        else:
            active.add(policy.limit_key, profile)
    return active
